//! Who holds up whom: the calls of all ranks compared, and followed to the rank that waits for nobody.
//!
//! A rank that has not entered a collective may itself wait in another group, so absence alone blames the wrong one. Every
//! rank is given what it waits for; whom all waiting leads to is where it began. A rank without a record, or with an empty
//! one, has its host stuck or is gone. A rank far ahead of its peers with nothing completed has a device that is stuck:
//! its host goes on asking.

use std::collections::{BTreeMap, BTreeSet};

use crate::record::{CallState, FlightCall, Record};

/// Why a rank holds up others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Held {
    /// Its host never made the call, and it waits for nobody.
    HostStuck,
    /// It left no record, or an empty one.
    NoRecord,
    /// Its host is ahead of all others and its device completes nothing.
    DeviceStuck,
    /// It made another call than its peers.
    OtherCall,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Holder {
    pub rank: u32,
    pub why: Held,
    /// The call that others wait in, in words.
    pub collective: String,
    /// Ranks that wait because of it.
    pub waiting: u32,
    /// The innermost frames of what it did last, where the record has them.
    pub frames: Vec<String>,
}

/// What all records say together.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Waits {
    /// The ranks that hold up others, the worst first.
    pub holders: Vec<Holder>,
    /// All ranks of a group are in a call that does not end.
    pub all_inside: Option<String>,
    pub ranks: u32,
}

/// A group by what its members agree on; names of groups are a rank's own.
type Key = (String, Vec<u32>);

/// The progress of one rank in one group.
#[derive(Debug, Clone, Copy)]
struct Progress {
    /// The newest call that was made, and the newest that is done.
    enqueued: i64,
    completed: i64,
    /// Its record has calls of all members; where ranks only send to each other, numbers belong to pairs.
    has_collectives: bool,
}

pub fn waits(records: &[Record], world: Option<u32>) -> Waits {
    let by_rank: BTreeMap<u32, &Record> = records.iter().map(|record| (record.rank, record)).collect();
    let groups = groups(&by_rank);
    let members = groups.keys().flat_map(|(_, ranks)| ranks.iter().copied());
    let all: BTreeSet<u32> =
        members.chain(by_rank.keys().copied()).chain(0..world.unwrap_or(0).min(1 << 20)).collect();
    let mut found = Waits { ranks: all.len() as u32, ..Waits::default() };
    if let Some(holder) = differing(&groups, &by_rank) {
        found.holders.extend(holder);
        return found;
    }
    let (waits_for, calls) = edges(&groups, &by_rank);
    let stuck = stuck_devices(&groups, &by_rank);
    let mut blamed: BTreeMap<u32, (u32, String)> = BTreeMap::new();
    for rank in waits_for.keys() {
        for source in sources(*rank, &waits_for) {
            let collective = calls.get(rank).cloned().unwrap_or_default();
            blamed.entry(source).or_insert((0, collective)).0 += 1;
        }
    }
    let silent = |rank: &u32| by_rank.get(rank).is_none_or(|record| record.calls.is_empty());
    let mut holders: Vec<Holder> = Vec::new();
    // A device that is stuck keeps its host running ahead; whoever is absent then waits for it in another group.
    for rank in &stuck {
        let collective = calls.get(rank).cloned().unwrap_or_default();
        holders.push(holder(*rank, Held::DeviceStuck, collective, waits_for.len() as u32, &by_rank));
    }
    let has_silent = all.iter().any(silent);
    if stuck.is_empty() || has_silent {
        holders.clear();
        for (rank, (waiting, collective)) in blamed {
            let why = if silent(&rank) { Held::NoRecord } else { Held::HostStuck };
            if !has_silent || why == Held::NoRecord {
                holders.push(holder(rank, why, collective, waiting, &by_rank));
            }
        }
        for rank in all.iter().filter(|rank| silent(rank)) {
            if !by_rank.is_empty() && holders.iter().all(|holder| holder.rank != *rank) {
                holders.push(holder(*rank, Held::NoRecord, String::new(), 0, &by_rank));
            }
        }
    }
    holders.sort_by_key(|holder| (std::cmp::Reverse(holder.waiting), holder.rank));
    if holders.is_empty() {
        found.all_inside = inside(&groups, &calls);
    }
    found.holders = holders;
    found
}

fn holder(
    rank: u32,
    why: Held,
    collective: String,
    waiting: u32,
    records: &BTreeMap<u32, &Record>,
) -> Holder {
    let record = records.get(&rank);
    let last = || record.and_then(|record| record.calls.last()).map(|call| call.frames.clone());
    let stack = record.map(|record| record.stack.clone()).filter(|stack| !stack.is_empty());
    Holder { rank, why, collective, waiting, frames: stack.or_else(last).unwrap_or_default() }
}

