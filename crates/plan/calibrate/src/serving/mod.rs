//! The serving side: measured latencies of engines, errors of the model on them, and its constants.
//!
//! [`ServingCases`] reads a table of measurements, fills in what its sources leave unsaid and skips what
//! cannot be predicted, with a reason.

mod case;
mod fill;
mod fit;
mod skip;
mod suspicion;

pub use case::{LogErrors, Measured, ServingCase, ServingCases, ServingSkipped};
pub use fill::Campaign;
pub use fit::{fit_serving, fit_without_each};
pub use skip::ServingSkip;
