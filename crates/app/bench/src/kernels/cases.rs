//! The operators at the sizes of a Llama block: width 512, 8 heads, 1408 inner, 4 sequences of 512 tokens.

use bedplate_kernels::{
    Accumulate, AdamW, AttentionShape, Buffer, BufferValue, CudaError, Device, Element, Gelu, HeadGradients,
    Heads, Qkv, Rotary, Turn, VisibleKeys,
};

use super::models;

pub(super) const ROWS: usize = 2048;
pub(super) const SEQUENCE: usize = 512;
pub(super) const HIDDEN: usize = 512;
pub(super) const INNER: usize = 1408;
const HEADS: usize = 8;
const HEAD_DIM: usize = 64;
const VOCAB: usize = 32_000;
const PARAMETERS: usize = 25_000_000;

/// Which half of an operator runs. `Both` is forward and backward.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Pass {
    Forward,
    Both,
}

/// What a pass does, by the limit that counts.
#[derive(Clone, Copy)]
pub(super) enum Work {
    Flops {
        both: f64,
    },
    /// Bytes that must be read and written at least.
    Bytes {
        both: f64,
    },
}

/// Runs one half of an operator, or both.
type Runner<'a> = Box<dyn FnMut(&Device, Pass) + 'a>;

pub(super) struct Case<'a> {
    pub(super) name: &'static str,
    pub(super) work: Work,
    pub(super) run: Runner<'a>,
}

/// Every operator in a format, then the block and the models.
pub(super) fn all<E: bedplate_train::Trained>(
    device: &Device,
    open: &dyn Fn() -> Result<Device, CudaError>,
) -> Result<Vec<Case<'static>>, CudaError> {
    let mut cases = vec![
        linear::<E>(device),
        attention::<E>(device),
        rms_norm::<E>(device),
        layer_norm::<E>(device),
        rotary::<E>(device),
        swiglu::<E>(device),
        gelu::<E>(device),
        embedding::<E>(device),
        cross_entropy::<E>(device),
        experts::<E>(device),
    ];
    if E::NAME == "f32" {
        cases.push(adamw(device));
    }
    cases.extend(models::all::<E>(device, open)?);
    Ok(cases)
}

/// Numbers between -1 and 1 that are the same in every run.
pub(super) fn random<E: Element>(device: &Device, len: usize, seed: u32) -> Buffer<E> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    let values: Vec<E> = (0..len).map(|_| E::narrow(next())).collect();
    filled(device, &values)
}

fn filled<V: BufferValue>(device: &Device, values: &[V]) -> Buffer<V> {
    let mut buffer = device.zeros(values.len());
    device.write(buffer.view_mut(), values);
    buffer
}

fn size<E>() -> f64 {
    size_of::<E>() as f64
}

/// Bytes of so many passes over the activations of all rows.
fn activations<E>(columns: usize, passes: f64) -> Work {
    Work::Bytes { both: passes * size::<E>() * (ROWS * columns) as f64 }
}

fn linear<E: Element>(device: &Device) -> Case<'static> {
    let x = random::<E>(device, ROWS * HIDDEN, 1);
    let weight = random::<E>(device, 2 * INNER * HIDDEN, 2);
    let d_out = random::<E>(device, ROWS * 2 * INNER, 3);
    let (mut out, mut d_x) = (device.zeros::<E>(ROWS * 2 * INNER), device.zeros::<E>(ROWS * HIDDEN));
    let mut d_weight = device.zeros(2 * INNER * HIDDEN);
    Case {
        name: "linear",
        work: Work::Flops { both: 6.0 * (ROWS * HIDDEN * 2 * INNER) as f64 },
        run: Box::new(move |device, pass| {
            let x = x.view().matrix(ROWS, HIDDEN);
            device.linear(x, weight.view(), None, None, out.view_mut().matrix(ROWS, 2 * INNER));
            if pass == Pass::Both {
                let d_out = d_out.view().matrix(ROWS, 2 * INNER);
                let d_x = d_x.view_mut().matrix(ROWS, HIDDEN);
                device.linear_backward_input(d_out, weight.view(), Accumulate::Replace, d_x);
                device.linear_backward_weight(d_out, x, d_weight.view_mut(), None);
            }
        }),
    }
}

