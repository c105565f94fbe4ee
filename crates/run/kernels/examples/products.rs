//! Prints how fast products and attention run here: `cargo run --release -p bedplate-kernels --example products`.
//!
//! Arguments choose by name and format: `-- square f32`. Each figure is the best of many short runs, in GFLOP/s, on one and on two threads.

use std::time::Instant;

use bedplate_kernels::{Bf16, Buffer, Device, Element, Into};

/// Tokens and widths of the block that the figures are for, and square products.
const SHAPES: [(&str, usize, usize, usize); 7] = [
    ("square 1024", 1024, 1024, 1024),
    ("square 2048", 2048, 2048, 2048),
    ("square 4096", 4096, 4096, 4096),
    ("qkv 512 -> 1536", 2048, 512, 1536),
    ("out 512 -> 512", 2048, 512, 512),
    ("gate_up 512 -> 2816", 2048, 512, 2816),
    ("down 1408 -> 512", 2048, 1408, 512),
];

fn main() {
    let mut arguments = std::env::args().skip(1);
    let wanted = arguments.next().unwrap_or_default();
    let format = arguments.next().unwrap_or_default();
    println!("{}", Device::cpu(1).instructions());
    println!("{:24} {:>5} {:>2}  {:>8} {:>8} {:>8}", "product", "", "", "forward", "d_input", "d_weight");
    for shape in SHAPES.iter().filter(|shape| shape.0.contains(&wanted)) {
        for threads in [1, 2] {
            let device = Device::cpu(threads);
            if f32::NAME.contains(&format) {
                products::<f32>(&device, *shape);
            }
            if Bf16::NAME.contains(&format) {
                products::<Bf16>(&device, *shape);
            }
        }
    }
}

fn products<E: Element>(device: &Device, (name, tokens, inputs, outputs): (&str, usize, usize, usize)) {
    let x = random::<E>(tokens * inputs);
    let weight = random::<E>(outputs * inputs);
    let d_out = random::<E>(tokens * outputs);
    let mut out = Buffer::<E>::zeros(tokens * outputs);
    let mut d_x = Buffer::<E>::zeros(tokens * inputs);
    let mut d_weight = Buffer::<f32>::zeros(outputs * inputs);
    let x = x.view().matrix(tokens, inputs);
    let d_out = d_out.view().matrix(tokens, outputs);
    let forward = best(|| {
        device.linear(x, weight.view(), None, None, out.view_mut().matrix(tokens, outputs));
    });
    let input = best(|| {
        let d_x = d_x.view_mut().matrix(tokens, inputs);
        device.linear_backward_input(d_out, weight.view(), Into::Replace, d_x);
    });
    let weight = best(|| device.linear_backward_weight(d_out, x, d_weight.view_mut(), None));
    let work = 2e-9 * tokens as f64 * inputs as f64 * outputs as f64;
    println!(
        "{name:24} {:>5} {:>2}  {:8.0} {:8.0} {:8.0}",
        E::NAME,
        device.threads(),
        work / forward,
        work / input,
        work / weight
    );
}

/// The least seconds that `work` takes.
fn best(mut work: impl FnMut()) -> f64 {
    work();
    let began = Instant::now();
    let mut least = f64::INFINITY;
    let mut runs = 0;
    while runs < 5 || began.elapsed().as_secs_f64() < 0.3 {
        let began = Instant::now();
        work();
        least = least.min(began.elapsed().as_secs_f64());
        runs += 1;
    }
    least
}

fn random<E: Element>(len: usize) -> Buffer<E> {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        E::narrow((state >> 40) as f32 / (1u64 << 23) as f32 - 1.0)
    };
    let values: Vec<E> = (0..len).map(|_| next()).collect();
    let mut buffer = Buffer::zeros(len);
    Device::cpu(1).write(buffer.view_mut(), &values);
    buffer
}
