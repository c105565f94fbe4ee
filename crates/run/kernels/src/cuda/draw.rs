//! Tokens drawn by chance: a block of threads for each.

use super::Cuda;
use super::driver::Launch;
use super::kernel::{address, blocks_of, word};
use super::source::Format;
use super::source::Source::Draw as Drawing;
use crate::device::Draw;
use crate::{Matrix, View, ViewMut};

/// Threads of a block, and the parts that a range of logits is cut into; the kernel has the same.
const DRAWERS: usize = 512;
const BINS: usize = 16;

impl Cuda {
    pub(crate) fn draw(&self, logits: Matrix<'_, f32>, draws: View<'_, u32>, to: ViewMut<'_, u32>) {
        let (from, (rows, columns)) = (self.rows(&logits), logits.shape());
        let count = draws.len() / Draw::WORDS;
        if count == 0 {
            return;
        }
        let arguments = [
            address(from.address),
            word(from.stride),
            word(rows),
            word(columns),
            address(self.at(draws)),
            address(self.at_mut(&to)),
            address(self.report.address()),
        ];
        let launch = Launch { shared: 8 * DRAWERS * BINS, ..blocks_of(count, DRAWERS) };
        self.kernel(Drawing, [Format::F32; 3], "draw_tokens").launch(launch, &arguments);
    }
}