fn attention<E: Element>(device: &Device) -> Case<'static> {
    let shape = AttentionShape {
        queries: SEQUENCE,
        keys: SEQUENCE,
        heads: HEADS,
        kv_heads: HEADS,
        head_dim: HEAD_DIM,
        scale: (HEAD_DIM as f32).sqrt().recip(),
        cap: 0.0,
    };
    let qkv = random::<E>(device, ROWS * shape.columns(), 1);
    let d_out = random::<E>(device, ROWS * shape.attended(), 2);
    let first_keys = device.zeros::<u32>(ROWS);
    let mut out = device.zeros::<E>(ROWS * shape.attended());
    let mut d_qkv = device.zeros::<E>(ROWS * shape.columns());
    let mut log_sums = device.zeros(ROWS * HEADS);
    // Two products forward, five backward, over half of the square.
    let flops = 7.0 * (ROWS * SEQUENCE * HEADS * HEAD_DIM) as f64;
    Case {
        name: "attention",
        work: Work::Flops { both: flops },
        run: Box::new(move |device, pass| {
            let qkv = Qkv::columns(&shape, qkv.view().matrix(ROWS, shape.columns()));
            let seen = VisibleKeys { first_keys: first_keys.view(), positions: None };
            let to = out.view_mut().matrix(ROWS, shape.attended());
            device.attention(&shape, qkv, seen, to, log_sums.view_mut());
            if pass == Pass::Both {
                let out = out.view().matrix(ROWS, shape.attended());
                let d_out = d_out.view().matrix(ROWS, shape.attended());
                let d_qkv = Qkv::columns_mut(&shape, d_qkv.view_mut().matrix(ROWS, shape.columns()));
                device.attention_backward(&shape, qkv, seen, out, log_sums.view(), d_out, d_qkv);
            }
        }),
    }
}

fn rms_norm<E: Element>(device: &Device) -> Case<'static> {
    let (x, d_out) = (random::<E>(device, ROWS * HIDDEN, 1), random::<E>(device, ROWS * HIDDEN, 2));
    let weight = random::<E>(device, HIDDEN, 3);
    let (mut out, mut d_x) = (device.zeros::<E>(ROWS * HIDDEN), device.zeros::<E>(ROWS * HIDDEN));
    let (mut inverses, mut d_weight) = (device.zeros(ROWS), device.zeros(HIDDEN));
    Case {
        name: "rms_norm",
        work: activations::<E>(HIDDEN, 5.0),
        run: Box::new(move |device, pass| {
            let x = x.view().matrix(ROWS, HIDDEN);
            let to = out.view_mut().matrix(ROWS, HIDDEN);
            device.rms_norm(x, weight.view(), 1e-6, to, inverses.view_mut());
            if pass == Pass::Both {
                let (d_out, d_x) = (d_out.view().matrix(ROWS, HIDDEN), d_x.view_mut().matrix(ROWS, HIDDEN));
                let d_weight = Some(d_weight.view_mut());
                device.rms_norm_backward(
                    d_out,
                    x,
                    weight.view(),
                    inverses.view(),
                    Accumulate::Replace,
                    d_x,
                    d_weight,
                );
            }
        }),
    }
}

fn layer_norm<E: Element>(device: &Device) -> Case<'static> {
    let (x, d_out) = (random::<E>(device, ROWS * HIDDEN, 1), random::<E>(device, ROWS * HIDDEN, 2));
    let (weight, bias) = (random::<E>(device, HIDDEN, 3), random::<E>(device, HIDDEN, 4));
    let (mut out, mut d_x) = (device.zeros::<E>(ROWS * HIDDEN), device.zeros::<E>(ROWS * HIDDEN));
    let (mut statistics, mut d_weight) = (device.zeros(2 * ROWS), device.zeros(HIDDEN));
    let mut d_bias = device.zeros(HIDDEN);
    Case {
        name: "layer_norm",
        work: activations::<E>(HIDDEN, 5.0),
        run: Box::new(move |device, pass| {
            let (x, weight) = (x.view().matrix(ROWS, HIDDEN), weight.view());
            let to = out.view_mut().matrix(ROWS, HIDDEN);
            device.layer_norm(x, weight, Some(bias.view()), 1e-5, to, statistics.view_mut());
            if pass == Pass::Both {
                let (d_out, d_x) = (d_out.view().matrix(ROWS, HIDDEN), d_x.view_mut().matrix(ROWS, HIDDEN));
                let (d_weight, d_bias) = (Some(d_weight.view_mut()), Some(d_bias.view_mut()));
                let statistics = statistics.view();
                device.layer_norm_backward(
                    d_out,
                    x,
                    weight,
                    statistics,
                    Accumulate::Replace,
                    d_x,
                    d_weight,
                    d_bias,
                );
            }
        }),
    }
}

