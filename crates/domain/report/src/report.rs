//! The reports there are.

use bedplate_breakdown::{Breakdown, Measured, Predicted};
use serde::{Deserialize, Serialize};

/// One thing that a rank of a job says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "snake_case")]
pub enum Report {
    /// The rank has done this many steps.
    Progress { step: u64 },
    /// The job can start again from here.
    Checkpoint(Checkpoint),
    /// A step has ended.
    Step(Box<StepReport>),
    /// What the job itself expects of a step.
    Predicted { breakdown: Box<Breakdown<Predicted>> },
    /// What the rank does from now on.
    Phase { phase: Phase },
}

/// A state that a job said it can start from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    pub step: u64,
    #[serde(default)]
    pub path: Option<String>,
}

/// One step as a rank measured it. Fields that a program does not know are absent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepReport {
    /// The first step of a job is 1.
    pub step: u64,
    /// From its start to its end.
    pub seconds: f64,
    /// Since the job began, this step included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub breakdown: Option<Breakdown<Measured>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Weights, data and communicators are being made ready.
    Loading,
    Training,
    Evaluating,
    /// A checkpoint is being written.
    Saving,
    Done,
}

impl Phase {
    pub fn name(self) -> &'static str {
        match self {
            Phase::Loading => "loading",
            Phase::Training => "training",
            Phase::Evaluating => "evaluating",
            Phase::Saving => "saving",
            Phase::Done => "done",
        }
    }
}

impl Report {
    /// How many steps are done, for the reports that say so.
    pub fn progress(&self) -> Option<u64> {
        match self {
            Report::Progress { step } => Some(*step),
            Report::Step(report) => Some(report.step),
            Report::Checkpoint(_) | Report::Predicted { .. } | Report::Phase { .. } => None,
        }
    }
}
