//! The measurements: operators of `run/kernels` on sizes as small transformers have them, each timed
//! many times.

use std::time::{Duration, Instant};

use bedplate_kernels::{Accumulate, AdamW, AttentionShape, Buffer, Device, Element, Qkv, VisibleKeys};

/// How long an operator is repeated.
const SPAN: Duration = Duration::from_millis(300);
/// Repetitions at least, unless one of them takes longer than the span.
const LEAST: usize = 3;
/// Calls of a GPU that are timed together.
const CALLS: u32 = 10;

/// What a device is measured with: sizes as the transformers have them that are trained on it.
pub(super) struct Sizes {
    /// Rows, outputs and inputs of linear layers: projections and MLPs, a head, and a small one.
    pub(super) linears: [[usize; 3]; 6],
    attention_rows: usize,
    /// Tokens of a short and of a long sequence.
    sequences: [usize; 2],
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    hidden: usize,
    width: usize,
    /// Bytes of the sets that streams are measured over; the first fits in a cache, the last in none.
    pub(super) sets: [f64; 5],
    copied: usize,
    /// Rows of logits that the head makes at once, and the vocabulary.
    logits: [usize; 2],
    weights: usize,
}

impl Sizes {
    /// Widths of 512 and 768.
    pub(super) const OF_PROCESSOR: Self = Self {
        linears: [
            [2048, 1536, 512],
            [2048, 512, 512],
            [2048, 512, 1408],
            [2048, 4096, 768],
            [128, 16_384, 512],
            [512, 128, 128],
        ],
        attention_rows: 2048,
        sequences: [128, 1024],
        heads: 8,
        kv_heads: 4,
        head_dim: 64,
        hidden: 512,
        width: 1408,
        sets: [16e6, 32e6, 64e6, 128e6, 512e6],
        copied: 64 << 20,
        logits: [128, 32_768],
        weights: 16 << 20,
    };

    /// Widths of 2048 and 4096.
    const OF_GPU: Self = Self {
        linears: [
            [8192, 6144, 4096],
            [8192, 4096, 14_336],
            [16_384, 2048, 2048],
            [16_384, 16_384, 2048],
            [4096, 32_768, 4096],
            [2048, 1024, 1024],
        ],
        attention_rows: 16_384,
        sequences: [1024, 8192],
        heads: 32,
        kv_heads: 8,
        head_dim: 128,
        hidden: 4096,
        width: 14_336,
        sets: [16e6, 32e6, 64e6, 256e6, 2048e6],
        copied: 512 << 20,
        logits: [4096, 32_768],
        weights: 128 << 20,
    };

    pub(super) fn of(device: &Device) -> &'static Self {
        if device.is_cpu() { &Self::OF_PROCESSOR } else { &Self::OF_GPU }
    }
}

/// What an operator did, which its rate counts.
#[derive(Debug, Clone, Copy)]
pub(super) enum Amount {
    Flops(f64),
    Bytes(f64),
}

/// One operator on one size.
#[derive(Debug, Clone)]
pub(super) struct Sample {
    pub(super) operator: &'static str,
    pub(super) precision: &'static str,
    pub(super) size: Size,
    pub(super) seconds: f64,
    pub(super) amount: Amount,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Size {
    /// Rows, outputs, inputs.
    Linear([usize; 3]),
    /// Tokens of a sequence.
    Sequence(usize),
    /// Bytes of all that is touched.
    Set(f64),
}

impl Sample {
    /// FLOP/s or bytes/s.
    pub(super) fn rate(&self) -> f64 {
        match self.amount {
            Amount::Flops(amount) | Amount::Bytes(amount) => amount / self.seconds,
        }
    }
}

/// The time of a call that three of four exceed: what it takes when nothing disturbs it. The first one warms up and is not
/// counted, unless it takes very long.
fn seconds(device: &Device, mut work: impl FnMut()) -> f64 {
    // A GPU's calls return before they are done: several are waited for together, so that the wait does not count.
    let calls = if device.is_cpu() { 1 } else { CALLS };
    let mut time = || {
        let began = Instant::now();
        (0..calls).for_each(|_| work());
        device.synchronize();
        began.elapsed() / calls
    };
    let first = time();
    if first > 4 * SPAN {
        return first.as_secs_f64();
    }
    let mut times = Vec::new();
    let began = Instant::now();
    while times.len() < LEAST || began.elapsed() < SPAN {
        times.push(time());
    }
    times.sort();
    times[times.len() / 4].as_secs_f64()
}

/// Numbers of about one, none of them alike.
fn filled<E: Element>(device: &Device, len: usize) -> Buffer<E> {
    let mut buffer = device.zeros(len);
    if !device.is_cpu() {
        device.fill_normal(buffer.view_mut(), len as u64, 0, 0.5);
        return buffer;
    }
    let pattern: Vec<E> = (0..len).map(|index| E::narrow(((index % 251) as f32 - 125.0) / 125.0)).collect();
    device.write(buffer.view_mut(), &pattern);
    buffer
}

pub(super) const fn precision_of<E: Element>() -> &'static str {
    if size_of::<E>() == 4 { "fp32" } else { "bf16" }
}

