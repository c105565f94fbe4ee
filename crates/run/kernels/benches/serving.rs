//! How fast the operators of serving are, as shares of what memory and the products of training give in the same run.
//!
//! Weights are hundreds of megabytes, as a model's are, so that no cache holds them from one use to the next. Times are those of the
//! fastest call: others were disturbed by what else the machine does.
//!
//! `cargo bench -p bedplate-kernels`, with `-- bf16`, `-- whole` (numbers), `-- f32` or `-- attention` for a part of it.

#![expect(clippy::print_stdout, reason = "prints what it measures")]

use std::time::Instant;

use bedplate_kernels::{
    AttentionShape, Bf16, Buffer, Device, Element, KvFormat, Packed, PagedRows, PagedShape, Qkv, Sight,
    VisibleKeys, WeightFormat,
};

const INPUTS: usize = 4096;
const OUTPUTS: usize = 4096;
/// Bytes of all weights of a format.
const BYTES: usize = 600 << 20;
/// Bytes of a plain read that is timed.
const PART: usize = 32 << 20;
const ROUNDS: usize = 5;

/// The shortest of some rounds over some things, in seconds.
fn fastest_of<T>(things: impl Iterator<Item = T> + Clone, mut work: impl FnMut(T)) -> f64 {
    let mut call = |thing: T| {
        let began = Instant::now();
        work(thing);
        began.elapsed().as_secs_f64()
    };
    (0..ROUNDS).flat_map(|_| things.clone()).map(&mut call).skip(1).fold(f64::INFINITY, f64::min)
}

fn fastest(mut work: impl FnMut()) -> f64 {
    fastest_of(0..2, |_| work())
}

fn elements<E: Element>(device: &Device, len: usize) -> Buffer<E> {
    let mut buffer = device.zeros(len);
    let values: Vec<E> = (0..len).map(|at| E::narrow((at * 7919 % 1013) as f32 / 506.5 - 1.0)).collect();
    device.write(buffer.view_mut(), &values);
    buffer
}

/// Bytes per second of a plain read with all threads.
fn streaming(device: &Device) -> f64 {
    let mut elements = device.zeros::<f32>(BYTES / 4);
    // Memory that was never written is one page of zeros.
    device.fill(elements.view_mut(), 1.0);
    let seconds = fastest_of(0..BYTES / PART, |part| {
        let part = elements.range(part * PART / 4..(part + 1) * PART / 4);
        assert_eq!(device.first_non_finite(part), None);
    });
    PART as f64 / seconds
}

fn weights(device: &Device, format: WeightFormat) -> Vec<Packed> {
    let weight = elements::<Bf16>(device, INPUTS * OUTPUTS);
    let first = device.pack(weight.view(), OUTPUTS, format);
    let more = BYTES / first.bytes();
    std::iter::once(first).chain((1..more).map(|_| device.pack(weight.view(), OUTPUTS, format))).collect()
}

/// Seconds of one product with `rows` rows.
fn product<X: Element>(device: &Device, weights: &[Packed], rows: usize) -> f64 {
    let (x, mut out) = (elements::<X>(device, rows * INPUTS), device.zeros::<X>(rows * OUTPUTS));
    let some = if rows > 64 { 2.min(weights.len()) } else { weights.len() };
    fastest_of(weights[..some].iter(), |weight| {
        let to = out.view_mut().matrix(rows, OUTPUTS);
        device.linear_packed(x.view().matrix(rows, INPUTS), weight, None, None, to);
    })
}

