//! Why a gang waits, or can never run. Reasons are data; their text is for people.

use std::fmt;

use bedplate_topology::Level;
use bedplate_units::UtcTime;
use serde::Serialize;

use crate::{Amount, JobId, Span, Time};

/// A job that this cluster under these rules will never run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "code", rename_all = "snake_case")]
pub enum Never {
    /// It asks for nothing, or its fields contradict each other.
    Malformed {
        what: String,
    },
    UnknownName {
        what: &'static str,
        name: String,
        nearest: Option<String>,
    },
    NoSuchNodes {
        needed: u32,
        per_node: Amount,
        matching: u32,
    },
    /// No set of the required level is large enough even when empty.
    LevelTooSmall {
        level: Level,
        needed: u32,
        largest: u32,
    },
    /// Each role would fit alone, but not all of them together.
    RolesDoNotFit,
    /// All sets of the level together do not hold as many segments even when empty.
    TooFewSegments {
        level: Level,
        segment: u32,
        needed: u32,
        possible: u32,
    },
    LongerThanAllowed {
        #[serde(rename = "asked_ms")]
        asked: Span,
        #[serde(rename = "allowed_ms")]
        allowed: Span,
        by: String,
    },
    MoreThanAllowed {
        asked: u64,
        allowed: u64,
        what: &'static str,
        by: String,
    },
    /// More than the queue could ever have, all borrowing included.
    BeyondQuota {
        asked: u64,
        most: u64,
        queue: String,
        kind: String,
    },
    /// A job that was to succeed before it did not.
    DependencyFailed {
        on: JobId,
    },
    /// A job succeeded that was not to: it was to run only after a failure.
    DependencySucceeded {
        on: JobId,
    },
}

/// Why a gang does not run now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "code", rename_all = "snake_case")]
pub enum Wait {
    Held,
    NotBefore {
        #[serde(rename = "begin_ms")]
        begin: Time,
    },
    /// Until these jobs have ended (as they should).
    Dependency {
        on: Vec<JobId>,
    },
    /// Another job of the same name and user is ahead.
    Singleton {
        behind: JobId,
    },
    ArrayLimit {
        running: u32,
        at_once: u32,
    },
    PartitionDown {
        partition: String,
    },
    /// A limit of its QOS.
    Limit {
        what: &'static str,
        by: String,
        used: u64,
        asked: u64,
        allowed: u64,
    },
    Quota {
        queue: String,
        kind: String,
        asked: u64,
        available: u64,
    },
    /// Enough GPUs are free, but not where the gang could use them together.
    Fragmented {
        free_gpus: u64,
        level: Option<Level>,
        largest: u32,
        needed: u32,
    },
    /// Enough nodes are free now, but not for long enough: a reservation is ahead.
    BehindReservation {
        of: JobId,
        #[serde(rename = "from_ms")]
        from: Time,
    },
    /// Enough nodes are free now, but they leave or are maintained too soon.
    BeforeMaintenance {
        #[serde(rename = "from_ms")]
        from: Time,
    },
    /// It could start now, but with its nodes further apart it would end later than if it waits.
    ForNeighbours {
        level: Level,
    },
    /// Not enough is free.
    Resources {
        nodes_free: u32,
        needed: u32,
        until: Option<JobId>,
    },
    /// The gangs it replaces are stopping.
    Preempting {
        victims: usize,
    },
    /// Stopped in place until its nodes are free again.
    Suspended,
    /// It may run; the next pass decides.
    NotTriedYet,
    /// In strict order no gang passes the one in front.
    InOrder {
        behind: JobId,
    },
}

impl Wait {
    /// Whether another request might have started.
    pub fn is_for_resources(&self) -> bool {
        matches!(
            self,
            Wait::Fragmented { .. }
                | Wait::BehindReservation { .. }
                | Wait::BeforeMaintenance { .. }
                | Wait::Resources { .. }
        )
    }
}

