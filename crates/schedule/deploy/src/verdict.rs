//! What became of everything that was tried: data, which `explain` reads.

use std::fmt;

use bedplate_units::{Dollars, Seconds};

use crate::estimate::{Bound, Miss};
use crate::{Cut, CutRefusal, Plan};

/// Something that was tried on one of the supplies, and what came of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Tried {
    /// Index of the supply.
    pub supply: usize,
    pub what: Subject,
    pub verdict: Verdict,
}

/// A way to cut a replica, or a whole plan made of such.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Subject {
    Cut(Cut),
    Plan(Plan),
}

impl Subject {
    /// The cuts in it: one, or two with pools.
    pub fn cuts(&self) -> (Cut, Option<Cut>) {
        match self {
            Subject::Cut(cut) => (*cut, None),
            Subject::Plan(Plan::Aggregated(workers)) => (workers.cut, None),
            Subject::Plan(Plan::Disaggregated { prefill, decode }) => (prefill.cut, Some(decode.cut)),
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Cut(cut) => cut.fmt(f),
            Subject::Plan(plan) => plan.fmt(f),
        }
    }
}

/// From the worst to the best end.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    Refused(CutRefusal),
    /// An empty replica already misses a limit.
    TooSlow(Miss),
    /// Another chunk with the same degrees and formats carries more.
    OtherChunk {
        chunk: u32,
    },
    NeedsMoreGpus {
        needed: u32,
        available: u32,
    },
    /// By the estimate it costs more than what was found to hold.
    Dearer {
        gpus: u32,
        dollars_per_hour: Option<f64>,
    },
    /// By the estimate it is as cheap as what was found, and not preferable.
    NotPreferred,
    /// Enough had been replayed.
    NotReplayed,
    /// A replay missed the objectives.
    Missed {
        share: f64,
        bound: Option<Bound>,
    },
    /// A replay met the objectives, and another plan is cheaper or preferable.
    Holds {
        share: f64,
        gpus: u32,
        dollars_per_hour: Option<f64>,
    },
    Chosen {
        share: f64,
    },
}

impl Verdict {
    /// How far it got.
    pub fn stage(&self) -> u8 {
        match self {
            Verdict::Refused(_) => 0,
            Verdict::TooSlow(_) => 1,
            Verdict::OtherChunk { .. } => 2,
            Verdict::NeedsMoreGpus { .. } => 3,
            Verdict::Dearer { .. } => 4,
            Verdict::NotPreferred => 5,
            Verdict::NotReplayed => 6,
            Verdict::Missed { .. } => 7,
            Verdict::Holds { .. } => 8,
            Verdict::Chosen { .. } => 9,
        }
    }
}

fn price(dollars_per_hour: Option<f64>) -> String {
    dollars_per_hour.map_or(String::new(), |dollars| format!(" at {}/h", Dollars::new(dollars)))
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Refused(refusal) => refusal.fmt(f),
            Verdict::TooSlow(Miss { bound, best, limit }) => write!(
                f,
                "{} is {} even on an empty replica; {} are allowed",
                bound.name(),
                Seconds::new(*best),
                Seconds::new(*limit)
            ),
            Verdict::OtherChunk { chunk } => write!(f, "with chunks of {chunk} tokens it carries more"),
            Verdict::NeedsMoreGpus { needed, available } => {
                write!(f, "the rate needs {needed} GPUs so and there are {available}")
            }
            Verdict::Dearer { gpus, dollars_per_hour } => {
                write!(f, "needs about {gpus} GPUs{}, more than what was chosen", price(*dollars_per_hour))
            }
            Verdict::NotPreferred => f.write_str(
                "about as cheap as what was chosen, which has wider formats or was replayed first",
            ),
            Verdict::NotReplayed => f.write_str("not replayed: enough cheaper ones had been"),
            Verdict::Missed { share, bound } => {
                let bound = bound.map_or(String::new(), |bound| format!("; {} fails most", bound.name()));
                write!(f, "replayed: {:.1}% of requests hold the objectives{bound}", share * 100.0)
            }
            Verdict::Holds { share, gpus, dollars_per_hour } => write!(
                f,
                "replayed: {:.1}% of requests hold the objectives on {gpus} GPUs{}, but the chosen one is cheaper or has wider formats",
                share * 100.0,
                price(*dollars_per_hour)
            ),
            Verdict::Chosen { share } => {
                write!(f, "chosen: {:.1}% of requests hold the objectives", share * 100.0)
            }
        }
    }
}