/// The progress of every member in every group of two ranks or more.
fn groups(records: &BTreeMap<u32, &Record>) -> BTreeMap<Key, BTreeMap<u32, Progress>> {
    let mut groups: BTreeMap<Key, BTreeMap<u32, Progress>> = BTreeMap::new();
    for (rank, record) in records {
        for (at, group) in record.groups.iter().enumerate() {
            if group.ranks.len() < 2 {
                continue;
            }
            let done =
                |call: &&FlightCall| call.group == at && !call.is_p2p && call.state == CallState::Completed;
            let completed = record.calls.iter().filter(done).map(|call| call.number).max().unwrap_or(-1);
            let progress = Progress {
                enqueued: record.newest(at),
                completed: completed.max(group.completed),
                has_collectives: record.calls.iter().any(|call| call.group == at && !call.is_p2p),
            };
            groups
                .entry((group.description.clone(), group.ranks.clone()))
                .or_default()
                .insert(*rank, progress);
        }
    }
    groups
}

/// What every waiting rank waits for, and the call it waits in.
fn edges(
    groups: &BTreeMap<Key, BTreeMap<u32, Progress>>,
    records: &BTreeMap<u32, &Record>,
) -> (BTreeMap<u32, BTreeSet<u32>>, BTreeMap<u32, String>) {
    let mut waits_for: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    let mut calls: BTreeMap<u32, String> = BTreeMap::new();
    for ((description, ranks), progress) in groups {
        // The oldest call that somebody made and nobody could finish.
        let open = progress
            .values()
            .filter(|each| each.enqueued > each.completed)
            .map(|each| each.completed + 1)
            .min();
        let Some(number) = open else { continue };
        let has_entered = |rank: &u32| progress.get(rank).is_some_and(|each| each.enqueued >= number);
        let absent: BTreeSet<u32> = ranks.iter().copied().filter(|rank| !has_entered(rank)).collect();
        for rank in ranks.iter().filter(|rank| has_entered(rank)) {
            let what = records.get(rank).and_then(|record| {
                let call = record.calls.iter().find(|call| {
                    let group = &record.groups[call.group];
                    group.description == *description
                        && group.ranks == *ranks
                        && call.number == number
                        && !call.is_p2p
                });
                call.map(|call| call.what.clone())
            });
            let what = what.unwrap_or_else(|| "call".to_owned());
            calls.entry(*rank).or_insert(format!("{what} {number} of {description}"));
            waits_for.entry(*rank).or_default().extend(&absent);
        }
    }
    for (rank, record) in records {
        for call in record.calls.iter().filter(|call| call.is_p2p && call.state != CallState::Completed) {
            // `recv 3<-0`: the numbers are of the group.
            let Some(peer) = peer(call, record) else { continue };
            let answered = records.get(&peer).is_some_and(|other| {
                other.calls.iter().any(|theirs| {
                    theirs.is_p2p && theirs.number == call.number && self::peer(theirs, other) == Some(*rank)
                })
            });
            if !answered {
                waits_for.entry(*rank).or_default().insert(peer);
                calls.entry(*rank).or_insert(call.what.clone());
            }
        }
    }
    (waits_for, calls)
}

fn peer(call: &FlightCall, record: &Record) -> Option<u32> {
    let digits = call.what.rsplit(['>', '-']).next()?;
    let member: usize = digits.trim().parse().ok()?;
    let ranks = &record.groups[call.group].ranks;
    ranks.get(member).copied().or(u32::try_from(member).ok())
}

/// Whom waiting leads to: ranks that wait for nobody.
fn sources(from: u32, waits_for: &BTreeMap<u32, BTreeSet<u32>>) -> BTreeSet<u32> {
    let mut seen = BTreeSet::from([from]);
    let mut open = vec![from];
    let mut found = BTreeSet::new();
    while let Some(rank) = open.pop() {
        match waits_for.get(&rank) {
            Some(next) if !next.is_empty() => {
                open.extend(next.iter().copied().filter(|next| seen.insert(*next)))
            }
            _ if rank != from => {
                found.insert(rank);
            }
            _ => {}
        }
    }
    found
}

