//! What was recognised in a log.

use std::collections::BTreeMap;
use std::fmt;

use crate::{Field, Origin, Stamp};

/// A step of a trainer, or an interval of a server, as one line told it.
#[derive(Debug, Clone, PartialEq)]
pub struct StepLine {
    /// Which of the recognizer's formats.
    pub format: usize,
    /// Which of the log's writers, see [`Log::origins`].
    pub origin: usize,
    /// Counted by the trainer; for a server the number of the line.
    pub step: u64,
    pub total: Option<u64>,
    /// The step's duration where the line says it.
    pub seconds: Option<f64>,
    /// Since the program's start, where the line says that instead.
    pub elapsed: Option<f64>,
    pub stamp: Option<Stamp>,
    pub values: Vec<(Field, f64)>,
    /// Of the log, from 1.
    pub line: u64,
}

impl StepLine {
    pub fn value(&self, field: Field) -> Option<f64> {
        self.values.iter().find(|(known, _)| *known == field).map(|(_, value)| *value)
    }
}

/// Work beside training that makes a step slow for a reason, or what begins anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PhaseKind {
    /// The program starts, or starts again.
    Start,
    Compile,
    Evaluate,
    Save,
    Load,
    /// Data is tokenised or indexed before training.
    Prepare,
    /// Garbage collection, profiles: short and wanted.
    Pause,
    /// The program says that it has finished.
    End,
}

impl PhaseKind {
    pub const ALL: [(&'static str, PhaseKind); 8] = [
        ("start", PhaseKind::Start),
        ("compile", PhaseKind::Compile),
        ("evaluate", PhaseKind::Evaluate),
        ("save", PhaseKind::Save),
        ("load", PhaseKind::Load),
        ("prepare", PhaseKind::Prepare),
        ("pause", PhaseKind::Pause),
        ("end", PhaseKind::End),
    ];

    pub fn name(self) -> &'static str {
        PhaseKind::ALL.into_iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }
}

impl fmt::Display for PhaseKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct PhaseMark {
    pub kind: PhaseKind,
    pub origin: usize,
    pub stamp: Option<Stamp>,
    pub line: u64,
    /// How many of the log's steps came before.
    pub after_steps: usize,
}

/// A line that matches a signature.
#[derive(Debug, Clone, PartialEq)]
pub struct Sign {
    /// Which of the recognizer's signatures.
    pub signature: usize,
    pub origin: usize,
    /// The rank that the line itself names as its writer, such as `[Rank 3]`.
    pub rank: Option<u32>,
    pub stamp: Option<Stamp>,
    pub line: u64,
    /// How many of the log's steps came before.
    pub after_steps: usize,
    /// The line without colours and labels, shortened.
    pub text: String,
    /// Named parts of the line.
    pub captured: Vec<(String, String)>,
}

impl Sign {
    pub fn captured(&self, name: &str) -> Option<&str> {
        self.captured.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// Everything recognised in one log, in its order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Log {
    pub origins: Vec<Origin>,
    pub steps: Vec<StepLine>,
    pub phases: Vec<PhaseMark>,
    pub signs: Vec<Sign>,
    /// Settings and versions that were printed at the beginning.
    pub settings: BTreeMap<String, String>,
    pub lines: u64,
    pub bytes: u64,
    /// Steps and signs that were too many to keep, and where a binary file looked like no text.
    pub dropped: u64,
    /// Zero bytes: a text has none.
    pub is_binary: bool,
    /// The last time that any line told.
    pub last_stamp: Option<Stamp>,
    /// The last lines, for people.
    pub tail: Vec<String>,
}
