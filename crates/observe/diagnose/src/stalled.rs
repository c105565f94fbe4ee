//! What ranks say of themselves when they do not get on: lines of the Python package, as records.
//!
//! A rank that makes no step writes one line with its process groups, the call it is in, and its stack (docs/python.md); when
//! it goes on, another. The lines of all ranks together are as good as dumps of a flight recorder, and come within seconds.

use std::collections::BTreeMap;

use bedplate_logs::Recognizer;
use serde_json::Value;

use crate::case::Case;
use crate::record::{CallState, FlightCall, ProcessGroup, Record, call_number};

const STALLED: &str = "rank-stalled";
const RESUMED: &str = "rank-resumed";

/// The records of ranks that said they do not get on, and have not gone on since.
pub(crate) fn records(case: &Case, recognizer: &Recognizer) -> Vec<Record> {
    let mut latest: BTreeMap<u32, Option<Record>> = BTreeMap::new();
    for log in &case.logs {
        for sign in &log.log.signs {
            let said = match recognizer.signatures()[sign.signature].name.as_str() {
                STALLED => sign.captured("record").and_then(|text| read(text, &log.place(sign.line))),
                RESUMED => {
                    let rank = sign.captured("number").and_then(|rank| rank.parse().ok());
                    latest.extend(rank.map(|rank| (rank, None)));
                    None
                }
                _ => None,
            };
            latest.extend(said.map(|record| (record.rank, Some(record))));
        }
    }
    latest.into_values().flatten().collect()
}

fn read(text: &str, place: &str) -> Option<Record> {
    let value: Value = serde_json::from_str(text).ok()?;
    let rank = u32::try_from(value["rank"].as_u64()?).ok()?;
    let mut record = Record { rank, name: place.to_owned(), ..Record::default() };
    for group in value["groups"].as_array().into_iter().flatten() {
        let made = call_number(&group["number"]).unwrap_or(-1);
        let waits = group["waits"].as_bool().unwrap_or(false);
        let done = call_number(&group["done"]).unwrap_or(if waits { made - 1 } else { made });
        let description = group["name"].as_str().unwrap_or("").to_owned();
        let index = record.groups.len();
        record.groups.push(ProcessGroup {
            id: description.clone(),
            description,
            ranks: ranks(group["ranks"].as_str().unwrap_or("")),
            enqueued: made,
            completed: done,
        });
        record.calls.push(FlightCall {
            group: index,
            number: if waits { done + 1 } else { made },
            what: group["call"].as_str().unwrap_or("call").to_owned(),
            shape: String::new(),
            state: if waits { CallState::Started } else { CallState::Completed },
            is_p2p: false,
            created_ns: None,
            frames: Vec::new(),
        });
    }
    let frames = value["stack"].as_array().into_iter().flatten();
    record.stack = frames.filter_map(|frame| frame.as_str().map(str::to_owned)).collect();
    Some(record)
}

/// `0-3`, `0-12:4`, `0,3,5`.
fn ranks(text: &str) -> Vec<u32> {
    const MOST: u32 = 1 << 17;
    let mut found = Vec::new();
    for part in text.split(',') {
        let (range, step) = part.split_once(':').unwrap_or((part, "1"));
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (Ok(first), Ok(last), Ok(step)) =
            (first.parse::<u32>(), last.parse::<u32>(), step.parse::<usize>())
        else {
            continue;
        };
        found.extend((first..=last.min(first.saturating_add(MOST))).step_by(step.max(1)));
    }
    found.truncate(MOST as usize);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_written_short() {
        assert_eq!(ranks("0-3"), [0, 1, 2, 3]);
        assert_eq!(ranks("1-9:4,20"), [1, 5, 9, 20]);
        assert_eq!(ranks("what"), Vec::<u32>::new());
    }
}