impl fmt::Display for Never {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Never::Malformed { what } => write!(f, "{what}"),
            Never::UnknownName { what, name, nearest } => {
                write!(f, "there is no {what} `{name}`")?;
                nearest.as_ref().map_or(Ok(()), |nearest| write!(f, "; did you mean `{nearest}`?"))
            }
            Never::NoSuchNodes { needed, per_node, matching } => {
                write!(f, "it needs {needed} nodes with {per_node}, and the cluster has {matching} of them")
            }
            Never::LevelTooSmall { level, needed, largest } => {
                write!(f, "it needs {needed} nodes in one {level}, and the largest has {largest}")
            }
            Never::RolesDoNotFit => write!(f, "its roles do not fit together, even on the empty cluster"),
            Never::TooFewSegments { level, segment, needed, possible } => write!(
                f,
                "it needs {needed} segments of {segment} nodes in one {level} each, and there are {possible}"
            ),
            Never::LongerThanAllowed { asked, allowed, by } => {
                write!(f, "it asks for {asked}, and {by} allows {allowed}")
            }
            Never::MoreThanAllowed { asked, allowed, what, by } => {
                write!(f, "it asks for {asked} {what}, and {by} allows {allowed}")
            }
            Never::BeyondQuota { asked, most, queue, kind } => {
                write!(f, "it asks for {asked} {kind}, and queue `{queue}` can have {most} at most")
            }
            Never::DependencyFailed { on } => write!(f, "{on}, which was to succeed first, did not"),
            Never::DependencySucceeded { on } => {
                write!(f, "{on} succeeded, and it was to run only if that failed")
            }
        }
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wait::Held => write!(f, "it is held; `job release` lets it go"),
            Wait::NotBefore { begin } => write!(f, "it may not begin before {}", At(*begin)),
            Wait::Dependency { on } => {
                write!(f, "it waits for ")?;
                on.iter().enumerate().try_for_each(|(index, job)| {
                    let comma = if index > 0 { ", " } else { "" };
                    write!(f, "{comma}{job}")
                })
            }
            Wait::Singleton { behind } => write!(f, "{behind} of the same name and user is ahead"),
            Wait::ArrayLimit { running, at_once } => {
                write!(f, "{running} of its array run, and {at_once} may at once")
            }
            Wait::PartitionDown { partition } => write!(f, "partition `{partition}` takes no work"),
            Wait::Limit { what, by, used, asked, allowed } => {
                write!(f, "{by} allows {allowed} {what}; {used} are in use and it asks for {asked}")
            }
            Wait::Quota { queue, kind, asked, available } => {
                write!(f, "queue `{queue}` has {available} {kind} left and it asks for {asked}")
            }
            Wait::Fragmented { free_gpus, level: Some(level), largest, needed } => write!(
                f,
                "{free_gpus} GPUs are free, but no {level} has more than {largest} of the {needed} nodes it needs"
            ),
            Wait::Fragmented { free_gpus, level: None, largest, needed } => write!(
                f,
                "{free_gpus} GPUs are free, but only {largest} nodes have enough of them; it needs {needed}"
            ),
            Wait::BehindReservation { of, from } => {
                write!(f, "nodes are free, but {of} has them reserved from {}", At(*from))
            }
            Wait::BeforeMaintenance { from } => {
                write!(f, "nodes are free, but go out of service at {}", At(*from))
            }
            Wait::ForNeighbours { level } => {
                write!(f, "nodes are free, but waiting for some of one {level} ends earlier")
            }
            Wait::Resources { nodes_free, needed, until } => {
                write!(f, "{nodes_free} nodes have enough free and it needs {needed}")?;
                until.map_or(Ok(()), |job| write!(f, "; {job} must end first"))
            }
            Wait::Preempting { victims: 1 } => write!(f, "the gang that makes room for it is stopping"),
            Wait::Preempting { victims } => {
                write!(f, "the {victims} gangs that make room for it are stopping")
            }
            Wait::Suspended => write!(f, "it is suspended until its nodes are free again"),
            Wait::NotTriedYet => write!(f, "it has not been tried yet"),
            Wait::InOrder { behind } => write!(f, "{behind} is ahead, and gangs start in strict order"),
        }
    }
}

/// A time as a date where it is one, and as the distance from zero where a simulation counts from there.
struct At(Time);

/// The first millisecond of 2000.
const FIRST_DATE: u64 = 946_684_800_000;

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.0 < FIRST_DATE {
            return write!(f, "t+{}", self.0.since(Time::ZERO));
        }
        let UtcTime { date, hour, minute, .. } = UtcTime::of(self.0.0 / 1000);
        write!(f, "{date} {hour:02}:{minute:02} UTC")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_dates_where_they_can_be() {
        for (ms, printed) in [
            (0, "t+0ms"),
            (90_000, "t+1m 30s"),
            (951_782_400_000, "2000-02-29 00:00 UTC"),
            (1_794_751_260_000, "2026-11-15 14:01 UTC"),
            (4_107_542_400_000, "2100-03-01 00:00 UTC"),
        ] {
            assert_eq!(At(Time(ms)).to_string(), printed);
        }
    }
}