fn in_training<X: Element>(device: &Device, rows: usize) -> f64 {
    let (x, mut out) = (elements::<X>(device, rows * INPUTS), device.zeros::<X>(rows * OUTPUTS));
    let weight = elements::<X>(device, INPUTS * OUTPUTS);
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

/// Seconds of attention of `rows` new rows of each of `sequences` sequences, behind `context` tokens.
fn attention<E: Element>(
    device: &Device,
    shape: &PagedShape,
    sequences: usize,
    context: usize,
    rows: usize,
) -> f64 {
    let (count, blocks) = (sequences * rows, (context + rows).div_ceil(shape.block_tokens));
    let pool = elements::<E>(device, sequences * blocks * shape.block_len());
    let of = |elements: Vec<u32>| {
        let mut buffer = device.zeros::<u32>(elements.len());
        device.write(buffer.view_mut(), &elements);
        buffer
    };
    let (starts, contexts, table_starts, tables) = (
        of((0..=sequences).map(|sequence| (sequence * rows) as u32).collect()),
        of(vec![context as u32; sequences]),
        of((0..=sequences).map(|sequence| (sequence * blocks) as u32).collect()),
        of((0..sequences * blocks).map(|block| (block * 7919 % (sequences * blocks)) as u32).collect()),
    );
    let steps = PagedRows {
        starts: starts.view(),
        contexts: contexts.view(),
        table_starts: table_starts.view(),
        tables: tables.view(),
    };
    let width = shape.heads * shape.head_dim;
    let (queries, mut out) = (elements::<E>(device, count * width), device.zeros::<E>(count * width));
    fastest(|| {
        let (queries, out) = (queries.view().matrix(count, width), out.view_mut().matrix(count, width));
        device.paged_attention(shape, queries, steps, Sight::All, pool.view(), out);
    })
}

/// Attention as training does it, of one sequence.
fn attention_in_training<E: Element>(device: &Device, shape: &PagedShape, tokens: usize) -> f64 {
    let PagedShape { heads, kv_heads, head_dim, scale, .. } = *shape;
    let shape = AttentionShape { queries: tokens, keys: tokens, heads, kv_heads, head_dim, scale, cap: 0.0 };
    let qkv = elements::<E>(device, tokens * (heads + 2 * kv_heads) * head_dim);
    let mut out = device.zeros::<E>(tokens * heads * head_dim);
    let (first_keys, mut log_sums) = (device.zeros::<u32>(tokens), device.zeros::<f32>(tokens * heads));
    fastest(|| {
        let qkv = Qkv::columns(&shape, qkv.view().matrix(tokens, (heads + 2 * kv_heads) * head_dim));
        let seen = VisibleKeys { first_keys: first_keys.view(), positions: None };
        let to = out.view_mut().matrix(tokens, heads * head_dim);
        device.attention(&shape, qkv, seen, to, log_sums.view_mut());
    })
}

fn attentions<E: Element>(device: &Device) {
    let shape = PagedShape {
        heads: 32,
        kv_heads: 8,
        head_dim: 128,
        scale: 0.088,
        cap: 0.0,
        block_tokens: 16,
        format: KvFormat::Stored,
    };
    let bandwidth = streaming(device);
    for (sequences, context) in [(1, 100_000), (16, 8_000), (64, 1_000), (16, 100)] {
        let seconds = attention::<E>(device, &shape, sequences, context, 1);
        let bytes = sequences * (context + 1) * shape.block_len() / shape.block_tokens * size_of::<E>();
        let share = 100.0 * bytes as f64 / seconds / bandwidth;
        println!(
            "{} attention of {sequences} rows over {context}: {:.0} us, {share:.0} % of reading",
            E::NAME,
            1e6 * seconds
        );
    }
    for tokens in [512, 2048] {
        let (paged, plain) = (
            attention::<E>(device, &shape, 1, 0, tokens),
            attention_in_training::<E>(device, &shape, tokens),
        );
        println!(
            "{} attention of a prompt of {tokens}: {:.0} us, {:.2} x attention",
            E::NAME,
            1e6 * paged,
            plain / paged
        );
    }
}

fn main() {
    let device = Device::cpu(2);
    println!("{}, {} threads, {OUTPUTS} x {INPUTS}", device.instructions(), device.threads());
    let only: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let is_asked = |name: &str| only.is_empty() || only.iter().any(|asked| asked == name);
    if is_asked("bf16") {
        products::<Bf16>(&device, &WeightFormat::ALL[..4], &[1, 2, 4, 8, 16, 32, 64]);
    }
    if is_asked("whole") {
        products::<Bf16>(&device, &WeightFormat::ALL[4..], &[1, 2, 4, 8, 16, 32, 64]);
    }
    if is_asked("attention") {
        attentions::<Bf16>(&device);
        attentions::<f32>(&device);
    }
    if is_asked("f32") {
        products::<f32>(&device, &WeightFormat::ALL, &[1, 8]);
    }
}
