//! Collectors: each reads one kind of hardware or software. What is not there gives no series, and is no error.

pub(crate) mod gpu;
pub mod host;
pub mod lustre;
pub mod mounts;
pub mod neuron;
pub mod ports;

use crate::series::SeriesBatch;

/// Reads something about the node.
pub(crate) trait Collector: Send {
    fn name(&self) -> &'static str;

    /// Adds what there is now. An error is a failure of something that is there.
    fn collect(&mut self, to: &mut SeriesBatch) -> Result<(), Failed>;
}

/// A reading failed; the next one may succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Failed;