fn rotary<E: Element>(device: &Device) -> Case<'static> {
    let columns = 2 * HEADS * HEAD_DIM;
    let heads = Heads { first: 0, count: 2 * HEADS, dim: HEAD_DIM };
    let frequencies: Vec<f64> =
        (0..HEAD_DIM / 2).map(|pair| 1e4f64.powf(-2.0 * pair as f64 / HEAD_DIM as f64)).collect();
    let table = Rotary::new(device, HEAD_DIM, &frequencies, SEQUENCE, 1.0);
    let positions: Vec<u32> = (0..ROWS).map(|row| (row % SEQUENCE) as u32).collect();
    let positions = filled(device, &positions);
    let mut x = random::<E>(device, ROWS * columns, 1);
    Case {
        name: "rotary",
        work: activations::<E>(columns, 4.0),
        run: Box::new(move |device, pass| {
            let mut turn = |turn| {
                device.rotate(&heads, positions.view(), &table, turn, x.view_mut().matrix(ROWS, columns));
            };
            turn(Turn::Forward);
            if pass == Pass::Both {
                turn(Turn::Backward);
            }
        }),
    }
}

fn swiglu<E: Element>(device: &Device) -> Case<'static> {
    let gate_up = random::<E>(device, ROWS * 2 * INNER, 1);
    let d_out = random::<E>(device, ROWS * INNER, 2);
    let (mut out, mut d_gate_up) = (device.zeros::<E>(ROWS * INNER), device.zeros::<E>(ROWS * 2 * INNER));
    Case {
        name: "swiglu",
        work: activations::<E>(INNER, 8.0),
        run: Box::new(move |device, pass| {
            let gate_up = gate_up.view().matrix(ROWS, 2 * INNER);
            device.swiglu(gate_up, out.view_mut().matrix(ROWS, INNER));
            if pass == Pass::Both {
                let d_gate_up = d_gate_up.view_mut().matrix(ROWS, 2 * INNER);
                device.swiglu_backward(gate_up, d_out.view().matrix(ROWS, INNER), d_gate_up);
            }
        }),
    }
}

fn gelu<E: Element>(device: &Device) -> Case<'static> {
    let (x, d_out) = (random::<E>(device, ROWS * 2048, 1), random::<E>(device, ROWS * 2048, 2));
    let (mut out, mut d_x) = (device.zeros::<E>(ROWS * 2048), device.zeros::<E>(ROWS * 2048));
    Case {
        name: "gelu",
        work: activations::<E>(2048, 5.0),
        run: Box::new(move |device, pass| {
            let x = x.view().matrix(ROWS, 2048);
            device.gelu(Gelu::Tanh, x, out.view_mut().matrix(ROWS, 2048));
            if pass == Pass::Both {
                let d_out = d_out.view().matrix(ROWS, 2048);
                device.gelu_backward(Gelu::Tanh, x, d_out, d_x.view_mut().matrix(ROWS, 2048));
            }
        }),
    }
}

fn embedding<E: Element>(device: &Device) -> Case<'static> {
    let table = random::<E>(device, VOCAB * HIDDEN, 1);
    let d_out = random::<E>(device, ROWS * HIDDEN, 2);
    let tokens: Vec<u32> = (0..ROWS).map(|row| (row * 7919 % VOCAB) as u32).collect();
    let tokens = filled(device, &tokens);
    let mut out = device.zeros::<E>(ROWS * HIDDEN);
    let mut d_table = device.zeros::<f32>(VOCAB * HIDDEN);
    Case {
        name: "embedding",
        work: Work::Bytes { both: (ROWS * HIDDEN) as f64 * (3.0 * size::<E>() + 8.0) },
        run: Box::new(move |device, pass| {
            let to = out.view_mut().matrix(ROWS, HIDDEN);
            device.embedding(tokens.view(), table.view().matrix(VOCAB, HIDDEN), Accumulate::Replace, to);
            if pass == Pass::Both {
                let d_table = d_table.view_mut().matrix(VOCAB, HIDDEN);
                device.embedding_backward(tokens.view(), d_out.view().matrix(ROWS, HIDDEN), d_table);
            }
        }),
    }
}

