//! The measurements: operators of `run/kernels` on sizes as small transformers have them, each timed
//! many times.

use std::time::{Duration, Instant};

use bedplate_kernels::{AdamW, AttentionShape, Buffer, Device, Element, Put, Qkv, Seen};

/// How long an operator is repeated.
const SPAN: Duration = Duration::from_millis(300);
/// Repetitions at least, unless one of them takes longer than the span.
const LEAST: usize = 3;

/// Rows, outputs and inputs of linear layers: projections and MLPs of widths 512 and 768, a head, and a small one.
pub(super) const LINEARS: [[usize; 3]; 6] = [
    [2048, 1536, 512],
    [2048, 512, 512],
    [2048, 512, 1408],
    [2048, 4096, 768],
    [128, 16_384, 512],
    [512, 128, 128],
];

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
fn seconds(mut work: impl FnMut()) -> f64 {
    let mut time = || {
        let began = Instant::now();
        work();
        began.elapsed()
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
    let pattern: Vec<E> = (0..len).map(|index| E::narrow(((index % 251) as f32 - 125.0) / 125.0)).collect();
    device.write(buffer.view_mut(), &pattern);
    buffer
}

pub(super) const fn precision_of<E: Element>() -> &'static str {
    if size_of::<E>() == 4 { "fp32" } else { "bf16" }
}

/// The three products of linear layers.
pub(super) fn products<E: Element>(device: &Device) -> Vec<Sample> {
    LINEARS.iter().flat_map(|shape| linear::<E>(device, *shape)).collect()
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
    let forward =
        seconds(|| device.linear(input(), weight.view(), None, None, out.view_mut().matrix(rows, outputs)));
    let d_out = || out.view().matrix(rows, outputs);
    let of_inputs = seconds(|| {
        let d_x = d_x.view_mut().matrix(rows, inputs);
        device.linear_backward_input(d_out(), weight.view(), Put::Replace, d_x);
    });
    let of_weights = seconds(|| device.linear_backward_weight(d_out(), input(), d_weight.view_mut(), None));
    [
        sample("products", forward),
        sample("input_gradients", of_inputs),
        sample("weight_gradients", of_weights),
    ]
}

/// Causal attention of eight heads of 64 over 2048 rows: in short and in long sequences.
pub(super) fn attention<E: Element>(device: &Device) -> Vec<Sample> {
    [128, 1024].iter().flat_map(|sequence| attention_over::<E>(device, *sequence)).collect()
}

fn attention_over<E: Element>(device: &Device, sequence: usize) -> [Sample; 2] {
    const ROWS: usize = 2048;
    let (queries, keys) = (sequence, sequence);
    let shape = AttentionShape { queries, keys, heads: 8, kv_heads: 4, head_dim: 64, scale: 0.125 };
    let (columns, attended) = (shape.columns(), shape.heads * shape.head_dim);
    let qkv: Buffer<E> = filled(device, ROWS * columns);
    let first_keys = device.zeros::<u32>(ROWS);
    let mut out: Buffer<E> = filled(device, ROWS * attended);
    let d_out: Buffer<E> = filled(device, ROWS * attended);
    let mut d_qkv: Buffer<E> = filled(device, ROWS * columns);
    let mut log_sums = device.zeros::<f32>(ROWS * shape.heads);
    let mean_keys = (sequence + 1) as f64 / 2.0;
    let sample = |operator, factor: f64, seconds| Sample {
        operator,
        precision: precision_of::<E>(),
        size: Size::Sequence(sequence),
        seconds,
        amount: Amount::Flops(factor * (ROWS * attended) as f64 * mean_keys),
    };
    let qkv = Qkv::columns(&shape, qkv.view().matrix(ROWS, columns));
    let seen = Seen { first_keys: first_keys.view(), positions: None };
    let forward = seconds(|| {
        let out = out.view_mut().matrix(ROWS, attended);
        device.attention(&shape, qkv, seen, out, log_sums.view_mut());
    });
    let backward = seconds(|| {
        device.attention_backward(
            &shape,
            qkv,
            seen,
            out.view().matrix(ROWS, attended),
            log_sums.view(),
            d_out.view().matrix(ROWS, attended),
            Qkv::columns_mut(&shape, d_qkv.view_mut().matrix(ROWS, columns)),
        );
    });
    [sample("attention", 4.0, forward), sample("attention_backward", 10.0, backward)]
}

