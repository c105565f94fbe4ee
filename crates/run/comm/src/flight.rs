//! What the flight records of all ranks say together: which rank has not entered which collective.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::recorder::{FlightRecord, Recorded};
use crate::{Call, Operation};

/// What stands still, or differs, in one group.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "finding", rename_all = "snake_case")]
pub enum Standstill {
    /// Some ranks wait in a call that others have not entered.
    NotEntered {
        group: String,
        number: u64,
        call: Call,
        waiting: Vec<u32>,
        missing: Vec<u32>,
        /// What each missing rank did last in this group.
        last: BTreeMap<u32, Option<LastCall>>,
        /// Of the rank that waits longest.
        waited_us: u64,
    },
    /// Ranks made different calls under one number.
    Differs { group: String, number: u64, calls: BTreeMap<u32, Call> },
    /// All ranks are in the call, and it does not end.
    AllInside { group: String, number: u64, call: Call, ranks: Vec<u32>, waited_us: u64 },
    /// A rank of the world left no record.
    NoRecord { rank: u32 },
}

/// The newest call of a rank in a group.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LastCall {
    pub number: u64,
    pub call: Call,
    pub has_left: bool,
}

/// The collectives of each rank in a group.
type Calls<'a> = BTreeMap<u32, Vec<&'a Recorded>>;

/// Compares the records of a world's ranks; nothing is found when no rank waits.
pub fn compare(records: &[FlightRecord]) -> Vec<Standstill> {
    let Some(newest) = records.iter().map(|record| record.epoch).max() else { return Vec::new() };
    let records: BTreeMap<u32, &FlightRecord> =
        records.iter().filter(|record| record.epoch == newest).map(|record| (record.rank, record)).collect();
    let world = records.values().map(|record| record.world).max().unwrap_or(0);
    let mut groups: BTreeMap<(&str, &[u32]), Calls<'_>> = BTreeMap::new();
    for (rank, record) in &records {
        for call in record.calls.iter().filter(|call| call.call.operation.is_collective()) {
            groups.entry((&call.group, &call.ranks)).or_default().entry(*rank).or_default().push(call);
        }
    }
    let of_groups =
        groups.iter().flat_map(|((name, ranks), calls)| standstills(name, ranks, calls, &records));
    let mut found: Vec<Standstill> = of_groups.collect();
    let lacks = (0..world).filter(|rank| !records.contains_key(rank));
    found.extend(lacks.map(|rank| Standstill::NoRecord { rank }));
    found
}

fn standstills(
    name: &str,
    ranks: &[u32],
    calls: &Calls<'_>,
    records: &BTreeMap<u32, &FlightRecord>,
) -> Vec<Standstill> {
    let group = name.to_owned();
    if let Some((number, calls)) = first_difference(calls) {
        return vec![Standstill::Differs { group, number, calls }];
    }
    let open = |rank: &u32| calls.get(rank)?.iter().rev().find(|call| call.left_us.is_none()).copied();
    let Some(waits) = ranks.iter().filter_map(open).min_by_key(|call| call.number) else { return Vec::new() };
    let (number, call) = (waits.number, waits.call);
    let inside = |rank: &&u32| open(rank).is_some_and(|call| call.number == number);
    let has_entered = |rank: &&u32| {
        calls.get(rank).and_then(|calls| calls.last()).is_some_and(|last| last.number >= number)
    };
    let waiting: Vec<u32> = ranks.iter().filter(inside).copied().collect();
    let missing: Vec<u32> = ranks.iter().filter(|rank| !has_entered(rank)).copied().collect();
    let since = |rank: &u32| Some(records.get(rank)?.at_us.saturating_sub(open(rank)?.entered_us));
    let waited_us = waiting.iter().filter_map(since).max().unwrap_or(0);
    if missing.is_empty() {
        return vec![Standstill::AllInside { group, number, call, ranks: waiting, waited_us }];
    }
    let last_of = |rank: &u32| {
        let last = calls.get(rank).and_then(|calls| calls.last());
        let last = last.map(|last| LastCall {
            number: last.number,
            call: last.call,
            has_left: last.left_us.is_some(),
        });
        (*rank, last)
    };
    let last = missing.iter().map(last_of).collect();
    vec![Standstill::NotEntered { group, number, call, waiting, missing, last, waited_us }]
}

/// The first number under which ranks made different calls.
fn first_difference(calls: &Calls<'_>) -> Option<(u64, BTreeMap<u32, Call>)> {
    let mut by_number: BTreeMap<u64, BTreeMap<u32, Call>> = BTreeMap::new();
    for (rank, list) in calls {
        for call in list {
            by_number.entry(call.number).or_default().insert(*rank, call.call);
        }
    }
    by_number.into_iter().find(|(_, calls)| {
        let mut calls = calls.values().map(|call| Call { len: comparable(call), ..*call });
        let first = calls.next();
        calls.any(|call| Some(call) != first)
    })
}

/// Parts of an all-to-all may have different lengths.
fn comparable(call: &Call) -> u64 {
    if call.operation == Operation::AllToAllV { 0 } else { call.len }
}

impl fmt::Display for Standstill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Standstill::NotEntered { group, number, call, waiting, missing, last, waited_us } => {
                let seconds = *waited_us as f64 / 1e6;
                writeln!(f, "group `{group}`, call {number} ({call}):")?;
                writeln!(f, "  not entered by {}", ranks(missing))?;
                write!(f, "  {} wait{} there, for up to {seconds:.1} s", ranks(waiting), ending(waiting))?;
                for (rank, last) in last {
                    write!(f, "\n  rank {rank}: ")?;
                    match last {
                        None => write!(f, "no call in this group")?,
                        Some(LastCall { number, call, has_left: true }) => {
                            write!(f, "its last was call {number} ({call}), which it left")?;
                        }
                        Some(LastCall { number, call, .. }) => write!(f, "still in call {number} ({call})")?,
                    }
                }
                Ok(())
            }
            Standstill::Differs { group, number, calls } => {
                write!(f, "group `{group}`, call {number}: ranks make different calls")?;
                calls.iter().try_for_each(|(rank, call)| write!(f, "\n  rank {rank}: {call}"))
            }
            Standstill::AllInside { group, number, call, ranks: inside, waited_us } => {
                let seconds = *waited_us as f64 / 1e6;
                write!(
                    f,
                    "group `{group}`, call {number} ({call}): {} entered, and it does not end, for {seconds:.1} s",
                    ranks(inside)
                )
            }
            Standstill::NoRecord { rank } => {
                write!(f, "rank {rank} left no record: its process ended, or it never joined")
            }
        }
    }
}

fn ending(ranks: &[u32]) -> &'static str {
    if ranks.len() == 1 { "s" } else { "" }
}

fn ranks(list: &[u32]) -> String {
    match list {
        [] => "no rank".to_owned(),
        [one] => format!("rank {one}"),
        several => format!("ranks {}", several.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")),
    }
}