fn cross_entropy<E: Element>(device: &Device) -> Case<'static> {
    let (x, weight) = (random::<E>(device, ROWS * HIDDEN, 1), random::<E>(device, VOCAB * HIDDEN, 2));
    let targets: Vec<u32> = (0..ROWS).map(|row| (row * 104_729 % VOCAB) as u32).collect();
    let targets = filled(device, &targets);
    let (mut losses, mut logits) = (device.zeros(ROWS), device.zeros(128 * VOCAB));
    let (mut d_x, mut d_weight) = (device.zeros::<E>(ROWS * HIDDEN), device.zeros(VOCAB * HIDDEN));
    Case {
        name: "head_and_loss",
        work: Work::Flops { both: 6.0 * (ROWS * HIDDEN * VOCAB) as f64 },
        run: Box::new(move |device, pass| {
            let x = x.view().matrix(ROWS, HIDDEN);
            let gradients = (pass == Pass::Both).then(|| HeadGradients {
                d_x: d_x.view_mut().matrix(ROWS, HIDDEN),
                d_weight: Some(d_weight.view_mut()),
            });
            let (losses, logits) = (losses.view_mut(), logits.view_mut());
            device.linear_cross_entropy(x, weight.view(), targets.view(), 1.0, losses, gradients, logits);
        }),
    }
}

/// The products of 8 experts of which each token has chosen 2, all equally busy.
fn experts<E: Element>(device: &Device) -> Case<'static> {
    const EXPERTS: usize = 8;
    let slots = 2 * ROWS;
    let x = random::<E>(device, slots * HIDDEN, 1);
    let weights = random::<E>(device, EXPERTS * INNER * HIDDEN, 2);
    let d_out = random::<E>(device, slots * INNER, 3);
    let offsets: Vec<u32> = (0..=EXPERTS).map(|expert| (expert * slots / EXPERTS) as u32).collect();
    let offsets = filled(device, &offsets);
    let (mut out, mut d_x) = (device.zeros::<E>(slots * INNER), device.zeros::<E>(slots * HIDDEN));
    let mut d_weights = device.zeros(EXPERTS * INNER * HIDDEN);
    Case {
        name: "experts",
        work: Work::Flops { both: 6.0 * (slots * HIDDEN * INNER) as f64 },
        run: Box::new(move |device, pass| {
            let (x, offsets) = (x.view().matrix(slots, HIDDEN), offsets.view());
            device.expert_linear(x, offsets, weights.view(), out.view_mut().matrix(slots, INNER));
            if pass == Pass::Both {
                let d_out = d_out.view().matrix(slots, INNER);
                let d_x = d_x.view_mut().matrix(slots, HIDDEN);
                device.expert_linear_backward_input(d_out, offsets, weights.view(), d_x);
                device.expert_linear_backward_weight(d_out, x, offsets, d_weights.view_mut());
            }
        }),
    }
}

/// One step over 25 million parameters; it has no backward pass, so both columns show the same.
fn adamw(device: &Device) -> Case<'static> {
    let mut weights = random::<f32>(device, PARAMETERS, 1);
    let gradient = random::<f32>(device, PARAMETERS, 2);
    let (mut first, mut second) = (device.zeros(PARAMETERS), device.zeros(PARAMETERS));
    let step = AdamW {
        learning_rate: 1e-4,
        beta1: 0.9,
        beta2: 0.95,
        epsilon: 1e-8,
        weight_decay: 0.1,
        step: 10,
        gradient_scale: 1.0,
    };
    Case {
        name: "adamw",
        work: Work::Bytes { both: 28.0 * PARAMETERS as f64 },
        run: Box::new(move |device, _| {
            let (weights, first, second) = (weights.view_mut(), first.view_mut(), second.view_mut());
            device.adamw(&step, weights, gradient.view(), first, second, None);
        }),
    }
}
