//! Rows of a table, looked up by token.

use super::kernel::{address, blocks_of, flag, word};
use super::source::{KernelFormat, KernelSource::Experts};
use super::{Cuda, format_of};
use crate::device::EmbeddingForward;
use crate::{Accumulate, Element, Matrix, MatrixMut, View};

impl Cuda {
    pub(crate) fn embedding<E: Element>(&self, lookup: EmbeddingForward<'_, E>) {
        let EmbeddingForward { tokens, table, mode, out } = lookup;
        let (from, to, columns) = (self.rows(&table), self.rows_mut(&out), out.columns);
        let wide = from.is_aligned() && to.is_aligned() && columns.is_multiple_of(8);
        self.kernel(Experts, [format_of::<E>(); 3], "embedding").launch(
            blocks_of(tokens.len(), 128),
            &[
                address(self.at(tokens)),
                address(from.address),
                word(from.stride),
                word(table.rows),
                flag(mode == Accumulate::Add),
                address(to.address),
                word(to.stride),
                word(columns),
                flag(wide),
                address(self.report.address()),
            ],
        );
    }

    pub(crate) fn embedding_backward<E: Element>(
        &self,
        tokens: View<'_, u32>,
        d_out: Matrix<'_, E>,
        d_table: MatrixMut<'_, f32>,
    ) {
        let (d, to, (entries, columns)) = (self.rows(&d_out), self.rows_mut(&d_table), d_table.shape());
        let formats = [format_of::<E>(), KernelFormat::F32, KernelFormat::F32];
        self.kernel(Experts, formats, "embedding_backward").launch(
            blocks_of(tokens.len(), 256),
            &[
                address(self.at(tokens)),
                word(tokens.len()),
                address(d.address),
                word(d.stride),
                address(to.address),
                word(to.stride),
                word(entries),
                word(columns),
                address(self.report.address()),
            ],
        );
    }
}