/// Norm, activation, its way back and an addition, as often as a layer has them, over buffers of about `set` bytes.
pub(super) fn streams<E: Element>(device: &Device, set: f64) -> Sample {
    const HIDDEN: usize = 512;
    const WIDTH: usize = 1408;
    let element = size_of::<E>();
    let per_row = element * (3 * HIDDEN + 6 * WIDTH);
    let rows = ((set / per_row as f64) as usize).max(1);
    let x: Buffer<E> = filled(device, rows * HIDDEN);
    let weight: Buffer<E> = filled(device, HIDDEN);
    let mut normed: Buffer<E> = filled(device, rows * HIDDEN);
    let mut inverses = device.zeros::<f32>(rows);
    let gate_up: Buffer<E> = filled(device, rows * 2 * WIDTH);
    let mut activated: Buffer<E> = filled(device, rows * WIDTH);
    let mut d_gate_up: Buffer<E> = filled(device, rows * 2 * WIDTH);
    let seconds = seconds(|| {
        let matrix = x.view().matrix(rows, HIDDEN);
        let out = normed.view_mut().matrix(rows, HIDDEN);
        device.rms_norm(matrix, weight.view(), 1e-5, out, inverses.view_mut());
        device.add(x.view(), normed.view_mut());
        let before = || gate_up.view().matrix(rows, 2 * WIDTH);
        device.swiglu(before(), activated.view_mut().matrix(rows, WIDTH));
        let d_out = activated.view().matrix(rows, WIDTH);
        device.swiglu_backward(before(), d_out, d_gate_up.view_mut().matrix(rows, 2 * WIDTH));
    });
    let bytes = (element * rows * (2 * HIDDEN + 3 * HIDDEN + 3 * WIDTH + 5 * WIDTH)) as f64;
    Sample {
        operator: "stream",
        precision: precision_of::<E>(),
        size: Size::Set((rows * per_row) as f64),
        seconds,
        amount: Amount::Bytes(bytes),
    }
}

/// A copy of 256 MB.
pub(super) fn copy(device: &Device) -> Sample {
    const LEN: usize = 64 << 20;
    let from: Buffer<f32> = filled(device, LEN);
    let mut to: Buffer<f32> = filled(device, LEN);
    let seconds = seconds(|| device.copy(from.view(), to.view_mut()));
    wide("copy", seconds, 8.0 * LEN as f64, 8.0 * LEN as f64)
}

/// Losses and gradients of 16 MB of logits, which is what the head makes at once.
pub(super) fn losses(device: &Device) -> Sample {
    const ROWS: usize = 128;
    const VOCABULARY: usize = 32_768;
    let mut logits: Buffer<f32> = filled(device, ROWS * VOCABULARY);
    let targets = device.zeros::<u32>(ROWS);
    let mut losses = device.zeros::<f32>(ROWS);
    let seconds = seconds(|| {
        let logits = logits.view_mut().matrix(ROWS, VOCABULARY);
        device.cross_entropy(logits, targets.view(), Some(1.0), losses.view_mut());
    });
    let bytes = (4 * ROWS * VOCABULARY) as f64;
    wide("losses", seconds, bytes, bytes)
}

/// AdamW over sixteen million weights, without a rounded copy.
pub(super) fn optimizer(device: &Device) -> Sample {
    const LEN: usize = 16 << 20;
    let [mut weights, gradient, mut first, mut second] = [(); 4].map(|()| filled::<f32>(device, LEN));
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
    let seconds = seconds(|| {
        step.step += 1;
        let (first, second) = (first.view_mut(), second.view_mut());
        device.adamw(&step, weights.view_mut(), gradient.view(), first, second, None);
    });
    wide("optimizer", seconds, 28.0 * LEN as f64, 16.0 * LEN as f64)
}

/// A product so small that its time is that of sharing it out.
pub(super) fn operator(device: &Device) -> f64 {
    const SIDE: usize = 16;
    let [x, weight, mut out] = [(); 3].map(|()| filled::<f32>(device, SIDE * SIDE));
    seconds(|| {
        let out = out.view_mut().matrix(SIDE, SIDE);
        device.linear(x.view().matrix(SIDE, SIDE), weight.view(), None, None, out);
    })
}

fn wide(operator: &'static str, seconds: f64, bytes: f64, set: f64) -> Sample {
    Sample { operator, precision: "fp32", size: Size::Set(set), seconds, amount: Amount::Bytes(bytes) }
}
