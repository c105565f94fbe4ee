//! Memory that operators need while they run, kept between runs.

use super::CpuMemory;

/// Elements with no meaning between two operators. Allocates only when more is asked for than ever before.
pub(crate) struct Grown(CpuMemory);

impl Default for Grown {
    fn default() -> Self {
        Self(CpuMemory::zeros(0))
    }
}

impl Grown {
    /// The first `len` elements; what they hold is left from earlier use.
    pub(crate) fn first(&mut self, len: usize) -> &mut [f32] {
        if self.0.elements_mut().len() < len {
            self.0 = CpuMemory::zeros(len * size_of::<f32>());
        }
        &mut self.0.elements_mut()[..len]
    }
}
