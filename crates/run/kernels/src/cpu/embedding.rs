//! Rows of a table, looked up by token.

use super::Cpu;
use crate::device::EmbeddingForward;
use crate::{Accumulate, Element, Matrix, MatrixMut, View};

/// Members of the thread pool look after the tokens of some classes each, so that a row of the table has one writer.
const CLASSES: usize = 16;

impl Cpu {
    pub(crate) fn embedding<E: Element>(&self, lookup: EmbeddingForward<'_, E>) {
        let EmbeddingForward { tokens, table, mode, out } = lookup;
        let (tokens, table, shape) = (self.slice(tokens), self.rows(table), out.shape());
        inlined!(self.in_rows(shape, self.rows_mut(out), |row, out| {
            let entry = table.row(find(tokens[row], table.rows));
            match mode {
                Accumulate::Replace => out.copy_from_slice(entry),
                Accumulate::Add => add(entry, out),
            }
        }));
    }

    pub(crate) fn embedding_backward<E: Element>(
        &self,
        tokens: View<'_, u32>,
        d_out: Matrix<'_, E>,
        d_table: MatrixMut<'_, f32>,
    ) {
        let (tokens, d_out) = (self.slice(tokens), self.rows(d_out));
        let (entries, columns) = d_table.shape();
        let d_table = self.rows_mut(d_table);
        inlined!(self.in_chunks(CLASSES, 1, (), |class, ()| {
            for (row, token) in tokens.iter().enumerate() {
                if *token as usize % CLASSES == class.start {
                    let entry = find(*token, entries);
                    #[expect(unsafe_code, reason = "rows are shared out by their class")]
                    // SAFETY: each class comes once, and no entry is in two of them.
                    add(d_out.row(row), unsafe { d_table.part_of_row(entry, 0, columns) });
                }
            }
        }));
    }
}

#[inline(always)]
fn find(token: u32, entries: usize) -> usize {
    assert!((token as usize) < entries, "token {token} is not among the {entries} of the vocabulary");
    token as usize
}

#[inline(always)]
fn add<A: Element, B: Element>(from: &[A], to: &mut [B]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = B::narrow(to.widen() + from.widen());
    }
}
