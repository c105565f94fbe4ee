//! Causal attention over grouped heads, without a matrix of scores in memory.
//!
//! Each row of `qkv` holds the heads of the queries, then of the keys, then of the values of one token. A query sees the
//! keys from its `first_keys` entry to itself, which says windows and borders of documents alike.

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

    /// Panics unless the matrices have this shape.
    fn check<E: Element>(&self, qkv: Matrix<'_, E>, first_keys: View<'_, u32>, log_sums: usize) {
        assert_eq!(self.heads % self.kv_heads, 0, "query heads per key head");
        assert_eq!(qkv.columns, self.columns(), "columns of queries, keys and values");
        assert_eq!(qkv.rows % self.sequence, 0, "rows are whole sequences");
        assert_eq!(first_keys.len(), qkv.rows, "first keys of attention");
        assert_eq!(log_sums, qkv.rows * self.heads, "sums of attention");
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
        shape.check(qkv, first_keys, log_sums.len());
        assert_eq!(out.shape(), (qkv.rows, shape.attended()), "attention's output");
        in_room!(self, Compute, attention(shape, qkv, first_keys, out, log_sums));
    }

    /// Replaces `d_qkv` by the gradient of queries, keys and values.
    #[expect(clippy::too_many_arguments, reason = "what the forward pass took and gave, and two gradients")]
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
        shape.check(qkv, first_keys, log_sums.len());
        assert_eq!([out.shape(), d_out.shape()], [(qkv.rows, shape.attended()); 2], "attention's output");
        assert_eq!(d_qkv.shape(), qkv.shape(), "attention's gradient");
        in_room!(self, Compute, attention_backward(shape, qkv, first_keys, out, log_sums, d_out, d_qkv));
    }
}

#[cfg(test)]
mod tests;
