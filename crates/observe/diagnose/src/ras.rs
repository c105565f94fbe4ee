//! What NCCL's RAS says of a job: which operations each rank of each communicator has launched, and who does not answer.
//!
//! RAS is in NCCL since 2.24 and on by default; any rank answers for the whole job. Its answer, text or JSON, becomes flight
//! records with one open call per communicator, so that waiting is followed over groups as it is for dumps. Counts that grow
//! between two answers are no stall. How it is asked is `evidence`'s part.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::record::{CallState, FlightCall, ProcessGroup, Record, call_number};

/// One answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Ras {
    pub communicators: Vec<Communicator>,
}

/// A communicator with what each of its ranks has launched.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Communicator {
    pub name: String,
    pub size: u32,
    pub members: BTreeMap<u32, Member>,
}

/// A rank of a communicator; counts are empty where it did not answer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Member {
    /// Host, process and device, which are the same in all communicators.
    pub place: String,
    pub launched: BTreeMap<String, i64>,
    pub is_missing: bool,
}

/// No communicator has more ranks.
const MOST_RANKS: u32 = 1 << 17;
/// NCCL has nine; their counts are added.
const MOST_OPERATIONS: usize = 64;

impl Ras {
    /// Reads an answer in either form; `None` when it is none.
    pub fn read(text: &str) -> Option<Ras> {
        match text.find('{') {
            Some(start) if text[start..].contains("\"collective_counts\"") => of_json(&text[start..]),
            _ if text.contains("Ranks") && text.contains("in group  per comm") => Some(of_text(text)),
            _ => None,
        }
    }

    /// Whether some rank has launched more than it had in an earlier answer.
    pub fn goes_on_since(&self, earlier: &Ras) -> bool {
        let count = |ras: &Ras, name: &str, rank: u32| {
            let communicator = ras.communicators.iter().find(|communicator| communicator.name == name)?;
            communicator.members.get(&rank).map(Member::total)
        };
        self.communicators.iter().any(|communicator| {
            communicator.members.iter().any(|(rank, member)| {
                count(earlier, &communicator.name, *rank).is_some_and(|then| then < member.total())
            })
        })
    }

    /// The ranks of the job with what they have launched, as records. Ranks that do not answer have none.
    pub fn records(&self) -> Vec<Record> {
        let Some(world) = self.communicators.iter().max_by_key(|communicator| communicator.size) else {
            return Vec::new();
        };
        // Ranks of smaller communicators are numbered anew; a place is the same everywhere.
        let ranks: BTreeMap<&str, u32> = world
            .members
            .iter()
            .filter(|(_, member)| !member.place.is_empty())
            .map(|(rank, member)| (member.place.as_str(), *rank))
            .collect();
        let mut records: BTreeMap<u32, Record> = BTreeMap::new();
        for communicator in &self.communicators {
            let is_world = communicator.name == world.name;
            let rank_of = |rank: u32, member: &Member| match is_world {
                true => Some(rank),
                false => ranks.get(member.place.as_str()).copied(),
            };
            let members: Option<Vec<u32>> =
                communicator.members.iter().map(|(rank, member)| rank_of(*rank, member)).collect();
            let Some(mut members) = members else { continue };
            members.sort_unstable();
            for (rank, member) in communicator.members.iter().filter(|(_, member)| !member.is_missing) {
                let Some(rank) = rank_of(*rank, member) else { continue };
                let record = records.entry(rank).or_insert_with(|| Record {
                    rank,
                    name: "NCCL RAS".to_owned(),
                    ..Record::default()
                });
                communicator.add_to(record, member, &members);
            }
        }
        records.into_values().collect()
    }
}

impl Member {
    fn total(&self) -> i64 {
        self.launched.values().take(MOST_OPERATIONS).sum()
    }
}

impl Communicator {
    fn add_to(&self, record: &mut Record, member: &Member, ranks: &[u32]) {
        let answered = || self.members.values().filter(|each| !each.is_missing);
        let least = answered().map(Member::total).min().unwrap_or(0);
        let all_did = |operation: &String| {
            answered().map(|each| each.launched.get(operation).copied().unwrap_or(0)).min().unwrap_or(0)
        };
        // What this rank launched and others did not is what it is in.
        let open = member.launched.iter().find(|(operation, count)| **count > all_did(operation));
        let enqueued = member.total();
        let group = record.groups.len();
        record.groups.push(ProcessGroup {
            id: self.name.clone(),
            description: format!("communicator {}", self.name),
            ranks: ranks.to_vec(),
            enqueued,
            completed: least,
        });
        if let Some((operation, _)) = open {
            record.calls.push(FlightCall {
                group,
                number: enqueued.max(least + 1),
                what: operation.clone(),
                shape: String::new(),
                state: CallState::Started,
                is_p2p: false,
                created_ns: None,
                frames: Vec::new(),
            });
        } else {
            // A record with calls: the rank answers, and is in none of them.
            record.calls.push(FlightCall {
                group,
                number: enqueued,
                what: "the last call".to_owned(),
                shape: String::new(),
                state: CallState::Completed,
                is_p2p: false,
                created_ns: None,
                frames: Vec::new(),
            });
        }
    }
}

