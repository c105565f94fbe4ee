//! Causal attention over grouped heads, without a matrix of scores in memory.
//!
//! Queries, keys and values are three matrices with a token per row and heads side by side, often columns of one matrix.
//! Queries and keys need not be the same tokens: a sequence has some queries and some keys, and a position that says where its first
//! query stands among the keys. So a prompt is queries and keys alike, a chunk of a prompt or a decoded token is a few queries
//! over all keys so far, and a step of ring attention is the queries of one rank over the keys of another.

use crate::{Device, Element, Matrix, MatrixMut, Rows, View, ViewMut};

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionShape {
    /// Queries of a sequence; the rows are those of all sequences, one after the other.
    pub queries: usize,
    /// Keys of a sequence, and values.
    pub keys: usize,
    pub heads: usize,
    /// Divides `heads`; that many neighbours share a key and a value.
    pub kv_heads: usize,
    pub head_dim: usize,
    /// What scores are multiplied by; usually one over the square root of `head_dim`.
    pub scale: f32,
    /// What scores are bent to stay below, by a hyperbolic tangent (Gemma 2); 0 leaves them as they are. On the processor only.
    pub cap: f32,
}

/// Queries, keys and values, or their gradients.
#[derive(Debug, Clone, Copy)]
pub struct Qkv<M> {
    pub queries: M,
    pub keys: M,
    pub values: M,
}

/// Which keys each query sees: from its first one to the one at its own position, or to the last where that lies behind.
/// Where it sees none, attention gives zeros and a sum whose logarithm is minus infinity.
#[derive(Debug, Clone, Copy)]
pub struct VisibleKeys<'a> {
    /// An entry per query, counted from the first key of its sequence; entries never fall within a sequence. They say
    /// windows and borders of documents alike.
    pub first_keys: View<'a, u32>,
    /// An entry per sequence: the position of its first query among its keys. Without it, the last query of each sequence
    /// stands at its last key.
    pub positions: Option<View<'a, u32>>,
}

impl AttentionShape {
    /// Columns of queries, keys and values side by side.
    pub fn columns(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    /// Columns of the output.
    pub fn attended(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Panics unless the matrices have this shape.
    fn check(&self, qkv: Qkv<(usize, usize)>, seen: VisibleKeys<'_>, log_sums: usize) {
        assert_eq!(self.heads % self.kv_heads, 0, "query heads per key head");
        assert_eq!(qkv.queries.0 % self.queries, 0, "queries are whole sequences");
        let sequences = qkv.queries.0 / self.queries;
        let of_keys = (sequences * self.keys, self.kv_heads * self.head_dim);
        assert_eq!(qkv.queries.1, self.attended(), "columns of queries");
        assert_eq!([qkv.keys, qkv.values], [of_keys; 2], "keys and values of attention");
        assert_eq!(seen.first_keys.len(), qkv.queries.0, "first keys of attention");
        let positions = seen.positions.map_or(sequences, |positions| positions.len());
        assert!(positions == sequences, "positions of sequences");
        assert!(seen.positions.is_some() || self.queries <= self.keys, "queries without a position");
        assert_eq!(log_sums, qkv.queries.0 * self.heads, "sums of attention");
    }
}

impl<N> Qkv<Rows<N>> {
    fn shapes(&self) -> Qkv<(usize, usize)> {
        let shape = |of: &Rows<N>| (of.rows, of.columns);
        Qkv { queries: shape(&self.queries), keys: shape(&self.keys), values: shape(&self.values) }
    }
}

impl<'a, E> Qkv<Matrix<'a, E>> {
    /// The columns of a matrix that holds them side by side.
    pub fn columns(shape: &AttentionShape, of: Matrix<'a, E>) -> Self
    where
        E: Copy,
    {
        assert_eq!(of.columns, shape.columns(), "columns of queries, keys and values");
        let (first, width) = (shape.attended(), shape.kv_heads * shape.head_dim);
        Self {
            queries: of.columns(0..first),
            keys: of.columns(first..first + width),
            values: of.columns(first + width..first + 2 * width),
        }
    }
}

impl<'a, E> Qkv<MatrixMut<'a, E>> {
    /// The columns of a matrix that holds them side by side.
    pub fn columns_mut(shape: &AttentionShape, of: MatrixMut<'a, E>) -> Self {
        assert_eq!(of.columns, shape.columns(), "columns of queries, keys and values");
        let (queries, rest) = of.split_columns(shape.attended());
        let (keys, values) = rest.split_columns(shape.kv_heads * shape.head_dim);
        Self { queries, keys, values }
    }
}

pub(crate) struct AttentionForward<'a, E> {
    pub(crate) shape: &'a AttentionShape,
    pub(crate) qkv: Qkv<Matrix<'a, E>>,
    pub(crate) seen: VisibleKeys<'a>,
    pub(crate) out: MatrixMut<'a, E>,
    pub(crate) log_sums: ViewMut<'a, f32>,
}

/// What the forward pass took and gave, and two gradients.
pub(crate) struct AttentionBackward<'a, E> {
    pub(crate) shape: &'a AttentionShape,
    pub(crate) qkv: Qkv<Matrix<'a, E>>,
    pub(crate) seen: VisibleKeys<'a>,
    pub(crate) out: Matrix<'a, E>,
    pub(crate) log_sums: View<'a, f32>,
    pub(crate) d_out: Matrix<'a, E>,
    pub(crate) d_qkv: Qkv<MatrixMut<'a, E>>,
}

pub(crate) struct MergeParts<'a, E, O> {
    pub(crate) part: Matrix<'a, E>,
    pub(crate) part_log_sums: View<'a, f32>,
    pub(crate) whole: MatrixMut<'a, O>,
    pub(crate) log_sums: ViewMut<'a, f32>,
}

