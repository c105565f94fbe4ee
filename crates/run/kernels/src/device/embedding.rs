//! Rows of a table, looked up by token.

use crate::{Accumulate, Device, Element, Matrix, MatrixMut, View};

pub(crate) struct EmbeddingForward<'a, E> {
    pub(crate) tokens: View<'a, u32>,
    pub(crate) table: Matrix<'a, E>,
    pub(crate) mode: Accumulate,
    pub(crate) out: MatrixMut<'a, E>,
}

impl Device {
    /// `out[t] = table[tokens[t]]`, or `+=`. Panics at a token beyond the table.
    pub fn embedding<E: Element>(
        &self,
        tokens: View<'_, u32>,
        table: Matrix<'_, E>,
        mode: Accumulate,
        out: MatrixMut<'_, E>,
    ) {
        assert_eq!(out.shape(), (tokens.len(), table.columns), "the output of an embedding");
        let lookup = EmbeddingForward { tokens, table, mode, out };
        on_backend!(self, Memory, embedding(lookup));
    }

    /// `d_table[tokens[t]] += d_out[t]`, for each token in the order in which it occurs.
    pub fn embedding_backward<E: Element>(
        &self,
        tokens: View<'_, u32>,
        d_out: Matrix<'_, E>,
        d_table: MatrixMut<'_, f32>,
    ) {
        assert_eq!(d_out.shape(), (tokens.len(), d_table.columns), "the output of an embedding");
        on_backend!(self, Memory, embedding_backward(tokens, d_out, d_table));
    }
}

#[cfg(test)]
mod tests;
