//! How fast the operators of serving are, as shares of what memory and the products of training give in the same run.
//!
//! Weights are hundreds of megabytes, as a model's are, so that no cache holds them from one use to the next.

#![expect(clippy::print_stdout, reason = "prints what it measures")]

use std::time::Instant;

use bedplate_kernels::{Bf16, Buffer, Device, Element, Packed, WeightFormat};

const INPUTS: usize = 4096;
const OUTPUTS: usize = 4096;
/// Bytes of all weights of a format.
const BYTES: usize = 600 << 20;
const ROUNDS: usize = 7;

/// The shortest of some rounds, in seconds.
fn fastest(mut work: impl FnMut()) -> f64 {
    let round = |work: &mut dyn FnMut()| {
        let began = Instant::now();
        work();
        began.elapsed().as_secs_f64()
    };
    work();
    (0..ROUNDS).map(|_| round(&mut work)).fold(f64::INFINITY, f64::min)
}

fn numbers<E: Element>(device: &Device, len: usize) -> Buffer<E> {
    let mut buffer = device.zeros(len);
    let values: Vec<E> = (0..len).map(|at| E::narrow((at * 7919 % 1013) as f32 / 506.5 - 1.0)).collect();
    device.write(buffer.view_mut(), &values);
    buffer
}

/// Bytes per second of a plain read with all threads.
fn streaming(device: &Device) -> f64 {
    let numbers = device.zeros::<f32>(BYTES / 4);
    let seconds = fastest(|| assert_eq!(device.first_non_finite(numbers.view()), None));
    BYTES as f64 / seconds
}

fn weights(device: &Device, format: WeightFormat) -> Vec<Packed> {
    let weight = numbers::<Bf16>(device, INPUTS * OUTPUTS);
    let first = device.pack(weight.view(), OUTPUTS, format);
    let more = BYTES / first.bytes();
    std::iter::once(first).chain((1..more).map(|_| device.pack(weight.view(), OUTPUTS, format))).collect()
}

/// Seconds of one product with `rows` rows.
fn product<X: Element>(device: &Device, weights: &[Packed], rows: usize) -> f64 {
    let (x, mut out) = (numbers::<X>(device, rows * INPUTS), device.zeros::<X>(rows * OUTPUTS));
    let some = if rows > 64 { 2.min(weights.len()) } else { weights.len() };
    let seconds = fastest(|| {
        for weight in &weights[..some] {
            let to = out.view_mut().matrix(rows, OUTPUTS);
            device.linear_packed(x.view().matrix(rows, INPUTS), weight, None, None, to);
        }
    });
    seconds / some as f64
}

fn in_training<X: Element>(device: &Device, rows: usize) -> f64 {
    let (x, mut out) = (numbers::<X>(device, rows * INPUTS), device.zeros::<X>(rows * OUTPUTS));
    let weight = numbers::<X>(device, INPUTS * OUTPUTS);
    fastest(|| {
        let to = out.view_mut().matrix(rows, OUTPUTS);
        device.linear(x.view().matrix(rows, INPUTS), weight.view(), None, None, to);
    })
}

fn products<X: Element>(device: &Device, formats: &[WeightFormat], rows: &[usize]) {
    let many = 512;
    let training = in_training::<X>(device, many);
    for format in formats {
        let weights = weights(device, *format);
        let (bytes, bandwidth) = (weights[0].bytes() as f64, streaming(device));
        print!("{} x {:5}", X::NAME, format.name());
        for rows in rows {
            let seconds = product::<X>(device, &weights, *rows);
            let share = 100.0 * bytes / seconds / bandwidth;
            print!("  {rows}: {:7.1} us {share:3.0} %", 1e6 * seconds);
        }
        let seconds = product::<X>(device, &weights, many);
        println!("  {many}: {:.2} x linear  (read {:.1} GB/s)", training / seconds, bandwidth / 1e9);
    }
}

fn main() {
    let device = Device::cpu(2);
    println!("{}, {} threads, {OUTPUTS} x {INPUTS}", device.instructions(), device.threads());
    let only = std::env::args().nth(1).unwrap_or_default();
    if only.is_empty() || only == "--bench" || only == "bf16" {
        products::<Bf16>(&device, &WeightFormat::ALL, &[1, 2, 4, 8, 16, 32, 64]);
    }
    if only.is_empty() || only == "--bench" || only == "f32" {
        products::<f32>(&device, &WeightFormat::ALL, &[1, 8]);
    }
}
