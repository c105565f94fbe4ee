//! What a run is asked for, what it tells while it runs, and how it ended.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use bedplate_breakdown::{Breakdown, Predicted};
use bedplate_checkpoint::Published;
use bedplate_layout::Layout;
use bedplate_record::{EvaluationRecord, StepRecord};
use bedplate_report::Phase;
use bedplate_units::Bytes;

use crate::{Membership, TrainError};

/// Receives the events of a run as they happen.
pub trait Observer {
    fn began(&mut self, _setup: &Setup) -> Result<(), TrainError> {
        Ok(())
    }

    /// The run turns to something else.
    fn turned_to(&mut self, _phase: Phase) {}

    /// This rank has its place in a world; again when that was made anew.
    fn took_place(&mut self, _place: &Place<'_>) {}

    /// A step of the run, on the rank that speaks for it.
    fn step(&mut self, _record: &StepRecord) -> Result<(), TrainError> {
        Ok(())
    }

    /// A step of another rank, with this rank's own times.
    fn own_step(&mut self, _record: &StepRecord) {}

    fn evaluated(&mut self, _record: &EvaluationRecord) -> Result<(), TrainError> {
        Ok(())
    }

    fn published(&mut self, _checkpoint: &Published) -> Result<(), TrainError> {
        Ok(())
    }

    /// Ranks were lost or came, and the run goes on. `steps` are the [lines](StepRecord::to_line) of the last step of all ranks: the
    /// rank that told steps before may have been lost with the last of them.
    fn went_on(&mut self, _setup: &Setup, _steps: &[String]) -> Result<(), TrainError> {
        Ok(())
    }

    /// The run waits for ranks; the text is for people.
    fn waits(&mut self, _text: &str) {}
}

/// What a step was predicted to take, and what that rests on, in words.
#[derive(Debug, Clone, PartialEq)]
pub struct StepPlan {
    pub breakdown: Breakdown<Predicted>,
    pub source: Option<String>,
}

/// Where a rank stands among the others.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// Its stage, where there are several.
    pub stage: Option<u32>,
    /// On the rank that speaks for the run.
    pub predicted: Option<&'a StepPlan>,
}

/// What a run is about to do.
#[derive(Debug, Clone)]
pub struct Setup {
    pub parameters: usize,
    /// Numbers that are trained: all, or those of adapters.
    pub trained: usize,
    /// Steps done already; above 0 where a run is resumed.
    pub step: u64,
    pub steps: u64,
    pub tokens_per_step: u64,
    pub memory: Bytes,
    pub threads: usize,
    /// The instructions that operators use.
    pub instructions: String,
    /// What a person should know: what the model's configuration asks for and is not done, checkpoints that were not used,
    /// settings that have changed.
    pub remarks: Vec<String>,
    /// Where the later part of the history lies that this run leaves.
    pub abandoned: Option<PathBuf>,
    /// The history of this folder is not that of the checkpoint.
    pub is_taken_over: bool,
    /// Ranks that train together, and how they share the work.
    pub ranks: usize,
    pub layout: Layout,
}

/// Whether to continue an earlier run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Resume {
    /// A new run; a folder that holds one already is refused.
    #[default]
    No,
    /// From the newest checkpoint of the output folder; from the start when there is none.
    IfPossible,
    /// From the newest checkpoint of the output folder that is good.
    Newest,
    /// From this one: a folder, or the name or step of one of this run. What came after it is set aside.
    From(PathBuf),
}

#[derive(Default)]
pub struct RunOptions<'a> {
    pub resume: Resume,
    /// What a step was predicted to take.
    pub predicted: Option<StepPlan>,
    /// The machine's peak in FLOP/s, for the share that is used.
    pub peak: Option<f64>,
    /// Set to end the run early; it writes a checkpoint first.
    pub stop: Option<&'a AtomicBool>,
    /// Resume although settings have changed that shape the loss curve.
    pub accepts_changes: bool,
    /// Memory that is free; as the system says where this is absent.
    pub free_memory: Option<Bytes>,
    /// Where ranks that come later are found; with it a run goes on when ranks are lost.
    pub membership: Option<Membership>,
    /// Ranks that the run was begun with.
    pub ranks: Option<u32>,
}

/// How a run ended.
#[derive(Debug, Clone)]
pub struct RunSummary {
    pub steps: u64,
    /// Asked to stop before the last step.
    pub was_stopped: bool,
    pub loss: Option<f64>,
    pub evaluation_loss: Option<f64>,
    pub checkpoint: Option<Published>,
    /// The finished weights; absent when the run was stopped.
    pub weights: Option<PathBuf>,
    /// What a person should know of how the run was set up and resumed.
    pub remarks: Vec<String>,
    /// Whether this rank speaks for the run.
    pub is_first: bool,
    /// Whether this process was a rank when the run ended.
    pub had_place: bool,
}

impl RunSummary {
    /// Of a process for which there was no place at the end.
    pub(super) fn not_needed() -> Self {
        Self {
            steps: 0,
            was_stopped: true,
            loss: None,
            evaluation_loss: None,
            checkpoint: None,
            weights: None,
            remarks: Vec::new(),
            is_first: false,
            had_place: false,
        }
    }
}
