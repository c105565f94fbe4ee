//! Flight records: what each rank last asked of its process groups. One form for PyTorch's dumps and for ours.

use std::collections::BTreeMap;

use serde_json::Value;

/// The record of one rank.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Record {
    pub rank: u32,
    /// The file that it is from.
    pub name: String,
    pub groups: Vec<ProcessGroup>,
    /// Calls in the order in which the rank made them.
    pub calls: Vec<FlightCall>,
    /// What its program does now, the innermost frame first, where that is known.
    pub stack: Vec<String>,
}

/// A process group as its members know it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProcessGroup {
    /// The rank's own name for it.
    pub id: String,
    pub description: String,
    pub ranks: Vec<u32>,
    /// The numbers of the newest calls; -1 before the first.
    pub enqueued: i64,
    pub completed: i64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct FlightCall {
    /// Index of the group.
    pub group: usize,
    /// Number among the group's calls.
    pub number: i64,
    /// `all_reduce`, `send 1->2`.
    pub what: String,
    /// Elements in and out, by dimensions, and their types.
    pub shape: String,
    pub state: CallState,
    pub is_p2p: bool,
    /// When the host asked for it, in nanoseconds of its clock.
    pub created_ns: Option<i64>,
    /// The innermost frames of the caller, file and function.
    pub frames: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CallState {
    Scheduled,
    Started,
    Completed,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    #[error("it is neither a pickle nor JSON: {0}")]
    Unreadable(String),
    #[error("it has no entries of a flight recorder")]
    NotARecord,
}

/// More calls than any ring buffer holds.
const MOST_CALLS: usize = 200_000;
const MOST_FRAMES: usize = 12;

impl Record {
    /// Reads a dump of PyTorch's flight recorder (pickle or JSON) or a record of ours. The rank is in the name, unless the dump says it.
    pub fn read(name: &str, bytes: &[u8]) -> Result<Record, RecordError> {
        let value =
            match bytes.first() {
                Some(b'{' | b' ' | b'\n') => serde_json::from_slice(bytes)
                    .map_err(|error| RecordError::Unreadable(error.to_string()))?,
                _ => crate::pickle::unpickle(bytes)
                    .map_err(|error| RecordError::Unreadable(error.to_string()))?,
            };
        let named = rank_of_name(name);
        match () {
            () if value.get("calls").is_some() && value.get("epoch").is_some() => {
                Ok(ours(name, named, &value))
            }
            () if value.get("entries").is_some() || value.get("pg_config").is_some() => {
                Ok(of_torch(name, named, &value))
            }
            () => Err(RecordError::NotARecord),
        }
    }

    pub(crate) fn newest(&self, group: usize) -> i64 {
        let seen = self
            .calls
            .iter()
            .filter(|call| call.group == group && !call.is_p2p)
            .map(|call| call.number)
            .max();
        seen.unwrap_or(-1).max(self.groups[group].enqueued)
    }
}

/// The number at the end of `nccl_trace_rank_12` or before an extension.
pub(crate) fn rank_of_name(name: &str) -> Option<u32> {
    let file = name.rsplit(['/', '\\']).next()?;
    let stem = file.split('.').next()?;
    let digits = stem.len() - stem.bytes().rev().take_while(u8::is_ascii_digit).count();
    stem[digits..].parse().ok()
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// The number of a call. Ranks wrote it: what no job reaches is cut, so that numbers beside it can be reckoned with.
pub(crate) fn call_number(value: &Value) -> Option<i64> {
    const MOST: i64 = 1 << 53;
    let number = value.as_i64().or_else(|| value.as_str()?.parse().ok())?;
    Some(number.clamp(-1, MOST))
}

/// `"[0, 2]"` or `[0, 2]`.
fn ranks(value: &Value) -> Vec<u32> {
    match value {
        Value::Array(ranks) => ranks.iter().filter_map(|rank| rank.as_u64()?.try_into().ok()).collect(),
        Value::String(text) => {
            text.split([',', '[', ']', ' ']).filter_map(|rank| rank.parse().ok()).collect()
        }
        _ => Vec::new(),
    }
}

fn of_torch(name: &str, rank: Option<u32>, value: &Value) -> Record {
    let mut groups: Vec<ProcessGroup> = Vec::new();
    let mut by_id: BTreeMap<String, usize> = BTreeMap::new();
    let empty = serde_json::Map::new();
    // The status of groups is under numbers that only calls connect with the groups' names.
    let numbers: BTreeMap<String, String> = value["entries"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|entry| !entry["pg_id"].is_null())
        .map(|entry| (text(&entry["process_group"][0]), text(&entry["pg_id"])))
        .collect();
    for (id, config) in value["pg_config"].as_object().unwrap_or(&empty) {
        let unnamed = || numbers.get("0").filter(|_| id.is_empty());
        let number = if numbers.is_empty() { Some(id) } else { numbers.get(id).or_else(unnamed) };
        let status = number.map_or(&Value::Null, |number| &value["pg_status"][number]);
        let number = |key: &str| call_number(&status[key]).unwrap_or(-1);
        by_id.insert(id.clone(), groups.len());
        groups.push(ProcessGroup {
            id: id.clone(),
            description: match text(&config["desc"]) {
                unnamed if unnamed.is_empty() && id.is_empty() => "default_pg".to_owned(),
                description => description,
            },
            ranks: ranks(&config["ranks"]),
            enqueued: number("last_enqueued_collective"),
            completed: number("last_completed_collective"),
        });
    }
    let mut calls = Vec::new();
    for entry in value["entries"].as_array().into_iter().flatten().take(MOST_CALLS) {
        let id = match &entry["process_group"] {
            Value::Array(pair) if !pair.is_empty() => text(&pair[0]),
            _ => text(&entry["pg_id"]),
        };
        // The first group of Gloo has a number in its calls and no name where it is described.
        let id = if by_id.contains_key(&id) || !by_id.contains_key("") { id } else { String::new() };
        let group = *by_id.entry(id.clone()).or_insert_with(|| {
            let description = text(&entry["process_group"][1]);
            groups.push(ProcessGroup { id, description, ranks: Vec::new(), enqueued: -1, completed: -1 });
            groups.len() - 1
        });
        let is_p2p = entry["is_p2p"].as_bool().unwrap_or(false);
        let is_gloo = text(&entry["profiling_name"]).starts_with("gloo:");
        let key = if is_p2p { "p2p_seq_id" } else { "collective_seq_id" };
        calls.push(FlightCall {
            group,
            number: call_number(&entry[key]).or_else(|| call_number(&entry["seq_id"])).unwrap_or(-1),
            what: text(&entry["profiling_name"])
                .trim_start_matches("nccl:")
                .trim_start_matches("gloo:")
                .to_owned(),
            shape: format!("{} {}", entry["input_sizes"], entry["input_dtypes"]),
            state: match entry["state"].as_str() {
                Some("completed") => CallState::Completed,
                // Gloo's calls are never marked otherwise when they are done.
                _ if is_gloo && entry["retired"] == true => CallState::Completed,
                Some("started") => CallState::Started,
                _ => CallState::Scheduled,
            },
            is_p2p,
            created_ns: entry["time_created_ns"].as_i64(),
            frames: frames(&entry["frames"]),
        });
    }
    calls.sort_by_key(|call| call.created_ns);
    let said = value["rank"].as_u64().and_then(|rank| u32::try_from(rank).ok());
    Record { rank: said.or(rank).unwrap_or(0), name: name.to_owned(), groups, calls, stack: Vec::new() }
}

fn frames(value: &Value) -> Vec<String> {
    let frames = value.as_array().into_iter().flatten().take(MOST_FRAMES);
    frames
        .map(|frame| format!("{} ({}:{})", text(&frame["name"]), text(&frame["filename"]), frame["line"]))
        .collect()
}

/// A record of our own collectives.
fn ours(name: &str, rank: Option<u32>, value: &Value) -> Record {
    let said = value["rank"].as_u64().and_then(|rank| u32::try_from(rank).ok());
    let mut record = Record { rank: said.or(rank).unwrap_or(0), name: name.to_owned(), ..Record::default() };
    for entry in value["calls"].as_array().into_iter().flatten().take(MOST_CALLS) {
        let (id, members) = (text(&entry["group"]), ranks(&entry["ranks"]));
        let known = record.groups.iter().position(|group| group.id == id && group.ranks == members);
        let group = known.unwrap_or_else(|| {
            record.groups.push(ProcessGroup {
                description: id.clone(),
                id,
                ranks: members,
                enqueued: -1,
                completed: -1,
            });
            record.groups.len() - 1
        });
        let what = text(&entry["call"]["operation"]);
        let has_left = !entry["left_us"].is_null();
        record.calls.push(FlightCall {
            group,
            number: call_number(&entry["number"]).unwrap_or(-1),
            shape: format!("{} {}", entry["call"]["len"], entry["call"]["format"]),
            state: if has_left { CallState::Completed } else { CallState::Started },
            is_p2p: what.starts_with("send") || what.starts_with("receive"),
            created_ns: entry["entered_us"].as_i64().map(|entered| entered.saturating_mul(1000)),
            what,
            frames: Vec::new(),
        });
    }
    record
}
