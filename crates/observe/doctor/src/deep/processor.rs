//! The processor and the memory: products that must repeat bit by bit, and copies.

use std::time::{Duration, Instant};

use bedplate_kernels::{Bf16, Buffer, Device, Element};

use super::{Outcome, steadiness};
use crate::CheckVerdict;

/// Rows, columns and depth of the product.
const SIDE: usize = 1024;
/// Numbers that are copied: 128 MB and as many bytes again.
const COPIED: usize = 32 << 20;

/// The same product again and again; every result must be the first one, bit by bit.
pub(super) fn products(lasts: Duration) -> Outcome {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let device = Device::cpu(threads);
    let (x, weight): (Buffer<Bf16>, Buffer<Bf16>) = (filled(&device, 7), filled(&device, 11));
    let mut out: Buffer<f32> = device.zeros(SIDE * SIDE);
    let mut first: Option<Vec<u32>> = None;
    let mut rates = Vec::new();
    let began = Instant::now();
    while rates.is_empty() || began.elapsed() < lasts {
        let round = Instant::now();
        let input = x.view().matrix(SIDE, SIDE);
        device.linear(input, weight.view(), None, None, out.view_mut().matrix(SIDE, SIDE));
        rates.push(2.0 * (SIDE as f64).powi(3) / round.elapsed().as_secs_f64());
        let bits = bits(&device, &out);
        match &first {
            None => first = Some(bits),
            Some(expected) if *expected == bits => {}
            Some(expected) => {
                let wrong = expected.iter().zip(&bits).filter(|(a, b)| a != b).count();
                let remark = format!("{wrong} numbers differed in round {}", rates.len());
                return outcome("products", CheckVerdict::Fail, None, remark);
            }
        }
    }
    let best = rates.iter().copied().fold(0.0, f64::max);
    let (verdict, remark) = steadiness(&rates);
    let remark = format!("{remark}; {} rounds alike on {threads} threads", rates.len());
    outcome("products", verdict, Some(format!("{:.1} GFLOP/s", best / 1e9)), remark)
}

/// Copies a pattern back and forth and looks at all of it in the end.
pub(super) fn memory(lasts: Duration) -> Outcome {
    let device = Device::cpu(std::thread::available_parallelism().map_or(1, usize::from));
    let pattern: Vec<f32> = (0..COPIED).map(|index| f32::from_bits(mixed(index as u32))).collect();
    let (mut from, mut to) = (device.zeros::<f32>(COPIED), device.zeros::<f32>(COPIED));
    device.write(from.view_mut(), &pattern);
    let mut rates = Vec::new();
    let began = Instant::now();
    while rates.is_empty() || began.elapsed() < lasts {
        let round = Instant::now();
        device.copy(from.view(), to.view_mut());
        rates.push(8.0 * COPIED as f64 / round.elapsed().as_secs_f64());
        std::mem::swap(&mut from, &mut to);
    }
    let mut back = vec![0.0_f32; COPIED];
    device.read(from.view(), &mut back);
    let wrong = pattern.iter().zip(&back).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
    if wrong > 0 {
        let remark = format!("{wrong} of {COPIED} numbers changed on the way");
        return outcome("memory", CheckVerdict::Fail, None, remark);
    }
    let best = rates.iter().copied().fold(0.0, f64::max);
    let (verdict, remark) = steadiness(&rates);
    outcome("memory", verdict, Some(format!("{:.1} GB/s", best / 1e9)), remark)
}

/// Bits that look random, without the ones that are no numbers.
fn mixed(index: u32) -> u32 {
    let mut bits = index.wrapping_mul(0x9e37_79b9);
    bits ^= bits >> 15;
    bits = bits.wrapping_mul(0x85eb_ca6b);
    bits & 0x3fff_ffff
}

fn filled<E: Element>(device: &Device, step: usize) -> Buffer<E> {
    let mut buffer = device.zeros(SIDE * SIDE);
    let value = |index: usize| E::narrow(((index * step % 251) as f32 - 125.0) / 125.0);
    let numbers: Vec<E> = (0..SIDE * SIDE).map(value).collect();
    device.write(buffer.view_mut(), &numbers);
    buffer
}

fn bits(device: &Device, numbers: &Buffer<f32>) -> Vec<u32> {
    let mut read = vec![0.0_f32; SIDE * SIDE];
    device.read(numbers.view(), &mut read);
    read.into_iter().map(f32::to_bits).collect()
}

fn outcome(name: &str, verdict: CheckVerdict, rate: Option<String>, remark: String) -> Outcome {
    Outcome { name: name.to_owned(), verdict: Some(verdict), rate, remark }
}
