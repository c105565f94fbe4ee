//! What a plan says of a step on this machine, before the first one is taken.

use bedplate_breakdown::{Breakdown, Predicted};
use bedplate_train::TrainConfig;

use crate::context::Context;

/// A step as predicted for this machine, and the machine's peak in FLOP/s.
pub(crate) struct HostPrediction {
    pub(crate) breakdown: Breakdown<Predicted>,
    pub(crate) peak: f64,
}

/// Absent when this machine has not been measured (`bedplate bench machine`).
pub(crate) fn predict(_config: &TrainConfig, _context: &Context) -> Option<HostPrediction> {
    None
}
