//! Cross-entropy of the softmax of logits, and its gradient in their place.

use super::Cuda;
use super::kernel::{address, blocks_of, flag, float, word};
use super::source::{KernelFormat, KernelSource::Pointwise};
use crate::device::CrossEntropy;

impl Cuda {
    pub(crate) fn cross_entropy(&self, loss: CrossEntropy<'_>) {
        self.losses("cross_entropy", loss);
    }

    /// The same with the gradient rounded to bf16, in the first half of each row's place.
    pub(crate) fn cross_entropy_narrow(&self, loss: CrossEntropy<'_>) {
        self.losses("cross_entropy_narrow", loss);
    }

    fn losses(&self, name: &'static str, loss: CrossEntropy<'_>) {
        let CrossEntropy { logits, targets, scale, losses, .. } = loss;
        let (at, (rows, vocabulary)) = (self.rows_mut(&logits), logits.shape());
        let is_wide = at.is_aligned() && vocabulary.is_multiple_of(4);
        self.kernel(Pointwise, [KernelFormat::F32; 3], name).launch(
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
                flag(is_wide),
            ],
        );
    }
}