fn of_json(text: &str) -> Option<Ras> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let value = values.next()?.ok()?;
    let mut ras = Ras::default();
    let lists = value.as_object()?.values().filter_map(Value::as_array);
    for each in lists.flatten().filter(|each| each["ranks"].is_array()) {
        let mut communicator = Communicator {
            name: each["hash"].as_str().unwrap_or("?").to_owned(),
            size: each["size"].as_u64().and_then(|size| u32::try_from(size).ok()).unwrap_or(0),
            members: BTreeMap::new(),
        };
        for (key, is_missing) in [("ranks", false), ("missing_ranks", true)] {
            for rank in each[key].as_array().into_iter().flatten() {
                let Some(number) = rank["rank"].as_u64().and_then(|rank| u32::try_from(rank).ok()) else {
                    continue;
                };
                let counts = rank["collective_counts"].as_object().into_iter().flatten();
                let launched =
                    counts.filter_map(|(name, count)| Some((name.clone(), call_number(count)?))).collect();
                let place = format!("{} {} {}", rank["host"], rank["pid"], rank["cuda_dev"]);
                communicator.members.insert(number, Member { place, launched, is_missing });
            }
        }
        ras.communicators.push(communicator);
    }
    (!ras.communicators.is_empty()).then_some(ras)
}

/// The text has a table of groups of communicators, and blocks for those with differences. Only they matter.
fn of_text(text: &str) -> Ras {
    let mut sizes: BTreeMap<&str, u32> = BTreeMap::new();
    let mut ras = Ras::default();
    let mut block: Option<Block> = None;
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let [group, _, _, _, size, _, _, ..] = &words[..]
            && let Ok(size) = size.parse()
            && group.parse::<u32>().is_ok()
        {
            sizes.insert(group, size);
        } else if let [name, hash, kind @ ("MISMATCH" | "INCOMPLETE" | "ERROR")] = &words[..]
            && let Some(group) = name.strip_prefix('#').and_then(|name| name.split('-').next())
        {
            ras.communicators.extend(block.take().and_then(Block::finish));
            let size = sizes.get(group).copied().unwrap_or(0).min(MOST_RANKS);
            block = Some(Block::new(hash.trim_matches(['(', ')']), size, *kind == "INCOMPLETE"));
        } else if let Some(block) = &mut block {
            block.line(&words);
        }
    }
    ras.communicators.extend(block.and_then(Block::finish));
    let merged = ras.communicators.into_iter().fold(
        BTreeMap::new(),
        |mut merged: BTreeMap<String, Communicator>, each| {
            match merged.get_mut(&each.name) {
                Some(known) => {
                    known.members.extend(each.members.into_iter().filter(|(_, member)| member.is_missing))
                }
                None => drop(merged.insert(each.name.clone(), each)),
            }
            merged
        },
    );
    Ras { communicators: merged.into_values().collect() }
}

/// One communicator while its lines are read.
struct Block {
    communicator: Communicator,
    is_incomplete: bool,
    operation: String,
    /// What the ranks that the next lines name, or most of them, have launched.
    several: i64,
    most: (u32, i64),
    named: BTreeMap<u32, i64>,
}

impl Block {
    fn new(name: &str, size: u32, is_incomplete: bool) -> Self {
        Self {
            communicator: Communicator { name: name.to_owned(), size, members: BTreeMap::new() },
            is_incomplete,
            operation: String::new(),
            several: 0,
            most: (0, 0),
            named: BTreeMap::new(),
        }
    }

    fn line(&mut self, words: &[&str]) {
        let number = |word: &str| word.parse::<i64>().ok().map(|count| count.clamp(0, 1 << 53));
        match words {
            ["Communicator", "ranks", "have", "different", operation, "operation", "counts"] => {
                self.close();
                self.operation = (*operation).to_owned();
            }
            [count, "ranks", "have", "launched", "up", "to", "operation", reached] => {
                self.several(number(count), number(reached));
            }
            [count, "ranks", "have", "not", "launched", ..] => self.several(number(count), Some(0)),
            ["Rank", rank, "has", "launched", "up", "to", "operation", reached, ..] => {
                if let (Ok(rank), Some(reached)) = (rank.parse(), number(reached)) {
                    self.named.insert(rank, reached);
                }
            }
            ["Rank", rank, "has", "not", "launched", ..] => {
                rank.parse().map(|rank| self.named.insert(rank, 0)).ok();
            }
            ["Rank", rank, ..] => {
                let Ok(rank) = rank.parse() else { return };
                if self.is_incomplete {
                    let member = Member { is_missing: true, ..Member::default() };
                    self.communicator.members.insert(rank, member);
                } else {
                    self.named.insert(rank, self.several);
                }
            }
            _ => {}
        }
    }