/// The three products of linear layers.
pub(super) fn products<E: Element>(device: &Device) -> Vec<Sample> {
    Sizes::of(device).linears.iter().flat_map(|shape| linear::<E>(device, *shape)).collect()
}

fn linear<E: Element>(device: &Device, shape: [usize; 3]) -> [Sample; 3] {
    let [rows, outputs, inputs] = shape;
    let x: Buffer<E> = filled(device, rows * inputs);
    let weight: Buffer<E> = filled(device, outputs * inputs);
    let mut out: Buffer<E> = filled(device, rows * outputs);
    let mut d_x: Buffer<E> = filled(device, rows * inputs);
    let mut d_weight: Buffer<f32> = filled(device, outputs * inputs);
    let input = || x.view().matrix(rows, inputs);
    let sample = |operator, seconds| Sample {
        operator,
        precision: precision_of::<E>(),
        size: Size::Linear(shape),
        seconds,
        amount: Amount::Flops(2.0 * (rows * outputs * inputs) as f64),
    };
    let forward = seconds(device, || {
        device.linear(input(), weight.view(), None, None, out.view_mut().matrix(rows, outputs))
    });
    let d_out = || out.view().matrix(rows, outputs);
    let of_inputs = seconds(device, || {
        let d_x = d_x.view_mut().matrix(rows, inputs);
        device.linear_backward_input(d_out(), weight.view(), Accumulate::Replace, d_x);
    });
    let of_weights =
        seconds(device, || device.linear_backward_weight(d_out(), input(), d_weight.view_mut(), None));
    [
        sample("products", forward),
        sample("input_gradients", of_inputs),
        sample("weight_gradients", of_weights),
    ]
}

/// Causal attention, in short and in long sequences.
pub(super) fn attention<E: Element>(device: &Device) -> Vec<Sample> {
    Sizes::of(device).sequences.iter().flat_map(|sequence| attention_over::<E>(device, *sequence)).collect()
}

fn attention_over<E: Element>(device: &Device, sequence: usize) -> [Sample; 2] {
    let &Sizes { attention_rows: rows, heads, kv_heads, head_dim, .. } = Sizes::of(device);
    let (queries, keys, scale) = (sequence, sequence, 1.0 / (head_dim as f32).sqrt());
    let shape = AttentionShape { queries, keys, heads, kv_heads, head_dim, scale, cap: 0.0 };
    let (columns, attended) = (shape.columns(), shape.heads * shape.head_dim);
    let qkv: Buffer<E> = filled(device, rows * columns);
    let first_keys = device.zeros::<u32>(rows);
    let mut out: Buffer<E> = filled(device, rows * attended);
    let d_out: Buffer<E> = filled(device, rows * attended);
    let mut d_qkv: Buffer<E> = filled(device, rows * columns);
    let mut log_sums = device.zeros::<f32>(rows * shape.heads);
    let mean_keys = (sequence + 1) as f64 / 2.0;
    let sample = |operator, factor: f64, seconds| Sample {
        operator,
        precision: precision_of::<E>(),
        size: Size::Sequence(sequence),
        seconds,
        amount: Amount::Flops(factor * (rows * attended) as f64 * mean_keys),
    };
    let qkv = Qkv::columns(&shape, qkv.view().matrix(rows, columns));
    let seen = VisibleKeys { first_keys: first_keys.view(), positions: None };
    let forward = seconds(device, || {
        let out = out.view_mut().matrix(rows, attended);
        device.attention(&shape, qkv, seen, out, log_sums.view_mut());
    });
    let backward = seconds(device, || {
        device.attention_backward(
            &shape,
            qkv,
            seen,
            out.view().matrix(rows, attended),
            log_sums.view(),
            d_out.view().matrix(rows, attended),
            Qkv::columns_mut(&shape, d_qkv.view_mut().matrix(rows, columns)),
        );
    });
    [sample("attention", 4.0, forward), sample("attention_backward", 10.0, backward)]
}

