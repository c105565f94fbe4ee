//! Rows of a table, looked up by token.

use bedplate_breakdown::Part;

use crate::{Device, Element, Into, Matrix, MatrixMut, View};

/// Members of the team look after the tokens of some classes each, so that a row of the table has one writer.
const CLASSES: usize = 16;

impl Device {
    /// `out[t] = table[tokens[t]]`, or that much more. Panics at a token beyond the table.
    pub fn embedding<E: Element>(
        &self,
        tokens: View<'_, u32>,
        table: Matrix<'_, E>,
        into: Into,
        out: MatrixMut<'_, E>,
    ) {
        assert_eq!((tokens.len(), table.columns), (out.rows, out.columns), "the output of an embedding");
        let (rows, columns) = (out.rows, out.columns);
        let out = out.into_shared();
        self.time(Part::Memory, || {
            self.in_rows(
                rows,
                columns,
                #[inline(always)]
                |rows| {
                    for row in rows {
                        let entry = table.row(find(tokens.host()[row], table.rows));
                        match into {
                            Into::Replace => out.row(row).copy_from_slice(entry),
                            Into::Add => add(entry, out.row(row)),
                        }
                    }
                },
            );
        });
    }

    /// `d_table[tokens[t]] += d_out[t]`, for each token in the order in which it occurs.
    pub fn embedding_backward<E: Element>(
        &self,
        tokens: View<'_, u32>,
        d_out: Matrix<'_, E>,
        d_table: MatrixMut<'_, f32>,
    ) {
        assert_eq!(
            (tokens.len(), d_table.columns),
            (d_out.rows, d_out.columns),
            "the output of an embedding"
        );
        let entries = d_table.rows;
        let d_table = d_table.into_shared();
        self.time(Part::Memory, || {
            self.in_chunks(
                CLASSES,
                1,
                #[inline(always)]
                |class| {
                    for (row, token) in tokens.host().iter().enumerate() {
                        if *token as usize % CLASSES == class.start {
                            add(d_out.row(row), d_table.row(find(*token, entries)));
                        }
                    }
                },
            );
        });
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

#[cfg(test)]
mod tests;
