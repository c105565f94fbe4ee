//! The reports there are.

use bedplate_breakdown::{Breakdown, Measured, Predicted};
use serde::{Deserialize, Serialize};

use crate::RunArguments;

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
    /// What the job itself expects of a step, and what that rests on, in words.
    Predicted {
        breakdown: Box<Breakdown<Predicted>>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        source: Option<String>,
    },
    /// What is trained, and how it is shared out; agents find it in the output of known trainers.
    Arguments(Box<RunArguments>),
    /// The pipeline stage of the rank, where there are several: ranks of one stage do the same work.
    Stage { stage: u32 },
    /// What the rank does from now on.
    Phase { phase: Phase },
    /// Where the rank offers metrics for Prometheus, on its own node: `127.0.0.1:8000/metrics`.
    Metrics { address: String },
    /// A GPU failed the rank, which ends because of it.
    Fault(Box<FaultReport>),
    /// A line of the rank's output that tells of an error; agents find such lines themselves.
    Log { line: String },
}

/// A GPU that failed a call, in the words of its driver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultReport {
    /// On the PCI bus.
    pub address: String,
    pub uuid: String,
    /// The code of the rank's error, such as `cuda/device-fault`.
    pub code: String,
    pub message: String,
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
    /// NaN where it is no number: JSON has none, so it is written as `"nan"`.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "crate::loss")]
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

/// No step, token count or duration beyond these is believed, and no path that is longer or has control characters.
const LARGEST_COUNT: u64 = 1 << 53;
const LONGEST_SECONDS: f64 = 1e9;
const LARGEST_LOSS: f64 = 1e12;
const LONGEST_PATH: usize = 4096;
const LONGEST_NAME: usize = 128;
const LONGEST_SOURCE: usize = 256;
const LONGEST_MESSAGE: usize = 1024;

impl Report {
    /// Whether its figures can be true. A job may write anything, and what it writes is shown to people.
    pub(crate) fn is_plausible(&self) -> bool {
        let is_count = |count: u64| count <= LARGEST_COUNT;
        let is_time = |seconds: f64| (0.0..=LONGEST_SECONDS).contains(&seconds);
        match self {
            Report::Progress { step } => is_count(*step),
            Report::Checkpoint(Checkpoint { step, path }) => {
                is_count(*step) && path.as_ref().is_none_or(|path| is_text(path, LONGEST_PATH))
            }
            Report::Step(report) => {
                is_count(report.step)
                    && is_time(report.seconds)
                    && report.tokens.is_none_or(is_count)
                    && report.loss.is_none_or(|loss| loss.is_nan() || loss.abs() <= LARGEST_LOSS)
                    && report.breakdown.is_none_or(|breakdown| is_time(breakdown.total().get()))
            }
            Report::Predicted { breakdown, source } => {
                is_time(breakdown.total().get())
                    && source.as_ref().is_none_or(|source| is_text(source, LONGEST_SOURCE))
            }
            Report::Phase { .. } | Report::Stage { .. } => true,
            Report::Arguments(arguments) => arguments.is_plausible(),
            Report::Log { line } => is_text(line, LONGEST_MESSAGE),
            Report::Metrics { address } => is_own_address(address),
            Report::Fault(fault) => {
                let names = [&fault.address, &fault.uuid, &fault.code];
                names.iter().all(|name| is_text(name, LONGEST_NAME))
                    && is_text(&fault.message, LONGEST_MESSAGE)
            }
        }
    }

    /// How many steps are done, for the reports that say so.
    pub fn progress(&self) -> Option<u64> {
        match self {
            Report::Progress { step } => Some(*step),
            Report::Step(report) => Some(report.step),
            Report::Checkpoint(_)
            | Report::Predicted { .. }
            | Report::Phase { .. }
            | Report::Stage { .. }
            | Report::Arguments(_)
            | Report::Metrics { .. }
            | Report::Fault(_)
            | Report::Log { .. } => None,
        }
    }
}

fn is_text(text: &str, longest: usize) -> bool {
    text.len() <= longest && !text.chars().any(char::is_control)
}

/// Only the node itself: what a job says must not send the agent to other machines.
fn is_own_address(address: &str) -> bool {
    const LONGEST: usize = 200;
    let host_and_port = address.split('/').next().unwrap_or("");
    let Some((host, port)) = host_and_port.rsplit_once(':') else { return false };
    let is_own = host == "localhost" || host == "[::1]" || host.starts_with("127.");
    let is_plain = address.chars().all(|each| each.is_ascii_graphic() && !"\",{}\\".contains(each));
    is_own && port.parse::<u16>().is_ok_and(|port| port > 0) && is_plain && address.len() <= LONGEST
}