/// Norm, activation, its way back and an addition, as often as a layer has them, over buffers of about `set` bytes.
pub(super) fn streams<E: Element>(device: &Device, set: f64) -> Sample {
    let &Sizes { hidden, width, .. } = Sizes::of(device);
    let element = size_of::<E>();
    let per_row = element * (3 * hidden + 6 * width);
    let rows = ((set / per_row as f64) as usize).max(1);
    let x: Buffer<E> = filled(device, rows * hidden);
    let weight: Buffer<E> = filled(device, hidden);
    let mut normed: Buffer<E> = filled(device, rows * hidden);
    let mut inverses = device.zeros::<f32>(rows);
    let gate_up: Buffer<E> = filled(device, rows * 2 * width);
    let mut activated: Buffer<E> = filled(device, rows * width);
    let mut d_gate_up: Buffer<E> = filled(device, rows * 2 * width);
    let seconds = seconds(device, || {
        let matrix = x.view().matrix(rows, hidden);
        let out = normed.view_mut().matrix(rows, hidden);
        device.rms_norm(matrix, weight.view(), 1e-5, out, inverses.view_mut());
        device.add(x.view(), normed.view_mut());
        let before = || gate_up.view().matrix(rows, 2 * width);
        device.swiglu(before(), activated.view_mut().matrix(rows, width));
        let d_out = activated.view().matrix(rows, width);
        device.swiglu_backward(before(), d_out, d_gate_up.view_mut().matrix(rows, 2 * width));
    });
    let bytes = (element * rows * (2 * hidden + 3 * hidden + 3 * width + 5 * width)) as f64;
    Sample {
        operator: "stream",
        precision: precision_of::<E>(),
        size: Size::Set((rows * per_row) as f64),
        seconds,
        amount: Amount::Bytes(bytes),
    }
}

/// A copy of what no cache holds.
pub(super) fn copy(device: &Device) -> Sample {
    let len = Sizes::of(device).copied;
    let from: Buffer<f32> = filled(device, len);
    let mut to: Buffer<f32> = filled(device, len);
    let seconds = seconds(device, || device.copy(from.view(), to.view_mut()));
    wide("copy", seconds, 8.0 * len as f64, 8.0 * len as f64)
}

/// Losses and gradients of as many logits as the head makes at once.
pub(super) fn losses(device: &Device) -> Sample {
    let [rows, vocabulary] = Sizes::of(device).logits;
    let mut logits: Buffer<f32> = filled(device, rows * vocabulary);
    let targets = device.zeros::<u32>(rows);
    let mut losses = device.zeros::<f32>(rows);
    let seconds = seconds(device, || {
        let logits = logits.view_mut().matrix(rows, vocabulary);
        device.cross_entropy(logits, targets.view(), Some(1.0), losses.view_mut());
    });
    let bytes = (4 * rows * vocabulary) as f64;
    wide("losses", seconds, bytes, bytes)
}

/// AdamW, without a rounded copy.
pub(super) fn optimizer(device: &Device) -> Sample {
    let len = Sizes::of(device).weights;
    let [mut weights, gradient, mut first, mut second] = [(); 4].map(|()| filled::<f32>(device, len));
    device.fill(second.view_mut(), 1.0);
    let mut step = AdamW {
        learning_rate: 1e-3,
        beta1: 0.9,
        beta2: 0.95,
        epsilon: 1e-8,
        weight_decay: 0.1,
        step: 0,
        gradient_scale: 1.0,
    };
    let seconds = seconds(device, || {
        step.step += 1;
        let (first, second) = (first.view_mut(), second.view_mut());
        device.adamw(&step, weights.view_mut(), gradient.view(), first, second, None);
    });
    wide("optimizer", seconds, 28.0 * len as f64, 16.0 * len as f64)
}

/// A product so small that its time is that of sharing it out.
pub(super) fn operator(device: &Device) -> f64 {
    const SIDE: usize = 16;
    let [x, weight, mut out] = [(); 3].map(|()| filled::<f32>(device, SIDE * SIDE));
    seconds(device, || {
        let out = out.view_mut().matrix(SIDE, SIDE);
        device.linear(x.view().matrix(SIDE, SIDE), weight.view(), None, None, out);
    })
}

fn wide(operator: &'static str, seconds: f64, bytes: f64, set: f64) -> Sample {
    Sample { operator, precision: "fp32", size: Size::Set(set), seconds, amount: Amount::Bytes(bytes) }
}
