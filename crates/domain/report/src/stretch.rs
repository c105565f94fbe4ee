//! The first healthy stretch of a run: steps behind the slow ones of its start that take about the same time.
//!
//! A stretch whose steps are far apart is no measure of anything and is taken again, later. Steps beside evaluations and
//! checkpoints are left out. What is kept is bounded, and nothing once a stretch was found.

use bedplate_breakdown::{Breakdown, Measured};
use bedplate_units::statistics::median;
use serde::{Deserialize, Serialize};

use crate::{Phase, StepReport};

/// Steps of a start that compile, allocate and warm up.
const WARM_UP: u32 = 3;
const LENGTH: usize = 20;
/// The median distance of its steps from their median, as a share of that.
const MOST_SPREAD: f64 = 0.1;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct FirstSteps {
    #[serde(default, skip_serializing_if = "is_zero")]
    passed: u32,
    /// The next step says nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_disturbed: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    taken: Vec<Taken>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    settled: Option<StepStretch>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Taken {
    step: u64,
    seconds: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    breakdown: Option<Breakdown<Measured>>,
}

/// A stretch of steps, the first and the last counted.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct StepStretch {
    pub from: u64,
    pub to: u64,
    /// The median.
    pub seconds: f64,
    /// Of the parts, where each step had them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean: Option<Breakdown<Measured>>,
}

impl FirstSteps {
    pub fn settled(&self) -> Option<&StepStretch> {
        self.settled.as_ref()
    }

    pub(crate) fn turn_to(&mut self, phase: Phase) {
        self.is_disturbed |= phase != Phase::Training;
    }

    pub(crate) fn take(&mut self, report: &StepReport) {
        if self.settled.is_some() {
            return;
        }
        self.passed = self.passed.saturating_add(1);
        let is_disturbed = std::mem::take(&mut self.is_disturbed);
        if self.passed <= WARM_UP || is_disturbed {
            return;
        }
        let StepReport { step, seconds, breakdown, .. } = *report;
        self.taken.push(Taken { step, seconds, breakdown });
        if self.taken.len() < LENGTH {
            return;
        }
        match self.stretch() {
            Some(stretch) => (self.settled, self.taken) = (Some(stretch), Vec::new()),
            None => drop(self.taken.drain(..LENGTH / 2)),
        }
    }

    fn stretch(&self) -> Option<StepStretch> {
        let seconds: Vec<f64> = self.taken.iter().map(|taken| taken.seconds).collect();
        let middle = median(&seconds);
        let spread = median(&Vec::from_iter(seconds.iter().map(|seconds| (seconds - middle).abs())));
        if spread > MOST_SPREAD * middle {
            return None;
        }
        let parts: Option<Vec<Breakdown<Measured>>> =
            self.taken.iter().map(|taken| taken.breakdown).collect();
        let mean = parts.map(|parts| {
            let sum = parts.into_iter().fold(Breakdown::default(), |sum, next| sum + next);
            sum * (1.0 / self.taken.len() as f64)
        });
        let (first, last) = (self.taken.first()?, self.taken.last()?);
        Some(StepStretch { from: first.step, to: last.step, seconds: middle, mean })
    }
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(first: &mut FirstSteps, step: u64, seconds: f64) {
        first.take(&StepReport { step, seconds, tokens: None, loss: None, breakdown: None });
    }

    #[test]
    fn starts_and_steps_beside_evaluations_are_left_out() {
        let mut first = FirstSteps::default();
        for step in 1..=30 {
            if step == 10 {
                first.turn_to(Phase::Evaluating);
            }
            take(
                &mut first,
                step,
                if step <= 3 || step == 10 { 9.0 } else { 1.0 + 0.01 * (step % 3) as f64 },
            );
        }
        let stretch = first.settled().unwrap();
        assert_eq!((stretch.from, stretch.to), (4, 24));
        assert!((stretch.seconds - 1.01).abs() < 1e-9);
        let text = serde_json::to_string(&first).unwrap();
        assert_eq!(serde_json::from_str::<FirstSteps>(&text).unwrap(), first);
    }

    #[test]
    fn a_stretch_that_swings_is_no_measure() {
        let mut first = FirstSteps::default();
        for step in 1..=300 {
            take(&mut first, step, if step % 2 == 0 { 1.0 } else { 2.0 });
        }
        assert_eq!(first.settled(), None);
        assert!(first.taken.len() < LENGTH);
        for step in 301..=330 {
            take(&mut first, step, 1.0);
        }
        assert_eq!(first.settled().map(|stretch| stretch.seconds), Some(1.0));
    }
}
