//! A prediction compared with a measurement.

use bedplate_units::Seconds;

use crate::{Breakdown, Measured, Part, Predicted};

/// Predicted and measured time of one part.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Difference {
    pub part: Part,
    pub predicted: Seconds,
    pub measured: Seconds,
}

impl Difference {
    /// Exposed seconds lost against the plan; negative where the run was faster.
    pub fn lost(&self) -> Seconds {
        self.measured - self.predicted
    }
}

/// Predicted against measured, part by part, exposed seconds only.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Comparison {
    differences: [Difference; Part::ALL.len()],
}

impl Comparison {
    pub fn new(predicted: &Breakdown<Predicted>, measured: &Breakdown<Measured>) -> Self {
        let difference =
            |part| Difference { part, predicted: predicted[part].exposed, measured: measured[part].exposed };
        Self { differences: Part::ALL.map(difference) }
    }

    pub fn differences(&self) -> &[Difference] {
        &self.differences
    }

    /// Measured over predicted total; `None` when nothing was predicted.
    pub fn slowdown(&self) -> Option<f64> {
        let predicted: Seconds = self.differences.iter().map(|each| each.predicted).sum();
        let measured: Seconds = self.differences.iter().map(|each| each.measured).sum();
        (!predicted.is_zero()).then(|| measured / predicted)
    }

    /// Differences from the largest loss to the largest gain; ties in the order of parts.
    pub fn ranked(&self) -> Vec<Difference> {
        let mut ranked = self.differences.to_vec();
        ranked.sort_by_key(|each| std::cmp::Reverse(each.lost()));
        ranked
    }
}