impl Device {
    /// `log_sums` gets the logarithms of the sums of exponentials, for each query those of its heads.
    pub fn attention<E: Element>(
        &self,
        shape: &AttentionShape,
        qkv: Qkv<Matrix<'_, E>>,
        seen: VisibleKeys<'_>,
        out: MatrixMut<'_, E>,
        log_sums: ViewMut<'_, f32>,
    ) {
        shape.check(qkv.shapes(), seen, log_sums.len());
        assert!(shape.cap == 0.0 || self.is_cpu(), "a GPU has no attention with bent scores");
        assert_eq!(out.shape(), qkv.queries.shape(), "attention's output");
        let attention = AttentionForward { shape, qkv, seen, out, log_sums };
        on_backend!(self, Compute, attention(attention));
    }

    /// Puts attention over some keys together with attention over others, of the same queries and heads: `whole` and `log_sums`
    /// are what [`Device::attention`] gave for the keys so far, or zeros and minus infinity, and then for all of them.
    pub fn merge<E: Element, O: Element>(
        &self,
        part: Matrix<'_, E>,
        part_log_sums: View<'_, f32>,
        whole: MatrixMut<'_, O>,
        log_sums: ViewMut<'_, f32>,
    ) {
        assert_eq!(whole.shape(), part.shape(), "attention over parts of the keys");
        assert_eq!(log_sums.len(), part_log_sums.len(), "sums of attention");
        let heads = log_sums.len() / part.rows.max(1);
        assert!(log_sums.len() == heads * part.rows && part.columns.is_multiple_of(heads.max(1)), "heads");
        let parts = MergeParts { part, part_log_sums, whole, log_sums };
        on_backend!(self, Memory, merge(parts));
    }

    /// Replaces `d_qkv` by the gradients of queries, keys and values. Where `qkv` holds some of the keys, `out` and `log_sums` are
    /// those over all, and the gradients of queries are what these keys add to them.
    #[expect(clippy::too_many_arguments, reason = "what the forward pass took and gave, and two gradients")]
    pub fn attention_backward<E: Element>(
        &self,
        shape: &AttentionShape,
        qkv: Qkv<Matrix<'_, E>>,
        seen: VisibleKeys<'_>,
        out: Matrix<'_, E>,
        log_sums: View<'_, f32>,
        d_out: Matrix<'_, E>,
        d_qkv: Qkv<MatrixMut<'_, E>>,
    ) {
        shape.check(qkv.shapes(), seen, log_sums.len());
        shape.check(d_qkv.shapes(), seen, log_sums.len());
        assert_eq!([out.shape(), d_out.shape()], [qkv.queries.shape(); 2], "attention's output");
        let attention = AttentionBackward { shape, qkv, seen, out, log_sums, d_out, d_qkv };
        on_backend!(self, Compute, attention_backward(attention));
    }
}

#[cfg(test)]
mod tests;
