//! A priced layout, and the ranking of priced layouts.

use std::cmp::Ordering;

use bedplate_layout::{Layout, Sharding};
use bedplate_perf::Fit;
use bedplate_units::{Bytes, Seconds};

/// A layout that fits, with its time and memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayoutCandidate {
    pub layout: Layout,
    /// One step.
    pub seconds: Seconds,
    /// One GPU.
    pub memory: Bytes,
    pub fit: Fit,
    /// The factor on its time by which it is ranked: 1 without [`crate::Doubt`]s.
    pub handicap: f64,
}

impl LayoutCandidate {
    /// What it is ranked by.
    #[inline]
    pub fn weighted(&self) -> Seconds {
        self.seconds * self.handicap
    }

    /// Whether the two differ by less than predictions of one job do.
    pub fn is_tie_of(&self, other: &Self) -> bool {
        (self.seconds / other.seconds).ln().abs() <= TIE
    }

    /// Faster with its handicap first, then smaller, then simpler. Total, so no rank depends on the order of enumeration.
    pub fn rank_order(&self, other: &Self) -> Ordering {
        let price = |each: &Self| (each.weighted(), each.memory);
        price(self).cmp(&price(other)).then_with(|| simplicity(&self.layout).cmp(&simplicity(&other.layout)))
    }

    /// Exactly the same time and memory: the model cannot tell the two apart.
    pub(crate) fn is_twin_of(&self, other: &Self) -> bool {
        self.seconds == other.seconds && self.memory == other.memory && self.handicap == other.handicap
    }
}

/// Median error of the ratio of two measured layouts of one job.
const TIE: f64 = 0.05;

/// Simple layouts first: the order among layouts of equal price.
pub(crate) fn simplicity(layout: &Layout) -> [u32; 16] {
    let (sharding, group) = match layout.sharding {
        Sharding::None => (0, 0),
        Sharding::Optimizer => (1, 0),
        Sharding::Gradients => (2, 0),
        Sharding::Weights => (3, 0),
        Sharding::WeightsWithin(group) => (4, group),
    };
    [
        layout.recompute as u32,
        layout.precision as u32,
        layout.schedule as u32,
        layout.ends.first.unwrap_or(0),
        layout.ends.last.unwrap_or(0),
        layout.virtual_stages,
        layout.context,
        layout.expert_tensor,
        layout.expert,
        layout.pipeline,
        layout.tensor,
        u32::from(layout.is_sequence_parallel),
        sharding,
        group,
        layout.micro_batch,
        layout.data,
    ]
}