    fn several(&mut self, count: Option<i64>, reached: Option<i64>) {
        let (Some(count), Some(reached)) = (count.and_then(|count| u32::try_from(count).ok()), reached)
        else {
            return;
        };
        self.several = reached;
        if count > self.most.0 {
            self.most = (count, reached);
        }
    }

    /// The lines of an operation are over: ranks that no line names did what most did.
    fn close(&mut self) {
        if self.operation.is_empty() {
            return;
        }
        for rank in 0..self.communicator.size {
            let reached = self.named.get(&rank).copied().unwrap_or(self.most.1);
            let member = self.communicator.members.entry(rank).or_default();
            if !member.is_missing {
                member.launched.insert(self.operation.clone(), reached);
            }
        }
        self.named.clear();
        self.most = (0, 0);
    }

    fn finish(mut self) -> Option<Communicator> {
        self.close();
        if self.is_incomplete && self.operation.is_empty() {
            for rank in 0..self.communicator.size {
                self.communicator.members.entry(rank).or_default();
            }
        }
        (!self.communicator.members.is_empty()).then_some(self.communicator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::waits::{Held, waits};

    const TEXT: &str = "\
Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      2          4            1          8        8

Communicators... (0.01s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         2         4         8         8   RUNNING  MISMATCH

Errors
======

Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different AllReduce operation counts
  7 ranks have launched up to operation 6650
  Rank 5 has launched up to operation 6649 -- GPU 1 managed by process 3487984 on node 172.16.64.213
";

    #[test]
    fn the_rank_that_launched_less_is_the_one_that_others_wait_for() {
        let ras = Ras::read(TEXT).expect("it is an answer");
        let found = waits(&ras.records(), None);
        let holders: Vec<(u32, Held)> =
            found.holders.iter().map(|holder| (holder.rank, holder.why)).collect();
        assert_eq!(holders, [(5, Held::HostStuck)]);
        assert!(found.holders[0].collective.starts_with("AllReduce"), "{:?}", found.holders);
        assert_eq!(found.ranks, 8);
    }

    #[test]
    fn a_rank_that_does_not_answer_holds_up_the_others() {
        let text = TEXT.replace("Warnings", "#0-0 (27a079b828ff1a75) INCOMPLETE\n  Missing communicator data from 1 rank\n  Rank 3 -- GPU 3 managed by process 9 on node 172.16.64.212\n\nWarnings");
        let found = waits(&Ras::read(&text).expect("it is an answer").records(), None);
        assert!(
            found.holders.iter().any(|holder| (holder.rank, holder.why) == (3, Held::NoRecord)),
            "{found:?}"
        );
    }

    fn json(counts: [i64; 4], inner: [i64; 2]) -> String {
        let rank = |rank: usize, device: usize, count: i64| {
            format!(
                r#"{{"rank":{rank},"host":"n1","pid":{},"cuda_dev":{device},"status":{{}},"collective_counts":{{"AllReduce":{count},"Broadcast":1}}}}"#,
                100 + device
            )
        };
        let all: Vec<String> = counts.iter().enumerate().map(|(at, count)| rank(at, at, *count)).collect();
        let pair: Vec<String> =
            inner.iter().enumerate().map(|(at, count)| rank(at, at + 2, *count)).collect();
        format!(
            r#"OK
{{"nccl_version":"2.28.3","communicators":[{{"hash":"0x1","size":4,"ranks":[{}],"missing_ranks":[]}},{{"hash":"0x2","size":2,"ranks":[{}],"missing_ranks":[]}}],"ras":{{}}}}
"#,
            all.join(","),
            pair.join(",")
        )
    }

    #[test]
    fn waiting_is_followed_into_smaller_communicators() {
        // Ranks 0 and 1 wait for 2 in the world, and 2 waits for 3 in a pair: 3 is to blame.
        let ras = Ras::read(&json([9, 9, 8, 8], [5, 4])).expect("it is an answer");
        let found = waits(&ras.records(), None);
        assert_eq!(found.holders.first().map(|holder| holder.rank), Some(3), "{found:?}");
    }

    #[test]
    fn counts_that_grow_are_no_stall() {
        let [then, now] =
            [[9, 9, 8, 8], [9, 9, 9, 9]].map(|counts| Ras::read(&json(counts, [5, 5])).unwrap());
        assert!(now.goes_on_since(&then) && !then.goes_on_since(&then));
        assert_eq!(Ras::read("nothing of the kind"), None);
    }
}
