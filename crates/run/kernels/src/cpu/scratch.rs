//! Memory that operators need while they run, kept between runs.

use std::cell::RefCell;

use crate::Buffer;

/// Numbers with no meaning between two operators. Allocates only when more is asked for than ever before.
pub(crate) struct PartialSums(RefCell<Buffer<f32>>);

impl Default for PartialSums {
    fn default() -> Self {
        Self(RefCell::new(Buffer::zeros(0)))
    }
}

impl PartialSums {
    /// Gives `work` that many numbers, which hold anything. Panics when `work` asks again.
    pub(crate) fn with<R>(&self, len: usize, work: impl FnOnce(&mut [f32]) -> R) -> R {
        let mut buffer = self.0.borrow_mut();
        if buffer.len() < len {
            *buffer = Buffer::zeros(len);
        }
        work(&mut buffer.host_mut()[..len])
    }
}
