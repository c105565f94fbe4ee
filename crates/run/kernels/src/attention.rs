//! Causal attention over grouped heads, without a matrix of scores in memory.
//!
//! Each row of `qkv` holds the heads of the queries, then of the keys, then of the values of one token. A query sees the
//! keys from its `first_keys` entry to itself, which says windows and borders of documents alike.

use bedplate_breakdown::Part;

use crate::stream::SharedMut;
use crate::{Device, Element, Matrix, MatrixMut, View, ViewMut};

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionShape {
    /// Tokens of a sequence; the rows are whole sequences, one after the other.
    pub sequence: usize,
    pub heads: usize,
    /// Divides `heads`; that many neighbours share a key and a value.
    pub kv_heads: usize,
    pub head_dim: usize,
    /// What scores are multiplied by; usually one over the square root of `head_dim`.
    pub scale: f32,
}

impl AttentionShape {
    /// Columns of `qkv`.
    pub fn columns(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    /// Columns of the output.
    pub fn attended(&self) -> usize {
        self.heads * self.head_dim
    }
}

impl Device {
    /// `first_keys` has an entry per row: the first key that its query sees, counted from the start of its sequence;
    /// it never falls inside a sequence. `log_sums` gets `rows x heads` logarithms of the sums of exponentials.
    pub fn attention<E: Element>(
        &self,
        shape: &AttentionShape,
        qkv: Matrix<'_, E>,
        first_keys: View<'_, u32>,
        out: MatrixMut<'_, E>,
        log_sums: ViewMut<'_, f32>,
    ) {
        let AttentionShape { sequence, heads, kv_heads, head_dim, scale } = *shape;
        assert_eq!((qkv.columns, out.columns), (shape.columns(), heads * head_dim), "columns of attention");
        assert_eq!(log_sums.len(), qkv.rows * heads, "sums of attention");
        let (rows, stride) = (out.rows, out.stride);
        let (out, log_sums) = (SharedMut::new(out.view.into_host()), SharedMut::new(log_sums.into_host()));
        let part =
            |row: usize, head: usize| &qkv.view.host()[row * qkv.stride + head * head_dim..][..head_dim];
        self.time(Part::Compute, || {
            self.team.run(rows, &|row, _| {
                let start = row / sequence * sequence;
                for head in 0..heads {
                    let kv = head * kv_heads / heads;
                    let keys = start + first_keys.host()[row] as usize..=row;
                    let score = |key: usize| scale * dot(part(row, head), part(key, heads + kv));
                    let most = keys.clone().map(score).fold(f32::NEG_INFINITY, f32::max);
                    let sum: f32 = keys.clone().map(|key| (score(key) - most).exp()).sum();
                    log_sums.range(row * heads + head..row * heads + head + 1)[0] = most + sum.ln();
                    let output =
                        out.range(row * stride + head * head_dim..row * stride + (head + 1) * head_dim);
                    for (dim, output) in output.iter_mut().enumerate() {
                        let value = |key: usize| part(key, heads + kv_heads + kv)[dim].widen();
                        let weighed: f32 =
                            keys.clone().map(|key| (score(key) - most).exp() * value(key)).sum();
                        *output = E::narrow(weighed / sum);
                    }
                }
            });
        });
    }

    /// Replaces `d_qkv` by the gradient of queries, keys and values.
    pub fn attention_backward<E: Element>(
        &self,
        shape: &AttentionShape,
        qkv: Matrix<'_, E>,
        first_keys: View<'_, u32>,
        out: Matrix<'_, E>,
        log_sums: View<'_, f32>,
        d_out: Matrix<'_, E>,
        d_qkv: MatrixMut<'_, E>,
    ) {
        let AttentionShape { sequence, heads, kv_heads, head_dim, scale } = *shape;
        let columns = shape.columns();
        let part =
            |row: usize, head: usize| &qkv.view.host()[row * qkv.stride + head * head_dim..][..head_dim];
        let head_of = |m: Matrix<'_, E>, row: usize, head: usize| -> Vec<f32> {
            m.view.host()[row * m.stride + head * head_dim..][..head_dim].iter().map(|v| v.widen()).collect()
        };
        let (rows, stride) = (d_qkv.rows, d_qkv.stride);
        let mut sums = vec![0.0f32; rows * columns];
        self.time(Part::Compute, || {
            for row in 0..rows {
                let start = row / sequence * sequence;
                for head in 0..heads {
                    let kv = head * kv_heads / heads;
                    let d = head_of(d_out, row, head);
                    let delta: f32 = d.iter().zip(head_of(out, row, head)).map(|(a, b)| a * b).sum();
                    for key in start + first_keys.host()[row] as usize..=row {
                        let score = scale * dot(part(row, head), part(key, heads + kv));
                        let p = (score - log_sums.host()[row * heads + head]).exp();
                        let value = part(key, heads + kv_heads + kv);
                        let d_p: f32 = d.iter().zip(value).map(|(a, b)| a * b.widen()).sum();
                        let d_s = p * (d_p - delta) * scale;
                        for dim in 0..head_dim {
                            sums[row * columns + head * head_dim + dim] +=
                                d_s * part(key, heads + kv)[dim].widen();
                            sums[key * columns + (heads + kv) * head_dim + dim] +=
                                d_s * part(row, head)[dim].widen();
                            sums[key * columns + (heads + kv_heads + kv) * head_dim + dim] += p * d[dim];
                        }
                    }
                }
            }
            let out = d_qkv.view.into_host();
            for row in 0..rows {
                for column in 0..columns {
                    out[row * stride + column] = E::narrow(sums[row * columns + column]);
                }
            }
        });
    }
}

fn dot<E: Element>(a: &[E], b: &[E]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a.widen() * b.widen()).sum()
}
