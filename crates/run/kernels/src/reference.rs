//! The slow, obvious definitions that operators are tested against, and the devices to test them on.

use crate::cpu::{Cpu, Level, has_tiles};
use crate::{AttentionShape, Device, Element, Qkv};

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

/// The elements and how they lie.
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

/// Which keys the queries of sequences see, as `VisibleKeys` says it; positions are given for every sequence.
#[derive(Clone, Copy)]
pub(crate) struct Sight<'a> {
    pub(crate) first_keys: &'a [u32],
    pub(crate) positions: &'a [u32],
}

pub(crate) fn attention<E: Element>(
    shape: &AttentionShape,
    qkv: Qkv<Grid<'_, E>>,
    sight: Sight<'_>,
) -> Attention {
    let AttentionShape { heads, head_dim, .. } = *shape;
    let rows = sight.first_keys.len();
    let mut result = Attention { out: vec![0.0; rows * heads * head_dim], log_sums: vec![0.0; rows * heads] };
    for row in 0..rows {
        for head in 0..heads {
            let weights = weights(shape, qkv, sight, row, head);
            result.log_sums[row * heads + head] = weights.log_sum;
            for dim in 0..head_dim {
                let value = |key| qkv.values.at(key, weights.kv * head_dim + dim);
                result.out[(row * heads + head) * head_dim + dim] =
                    weights.of_keys().map(|(key, weight)| weight * value(key)).sum();
            }
        }
    }
    result
}

/// The gradients of queries, keys and values.
pub(crate) fn attention_backward<E: Element>(
    shape: &AttentionShape,
    qkv: Qkv<Grid<'_, E>>,
    sight: Sight<'_>,
    d_out: Grid<'_, E>,
) -> Qkv<Vec<f64>> {
    let AttentionShape { heads, kv_heads, head_dim, scale, .. } = *shape;
    let (inner, outer) = (heads * head_dim, kv_heads * head_dim);
    let rows = sight.first_keys.len();
    let of_keys = vec![0.0; sight.positions.len() * shape.keys * outer];
    let mut d = Qkv { queries: vec![0.0; rows * inner], keys: of_keys.clone(), values: of_keys };
    for row in 0..rows {
        for head in 0..heads {
            let weights = weights(shape, qkv, sight, row, head);
            let d_weight = |key: usize| -> f64 {
                let value = |dim| qkv.values.at(key, weights.kv * head_dim + dim);
                (0..head_dim).map(|dim| d_out.at(row, head * head_dim + dim) * value(dim)).sum()
            };
            let mean: f64 = weights.of_keys().map(|(key, weight)| weight * d_weight(key)).sum();
            for (key, weight) in weights.of_keys() {
                let d_score = weight * (d_weight(key) - mean) * f64::from(scale);
                for dim in 0..head_dim {
                    let (query_at, key_at) = (head * head_dim + dim, weights.kv * head_dim + dim);
                    d.queries[row * inner + query_at] += d_score * qkv.keys.at(key, key_at);
                    d.keys[key * outer + key_at] += d_score * qkv.queries.at(row, query_at);
                    d.values[key * outer + key_at] += weight * d_out.at(row, query_at);
                }
            }
        }
    }
    d
}

/// How much a query looks at each key that it sees.
struct Weights {
    /// The row of the first key.
    first: usize,
    kv: usize,
    weights: Vec<f64>,
    log_sum: f64,
}

impl Weights {
    fn of_keys(&self) -> impl Iterator<Item = (usize, f64)> {
        self.weights.iter().enumerate().map(|(index, weight)| (self.first + index, *weight))
    }
}

fn weights<E: Element>(
    shape: &AttentionShape,
    qkv: Qkv<Grid<'_, E>>,
    sight: Sight<'_>,
    row: usize,
    head: usize,
) -> Weights {
    let AttentionShape { queries, keys, head_dim, .. } = *shape;
    let kv = head * shape.kv_heads / shape.heads;
    let sequence = row / queries;
    let last = (sight.positions[sequence] as usize + row % queries).min(keys - 1);
    let first = sequence * keys + sight.first_keys[row] as usize;
    let score = |key: usize| -> f64 {
        let term = |dim| qkv.queries.at(row, head * head_dim + dim) * qkv.keys.at(key, kv * head_dim + dim);
        f64::from(shape.scale) * (0..head_dim).map(term).sum::<f64>()
    };
    let scores: Vec<f64> = (first..=sequence * keys + last).map(score).collect();
    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = scores.iter().map(|score| (score - most).exp()).sum();
    let weights = scores.iter().map(|score| (score - most).exp() / sum).collect();
    Weights { first, kv, weights, log_sum: most + sum.ln() }
}