/// Ranks whose hosts are ahead of all their peers in some group by calls that their devices do not finish, while those peers wait.
fn stuck_devices(
    groups: &BTreeMap<Key, BTreeMap<u32, Progress>>,
    records: &BTreeMap<u32, &Record>,
) -> Vec<u32> {
    let behind = behind(groups);
    if !behind.is_empty() && behind.len() * 4 <= records.len().max(4) {
        return Vec::from_iter(behind);
    }
    let open =
        |record: &&Record| record.calls.iter().filter(|call| call.state != CallState::Completed).count();
    let counts: BTreeMap<u32, usize> = records.iter().map(|(rank, record)| (*rank, open(record))).collect();
    let mut sorted: Vec<usize> = counts.values().copied().collect();
    sorted.sort_unstable();
    let Some(middle) = sorted.get(sorted.len() / 2).copied() else { return Vec::new() };
    let is_ahead = |rank: &u32| {
        groups.values().any(|progress| {
            let Some(own) = progress.get(rank) else { return false };
            let others = progress.iter().filter(|(other, _)| *other != rank);
            own.enqueued > own.completed
                && others.clone().count() > 0
                && others.clone().all(|(_, other)| own.enqueued > other.enqueued)
        })
    };
    // Clearly more calls are open than with most others, and more than a pipeline's schedule explains.
    let stuck =
        counts.iter().filter(|(rank, open)| **open as f64 >= 1.3 * middle as f64 + 3.0 && is_ahead(rank));
    let stuck: Vec<u32> = stuck.map(|(rank, _)| *rank).collect();
    if stuck.len() * 4 <= records.len() { stuck } else { Vec::new() }
}

/// Ranks that have made calls which their peers have completed and they have not: what the others were given, their
/// devices never finished.
fn behind(groups: &BTreeMap<Key, BTreeMap<u32, Progress>>) -> BTreeSet<u32> {
    /// Records are not written at one moment; a call more or less means nothing.
    const CALLS: i64 = 2;
    let mut behind = BTreeSet::new();
    for progress in groups.values() {
        let known = || progress.iter().filter(|(_, each)| each.has_collectives);
        let furthest = known().map(|(_, each)| each.completed).max().unwrap_or(-1);
        let is_behind =
            |each: &Progress| each.completed + CALLS <= furthest && each.enqueued > each.completed + CALLS;
        let of_group: Vec<u32> = known().filter(|(_, each)| is_behind(each)).map(|(rank, _)| *rank).collect();
        if of_group.len() * 2 <= known().count() {
            behind.extend(of_group);
        }
    }
    behind
}

/// Ranks that made another call under the same number.
fn differing(
    groups: &BTreeMap<Key, BTreeMap<u32, Progress>>,
    records: &BTreeMap<u32, &Record>,
) -> Option<Vec<Holder>> {
    for (description, ranks) in groups.keys() {
        let mut by_number: BTreeMap<i64, BTreeMap<String, Vec<u32>>> = BTreeMap::new();
        for rank in ranks {
            let Some(record) = records.get(rank) else { continue };
            for call in record
                .calls
                .iter()
                .filter(|call| !call.is_p2p && call.state != CallState::Completed && call.number >= 0)
            {
                let group = &record.groups[call.group];
                if group.description == *description && group.ranks == *ranks {
                    by_number
                        .entry(call.number)
                        .or_default()
                        .entry(call.what.clone())
                        .or_default()
                        .push(*rank);
                }
            }
        }
        let Some((number, calls)) = by_number.into_iter().find(|(_, calls)| calls.len() > 1) else {
            continue;
        };
        let (usual, _) = calls.iter().max_by_key(|(_, ranks)| ranks.len())?;
        let odd = calls.iter().filter(|(what, _)| *what != usual);
        let holders = odd.flat_map(|(what, ranks)| {
            let collective = format!("{usual} {number} of {description}, and {what} on this rank");
            ranks.iter().map(move |rank| (*rank, collective.clone()))
        });
        let waiting = ranks.len() as u32;
        return Some(
            holders
                .map(|(rank, collective)| holder(rank, Held::OtherCall, collective, waiting, records))
                .collect(),
        );
    }
    None
}

/// A call that all of a group's ranks are in.
fn inside(groups: &BTreeMap<Key, BTreeMap<u32, Progress>>, calls: &BTreeMap<u32, String>) -> Option<String> {
    let stands = |progress: &BTreeMap<u32, Progress>| {
        !progress.is_empty() && progress.values().all(|each| each.enqueued > each.completed)
    };
    let (_, progress) = groups.iter().find(|(_, progress)| stands(progress))?;
    progress.keys().find_map(|rank| calls.get(rank).cloned())
}
