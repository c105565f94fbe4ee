//! What a cluster keeps of the steps of a run: the mean of all and the latest few.
//!
//! One rank stands for the run: the lowest that reports steps. All ranks of a gang move in lock-step, so the time of
//! a step is the same for each; where a straggler loses its time is a question for traces, not for this record.

use bedplate_breakdown::{Breakdown, Measured, Predicted};
use bedplate_units::statistics::median;
use serde::{Deserialize, Serialize};

use crate::{FirstSteps, Phase, Report, RunArguments, StepReport};

/// Steps that are kept whole.
const LATEST: usize = 8;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StepHistory {
    /// Whose steps these are.
    pub rank: u32,
    /// How many were counted.
    pub steps: u64,
    /// Their mean duration.
    pub mean_s: f64,
    /// Their mean breakdown, where each of them came with one.
    #[serde(default)]
    pub mean: Option<Breakdown<Measured>>,
    /// The latest, oldest first.
    #[serde(default)]
    pub latest: Vec<StepReport>,
    /// What is expected of a step by the job itself, or by who read its output.
    #[serde(default)]
    pub predicted: Option<Breakdown<Predicted>>,
    /// What that rests on, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted_by: Option<String>,
    /// What it trains, where it says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Box<RunArguments>>,
    /// What its steps took before anything slowed them.
    #[serde(default)]
    pub first: FirstSteps,
    #[serde(default)]
    pub phase: Option<Phase>,
}

impl StepHistory {
    /// Whether nothing was reported that is worth showing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Takes in what a rank reports; says whether that changed anything.
    pub fn take(&mut self, rank: u32, report: &Report) -> bool {
        // Where one rank prints the arguments and another one the steps, the second stands for the run.
        let is_for_us = self.steps == 0 || rank <= self.rank;
        match report {
            Report::Step(step) if is_for_us => {
                if rank < self.rank {
                    // A lower rank has begun to report: its steps count from here on.
                    (self.steps, self.mean_s, self.mean) = (0, 0.0, None);
                    self.latest.clear();
                    self.first = FirstSteps::default();
                }
                self.rank = rank;
                self.count(step);
                self.first.take(step);
                true
            }
            // The same for all ranks, and one that never reports a step may have told it.
            Report::Predicted { breakdown, source } if is_for_us || self.predicted.is_none() => {
                if is_for_us {
                    self.rank = rank;
                }
                self.predicted = Some(**breakdown);
                self.predicted_by.clone_from(source);
                true
            }
            Report::Arguments(arguments) if is_for_us || self.arguments.is_none() => {
                self.arguments = Some(arguments.clone());
                true
            }
            Report::Phase { phase } if is_for_us => {
                (self.rank, self.phase) = (rank, Some(*phase));
                self.first.turn_to(*phase);
                true
            }
            _ => false,
        }
    }

    /// What the latest steps took, by their median.
    pub fn recent_s(&self) -> Option<f64> {
        let seconds: Vec<f64> = self.latest.iter().map(|step| step.seconds).collect();
        (!seconds.is_empty()).then(|| median(&seconds))
    }

    fn count(&mut self, step: &StepReport) {
        let before = self.steps as f64;
        self.steps += 1;
        let weight = 1.0 / self.steps as f64;
        self.mean_s += (step.seconds - self.mean_s) * weight;
        self.mean = match (self.mean, step.breakdown) {
            (None, Some(first)) if self.steps == 1 => Some(first),
            (Some(mean), Some(next)) => Some(mean * (before * weight) + next * weight),
            _ => None,
        };
        if self.latest.len() == LATEST {
            self.latest.remove(0);
        }
        self.latest.push(step.clone());
    }
}

#[cfg(test)]
mod tests {
    use bedplate_breakdown::{Part, Span};
    use bedplate_units::Seconds;

    use super::*;

    fn step(step: u64, seconds: f64) -> Report {
        let breakdown = Breakdown::default().with(Part::Compute, Span::exposed(Seconds::new(seconds)));
        let report = StepReport { step, seconds, tokens: None, loss: None, breakdown: Some(breakdown) };
        Report::Step(Box::new(report))
    }

    #[test]
    fn the_mean_is_over_all_steps_and_the_latest_are_kept() {
        let mut history = StepHistory::default();
        for number in 1..=20 {
            assert!(history.take(0, &step(number, number as f64)));
            assert!(!history.take(3, &step(number, 99.0)), "another rank does not count twice");
        }
        assert_eq!((history.rank, history.steps), (0, 20));
        assert!((history.mean_s - 10.5).abs() < 1e-9);
        assert!((history.mean.unwrap().total().get() - 10.5).abs() < 1e-9);
        let latest: Vec<u64> = history.latest.iter().map(|step| step.step).collect();
        assert_eq!(latest, [13, 14, 15, 16, 17, 18, 19, 20]);
        let text = serde_json::to_string(&history).unwrap();
        assert_eq!(serde_json::from_str::<StepHistory>(&text).unwrap(), history);
    }

    #[test]
    fn the_lowest_rank_that_reports_stands_for_the_run() {
        let mut history = StepHistory::default();
        history.take(2, &step(1, 4.0));
        history.take(1, &step(1, 2.0));
        assert_eq!((history.rank, history.steps, history.mean_s), (1, 1, 2.0));
        assert!(history.take(1, &Report::Phase { phase: Phase::Training }));
        assert!(!history.take(1, &Report::Progress { step: 9 }));
        let mut history = StepHistory::default();
        history.take(0, &Report::Phase { phase: Phase::Loading });
        assert!(history.take(7, &step(1, 2.0)), "only the last rank prints steps");
        assert_eq!((history.rank, history.steps), (7, 1));
    }
}
