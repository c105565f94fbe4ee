//! The slow, obvious definitions that operators are tested against, and the devices to test them on.

use crate::cpu::{Cpu, Level, has_tiles};
use crate::{AttentionShape, Device, Element};

/// One device for each level that this processor has, with and without tiles, each with another number of threads, and one
/// whose memory lies apart.
pub(crate) fn devices() -> Vec<Device> {
    let levels = [Level::Portable, Level::Avx2, Level::Avx512];
    let levels = levels.into_iter().filter(|level| *level <= Level::detect()).enumerate();
    let mut devices: Vec<Device> =
        levels.map(|(index, level)| Device::of(Cpu::at(level, false, index + 1))).collect();
    if has_tiles() {
        devices.push(Device::of(Cpu::at(Level::Avx512, true, 2)));
    }
    devices.push(Device::apart(2));
    devices
}

/// Numbers between -1 and 1 that a seed decides, as the format holds them.
pub(crate) fn random<E: Element>(seed: u64, len: usize) -> Vec<E> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        E::narrow((state >> 40) as f32 / (1u64 << 23) as f32 - 1.0)
    };
    (0..len).map(|_| next()).collect()
}

/// The numbers and how they lie.
#[derive(Clone, Copy)]
pub(crate) struct Grid<'a, E> {
    pub(crate) values: &'a [E],
    pub(crate) stride: usize,
}

impl<E: Element> Grid<'_, E> {
    pub(crate) fn at(&self, row: usize, column: usize) -> f64 {
        f64::from(self.values[row * self.stride + column].widen())
    }
}

/// `x W^T`
pub(crate) fn linear<X: Element, W: Element>(
    x: Grid<'_, X>,
    weight: Grid<'_, W>,
    (rows, inputs, outputs): (usize, usize, usize),
) -> Vec<f64> {
    let sum = |row, output| (0..inputs).map(|input| x.at(row, input) * weight.at(output, input)).sum();
    (0..rows * outputs).map(|index| sum(index / outputs, index % outputs)).collect()
}

/// `d_out W`
pub(crate) fn linear_backward_input<D: Element, W: Element>(
    d_out: Grid<'_, D>,
    weight: Grid<'_, W>,
    (rows, inputs, outputs): (usize, usize, usize),
) -> Vec<f64> {
    let sum = |row, input| (0..outputs).map(|output| d_out.at(row, output) * weight.at(output, input)).sum();
    (0..rows * inputs).map(|index| sum(index / inputs, index % inputs)).collect()
}

/// `d_out^T x`
pub(crate) fn linear_backward_weight<D: Element, X: Element>(
    d_out: Grid<'_, D>,
    x: Grid<'_, X>,
    (rows, inputs, outputs): (usize, usize, usize),
) -> Vec<f64> {
    let sum = |output, input| (0..rows).map(|row| d_out.at(row, output) * x.at(row, input)).sum();
    (0..outputs * inputs).map(|index| sum(index / inputs, index % inputs)).collect()
}

/// What attention gives, by its definition: every score, every exponential, one by one.
pub(crate) struct Attention {
    pub(crate) out: Vec<f64>,
    pub(crate) log_sums: Vec<f64>,
}

pub(crate) fn attention<E: Element>(
    shape: &AttentionShape,
    qkv: Grid<'_, E>,
    first_keys: &[u32],
) -> Attention {
    let AttentionShape { heads, head_dim, .. } = *shape;
    let rows = first_keys.len();
    let mut result = Attention { out: vec![0.0; rows * heads * head_dim], log_sums: vec![0.0; rows * heads] };
    for row in 0..rows {
        for head in 0..heads {
            let weights = weights(shape, qkv, first_keys, row, head);
            result.log_sums[row * heads + head] = weights.log_sum;
            for dim in 0..head_dim {
                result.out[(row * heads + head) * head_dim + dim] =
                    weights.of_keys().map(|(key, weight)| weight * weights.value(shape, qkv, key, dim)).sum();
            }
        }
    }
    result
}

/// The gradient of queries, keys and values.
pub(crate) fn attention_backward<E: Element>(
    shape: &AttentionShape,
    qkv: Grid<'_, E>,
    first_keys: &[u32],
    d_out: Grid<'_, E>,
) -> Vec<f64> {
    let AttentionShape { heads, kv_heads, head_dim, scale, .. } = *shape;
    let (rows, columns) = (first_keys.len(), shape.columns());
    let mut d_qkv = vec![0.0; rows * columns];
    for row in 0..rows {
        for head in 0..heads {
            let weights = weights(shape, qkv, first_keys, row, head);
            let d_weight = |key: usize| -> f64 {
                let d = |dim| d_out.at(row, head * head_dim + dim) * weights.value(shape, qkv, key, dim);
                (0..head_dim).map(d).sum()
            };
            let mean: f64 = weights.of_keys().map(|(key, weight)| weight * d_weight(key)).sum();
            for (key, weight) in weights.of_keys() {
                let d_score = weight * (d_weight(key) - mean) * f64::from(scale);
                for dim in 0..head_dim {
                    let query_at = head * head_dim + dim;
                    let key_at = (heads + weights.kv) * head_dim + dim;
                    let value_at = (heads + kv_heads + weights.kv) * head_dim + dim;
                    d_qkv[row * columns + query_at] += d_score * qkv.at(key, key_at);
                    d_qkv[key * columns + key_at] += d_score * qkv.at(row, query_at);
                    d_qkv[key * columns + value_at] += weight * d_out.at(row, query_at);
                }
            }
        }
    }
    d_qkv
}

/// How much a query looks at each key that it sees.
struct Weights {
    first: usize,
    kv: usize,
    weights: Vec<f64>,
    log_sum: f64,
}

impl Weights {
    fn of_keys(&self) -> impl Iterator<Item = (usize, f64)> {
        self.weights.iter().enumerate().map(|(index, weight)| (self.first + index, *weight))
    }

    fn value<E: Element>(&self, shape: &AttentionShape, qkv: Grid<'_, E>, key: usize, dim: usize) -> f64 {
        qkv.at(key, (shape.heads + shape.kv_heads + self.kv) * shape.head_dim + dim)
    }
}

fn weights<E: Element>(
    shape: &AttentionShape,
    qkv: Grid<'_, E>,
    first_keys: &[u32],
    row: usize,
    head: usize,
) -> Weights {
    let kv = head * shape.kv_heads / shape.heads;
    let first = row / shape.sequence * shape.sequence + first_keys[row] as usize;
    let score = |key: usize| -> f64 {
        let term = |dim| {
            qkv.at(row, head * shape.head_dim + dim) * qkv.at(key, (shape.heads + kv) * shape.head_dim + dim)
        };
        f64::from(shape.scale) * (0..shape.head_dim).map(term).sum::<f64>()
    };
    let scores: Vec<f64> = (first..=row).map(score).collect();
    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = scores.iter().map(|score| (score - most).exp()).sum();
    let weights = scores.iter().map(|score| (score - most).exp() / sum).collect();
    Weights { first, kv, weights, log_sum: most + sum.ln() }
}
