//! Cross-entropy of the softmax of logits, and its gradient in their place.

use super::Cuda;
use super::kernel::{address, blocks_of, flag, float, word};
use super::source::{Format, Source::Pointwise};
use crate::{MatrixMut, View, ViewMut};

impl Cuda {
    pub(crate) fn cross_entropy(
        &self,
        logits: MatrixMut<'_, f32>,
        targets: View<'_, u32>,
        scale: Option<f32>,
        losses: ViewMut<'_, f32>,
    ) {
        let (at, (rows, vocabulary)) = (self.rows_mut(&logits), logits.shape());
        self.kernel(Pointwise, [Format::F32; 3], "cross_entropy").launch(
            blocks_of(rows, 1024),
            &[
                address(at.address),
                word(at.stride),
                word(vocabulary),
                address(self.at(targets)),
                flag(scale.is_some()),
                float(scale.unwrap_or(0.0)),
                address(self.at_mut(&losses)),
                address(self.report.address()),
            ],
        );
    }
}
