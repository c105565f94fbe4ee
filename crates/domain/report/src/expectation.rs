//! What a step of a job should take, and whose word that is.
//!
//! Every job that makes steps has an expectation: the prediction that it was submitted with, else the one that the job or
//! somebody who read its output made of its model and layout, else the first healthy stretch of its own steps. The first two are
//! right to within [`Expectation::WITHIN`]; the last says only what the job could do on the nodes that it got.

use bedplate_breakdown::{Breakdown, Predicted};
use serde::{Deserialize, Serialize};

use crate::StepHistory;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Expectation {
    /// A step's seconds, and the 80 % interval around them.
    pub seconds: f64,
    pub low: f64,
    pub high: f64,
    pub basis: Basis,
    /// Whose word it is, in words.
    pub source: String,
    /// By part, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub breakdown: Option<Breakdown<Predicted>>,
}

/// What an expectation rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// A prediction that came with the submission.
    Submitted,
    /// A prediction made when the job ran, by itself or from what it said.
    Told,
    /// What it took itself at first.
    OwnSteps,
}

impl Expectation {
    /// A prediction of ours is right to within this, see docs/plan.md.
    pub const WITHIN: f64 = 0.2;

    /// What is known of a job: the prediction in its submission, and what its run reported.
    pub fn of(submitted: Option<&Breakdown<Predicted>>, steps: Option<&StepHistory>) -> Option<Self> {
        if let Some(breakdown) = submitted {
            return Some(Self::predicted(breakdown, Basis::Submitted, "the plan it was submitted with"));
        }
        let steps = steps?;
        if let Some(breakdown) = &steps.predicted {
            return Some(Self::told(breakdown, steps.predicted_by.as_deref()));
        }
        steps.first.settled().map(|stretch| Self {
            source: format!("its own steps {} to {}", stretch.from, stretch.to),
            basis: Basis::OwnSteps,
            breakdown: stretch.mean.map(|mean| mean.as_expected()),
            ..Self::about(stretch.seconds)
        })
    }

    /// What a job reports, with what it says that rests on.
    pub fn told(breakdown: &Breakdown<Predicted>, source: Option<&str>) -> Self {
        Self::predicted(breakdown, Basis::Told, source.unwrap_or("the job itself"))
    }

    /// Whether it is a prediction, and not what the job took itself at first.
    pub fn is_prediction(&self) -> bool {
        self.basis != Basis::OwnSteps
    }

    fn predicted(breakdown: &Breakdown<Predicted>, basis: Basis, source: &str) -> Self {
        let seconds = breakdown.total().get();
        Self { basis, source: source.to_owned(), breakdown: Some(*breakdown), ..Self::about(seconds) }
    }

    /// A step of about this long, as somebody said.
    pub fn said(seconds: f64, source: impl Into<String>) -> Self {
        Self { source: source.into(), ..Self::about(seconds) }
    }

    fn about(seconds: f64) -> Self {
        let (low, high) = (seconds / (1.0 + Self::WITHIN), seconds * (1.0 + Self::WITHIN));
        Self { seconds, low, high, basis: Basis::Told, source: String::new(), breakdown: None }
    }
}

/// A job's step in a list: what it should take, and what it takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct StepPace {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_s: Option<f64>,
    /// Whether that is a prediction, and not what the job took at first.
    #[serde(default)]
    pub is_predicted: bool,
    /// The median of the latest steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured_s: Option<f64>,
    /// Steps done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
}

impl StepPace {
    /// Absent where neither is known.
    pub fn of(submitted: Option<&Breakdown<Predicted>>, steps: Option<&StepHistory>) -> Option<Self> {
        let expected = Expectation::of(submitted, steps);
        let measured_s = steps.and_then(StepHistory::recent_s);
        if expected.is_none() && measured_s.is_none() {
            return None;
        }
        Some(Self {
            expected_s: expected.as_ref().map(|expected| expected.seconds),
            is_predicted: expected.is_some_and(|expected| expected.is_prediction()),
            measured_s,
            step: steps.and_then(|steps| Some(steps.latest.last()?.step)),
        })
    }
}

#[cfg(test)]
mod tests {
    use bedplate_breakdown::{Part, Span};
    use bedplate_units::Seconds;

    use super::*;
    use crate::{Report, StepReport};

    fn breakdown<Origin>(seconds: f64) -> Breakdown<Origin> {
        Breakdown::default().with(Part::Compute, Span::exposed(Seconds::new(seconds)))
    }

    fn steps(count: u64, seconds: f64) -> StepHistory {
        let mut history = StepHistory::default();
        for step in 1..=count {
            let breakdown = Some(breakdown(seconds));
            let report = StepReport { step, seconds, tokens: None, loss: None, breakdown };
            history.take(0, &Report::Step(Box::new(report)));
        }
        history
    }

    #[test]
    fn a_submitted_plan_counts_before_the_jobs_own_and_that_before_its_first_steps() {
        let mut history = steps(40, 2.0);
        let own = Expectation::of(None, Some(&history)).unwrap();
        assert_eq!((own.basis, own.seconds), (Basis::OwnSteps, 2.0));
        assert_eq!(own.source, "its own steps 4 to 23");
        assert_eq!(own.breakdown.unwrap()[Part::Compute].exposed, Seconds::new(2.0));
        let told = Report::Predicted {
            breakdown: Box::new(breakdown(1.5)),
            source: Some("the plan of dp4".to_owned()),
        };
        history.take(0, &told);
        let told = Expectation::of(None, Some(&history)).unwrap();
        assert_eq!((told.basis, told.seconds, &told.source[..]), (Basis::Told, 1.5, "the plan of dp4"));
        let submitted = Expectation::of(Some(&breakdown(1.0)), Some(&history)).unwrap();
        assert_eq!((submitted.basis, submitted.seconds, submitted.high), (Basis::Submitted, 1.0, 1.2));
        let pace = StepPace::of(Some(&breakdown(1.0)), Some(&history)).unwrap();
        assert_eq!((pace.expected_s, pace.measured_s, pace.step), (Some(1.0), Some(2.0), Some(40)));
        assert!(pace.is_predicted);
    }

    #[test]
    fn a_job_without_steps_has_no_expectation() {
        assert_eq!(Expectation::of(None, None), None);
        assert_eq!(Expectation::of(None, Some(&steps(10, 1.0))), None);
        assert_eq!(StepPace::of(None, Some(&StepHistory::default())), None);
    }
}
