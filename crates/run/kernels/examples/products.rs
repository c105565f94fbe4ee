//! Prints how fast products and attention run here: `cargo run --release -p bedplate-kernels --example products`.
//!
//! Arguments choose by name and format: `-- square f32`. Each figure is the best of many short runs, in GFLOP/s, on one and on two threads.

#![expect(clippy::print_stdout, reason = "a measuring program prints its figures")]

use std::time::Instant;

use bedplate_kernels::{AttentionShape, Bf16, Buffer, Device, Element, Put};

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
    if "attention".contains(&wanted) {
        println!("{:24} {:>5} {:>2}  {:>8} {:>8}", "attention 4 x 512, 8 x 64", "", "", "forward", "both");
        for threads in [1, 2] {
            let device = Device::cpu(threads);
            if f32::NAME.contains(&format) {
                attention::<f32>(&device);
            }
            if Bf16::NAME.contains(&format) {
                attention::<Bf16>(&device);
            }
        }
    }
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
    let x = random::<E>(device, tokens * inputs);
    let weight = random::<E>(device, outputs * inputs);
    let d_out = random::<E>(device, tokens * outputs);
    let mut out = device.zeros::<E>(tokens * outputs);
    let mut d_x = device.zeros::<E>(tokens * inputs);
    let mut d_weight = device.zeros::<f32>(outputs * inputs);
    let x = x.view().matrix(tokens, inputs);
    let d_out = d_out.view().matrix(tokens, outputs);
    let forward = best(|| {
        device.linear(x, weight.view(), None, None, out.view_mut().matrix(tokens, outputs));
    });
    let input = best(|| {
        let d_x = d_x.view_mut().matrix(tokens, inputs);
        device.linear_backward_input(d_out, weight.view(), Put::Replace, d_x);
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

/// Counts the products of the lower half alone, as others do: 2 forward and 5 backward.
fn attention<E: Element>(device: &Device) {
    let shape = AttentionShape { sequence: 512, heads: 8, kv_heads: 8, head_dim: 64, scale: 0.125 };
    let (rows, inner) = (4 * shape.sequence, shape.heads * shape.head_dim);
    let (qkv, d_out) = (random::<E>(device, rows * shape.columns()), random::<E>(device, rows * inner));
    let first_keys = device.zeros::<u32>(rows);
    let mut out = device.zeros::<E>(rows * inner);
    let mut log_sums = device.zeros::<f32>(rows * shape.heads);
    let mut d_qkv = device.zeros::<E>(rows * shape.columns());
    let qkv = qkv.view().matrix(rows, shape.columns());
    let forward = best(|| {
        let to = out.view_mut().matrix(rows, inner);
        device.attention(&shape, qkv, first_keys.view(), to, log_sums.view_mut());
    });
    let both = best(|| {
        let to = out.view_mut().matrix(rows, inner);
        device.attention(&shape, qkv, first_keys.view(), to, log_sums.view_mut());
        device.attention_backward(
            &shape,
            qkv,
            first_keys.view(),
            out.view().matrix(rows, inner),
            log_sums.view(),
            d_out.view().matrix(rows, inner),
            d_qkv.view_mut().matrix(rows, shape.columns()),
        );
    });
    let work = 2e-9 * (rows * inner) as f64 * shape.sequence as f64 / 2.0;
    println!(
        "{:24} {:>5} {:>2}  {:8.0} {:8.0}   ({:.2} and {:.2} ms)",
        "attention",
        E::NAME,
        device.threads(),
        2.0 * work / forward,
        7.0 * work / both,
        1e3 * forward,
        1e3 * both
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

fn random<E: Element>(device: &Device, len: usize) -> Buffer<E> {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        E::narrow((state >> 40) as f32 / (1u64 << 23) as f32 - 1.0)
    };
    let values: Vec<E> = (0..len).map(|_| next()).collect();
    let mut buffer = device.zeros(len);
    device.write(buffer.view_mut(), &values);
    buffer
}
