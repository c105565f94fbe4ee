//! Tokens sampled by chance: a block of threads for each.

use super::Cuda;
use super::driver::KernelLaunch;
use super::kernel::{address, blocks_of, word};
use super::source::KernelFormat;
use super::source::KernelSource::Sampling;
use crate::device::SampleParams;
use crate::{Matrix, View, ViewMut};

/// Threads of a block, and the parts that a range of logits is cut into; the kernel has the same.
const SAMPLERS: usize = 512;
const BINS: usize = 16;

impl Cuda {
    pub(crate) fn sample(&self, logits: Matrix<'_, f32>, samples: View<'_, u32>, to: ViewMut<'_, u32>) {
        let (from, (rows, columns)) = (self.rows(&logits), logits.shape());
        let count = samples.len() / SampleParams::WORDS;
        if count == 0 {
            return;
        }
        let arguments = [
            address(from.address),
            word(from.stride),
            word(rows),
            word(columns),
            address(self.at(samples)),
            address(self.at_mut(&to)),
            address(self.report.address()),
        ];
        let launch = KernelLaunch { shared: 8 * SAMPLERS * BINS, ..blocks_of(count, SAMPLERS) };
        self.kernel(Sampling, [KernelFormat::F32; 3], "sample_tokens").launch(launch, &arguments);
    }
}
