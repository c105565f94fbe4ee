//! The verdict on everything tried, as data for `explain`.

use std::fmt;

use bedplate_units::{Dollars, Seconds};

use crate::estimate::{LimitBound, Miss};
use crate::{Edge, Plan, ServingLayout, ServingLayoutRefusal};

/// Something tried on one of the supplies, with its verdict.
#[derive(Debug, Clone, PartialEq)]
pub struct Tried {
    /// Index of the supply.
    pub supply: usize,
    pub what: TriedSubject,
    pub verdict: Verdict,
}

/// A way to split a replica, or a whole plan.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TriedSubject {
    Layout(ServingLayout),
    Plan(Plan),
}

impl TriedSubject {
    /// The layouts in it: one, or two with pools.
    pub fn layouts(&self) -> (ServingLayout, Option<ServingLayout>) {
        match self {
            TriedSubject::Layout(layout) => (*layout, None),
            TriedSubject::Plan(Plan::Aggregated(workers)) => (workers.layout, None),
            TriedSubject::Plan(Plan::Disaggregated { prefill, decode }) => {
                (prefill.layout, Some(decode.layout))
            }
        }
    }
}

impl fmt::Display for TriedSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TriedSubject::Layout(layout) => layout.fmt(f),
            TriedSubject::Plan(plan) => plan.fmt(f),
        }
    }
}

/// From worst to best.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    Refused(ServingLayoutRefusal),
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
    /// By the estimate it costs more than the plan found.
    Costlier {
        gpus: u32,
        dollars_per_hour: Option<f64>,
    },
    /// By the estimate it is a near tie of the plan found, but not preferable.
    NotPreferred,
    /// Enough had been replayed.
    NotReplayed,
    /// A replay missed the objectives.
    Missed {
        share: f64,
        bound: Option<LimitBound>,
    },
    /// A replay met the objectives, and another plan is cheaper, or a near tie and preferable.
    Holds {
        share: f64,
        gpus: u32,
        dollars_per_hour: Option<f64>,
        /// What the chosen plan is ahead in.
        edge: Edge,
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
            Verdict::Costlier { .. } => 4,
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
                "{} is {} even on an empty replica; the limit is {}",
                bound.name(),
                Seconds::new(*best),
                Seconds::new(*limit)
            ),
            Verdict::OtherChunk { chunk } => write!(f, "chunks of {chunk} tokens carry more"),
            Verdict::NeedsMoreGpus { needed, available } => {
                write!(f, "at this rate it needs {needed} GPUs and there are {available}")
            }
            Verdict::Costlier { gpus, dollars_per_hour } => {
                write!(f, "needs about {gpus} GPUs{}, more than the chosen plan", price(*dollars_per_hour))
            }
            Verdict::NotPreferred => f.write_str(
                "about as cheap as the chosen plan, which has wider formats, is faster or is simpler",
            ),
            Verdict::NotReplayed => f.write_str("not replayed: enough cheaper plans had been"),
            Verdict::Missed { share, bound } => {
                let bound = bound.map_or(String::new(), |bound| format!("; {} fails most", bound.name()));
                write!(f, "replayed: {:.1}% of requests meet the objectives{bound}", share * 100.0)
            }
            Verdict::Holds { share, gpus, dollars_per_hour, edge } => write!(
                f,
                "replayed: {:.1}% of requests meet the objectives on {gpus} GPUs{}, but the chosen plan {}{edge}",
                share * 100.0,
                price(*dollars_per_hour),
                if *edge == Edge::Cheaper { "" } else { "costs about as much and " }
            ),
            Verdict::Chosen { share } => {
                write!(f, "chosen: {:.1}% of requests meet the objectives", share * 100.0)
            }
        }
    }
}
