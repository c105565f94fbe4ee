//! Everything that was observed of a job.

use bedplate_logs::{Log, Origin, Sign};
use bedplate_report::Expectation;

use crate::record::Record;
use crate::stack::ProcessStack;

/// What `diagnose` judges. All parts may be empty.
#[derive(Debug, Clone, Default)]
pub struct Case {
    pub logs: Vec<NamedLog>,
    /// Flight records of ranks.
    pub records: Vec<Record>,
    /// Where the programs of ranks stand.
    pub stacks: Vec<ProcessStack>,
    /// Seconds since 1970, for a job that should be running; none for one of the past.
    pub now: Option<f64>,
    /// What a step should take.
    pub expected: Option<Expectation>,
    /// How many ranks there are, where it is known.
    pub ranks: Option<u32>,
}

/// A log with the name that evidence cites.
#[derive(Debug, Clone)]
pub struct NamedLog {
    pub name: String,
    pub log: Log,
}

impl NamedLog {
    pub(crate) fn origin(&self, origin: usize) -> &Origin {
        static NOBODY: Origin = Origin { rank: None, local_rank: None, node: None, process: None };
        self.log.origins.get(origin).unwrap_or(&NOBODY)
    }

    /// The rank that wrote a line.
    pub(crate) fn rank(&self, sign: &Sign) -> Option<u32> {
        self.origin(sign.origin).rank.or(sign.rank)
    }

    pub(crate) fn place(&self, line: u64) -> String {
        format!("{}:{line}", self.name)
    }
}
