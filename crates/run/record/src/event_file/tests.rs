//! Event files read back by an independent reader of their two formats.

use bedplate_breakdown::{Breakdown, Part, Span};
use bedplate_units::{Bytes, Seconds};

use super::*;
use crate::record::tests::TestFolder;

/// Bit by bit, as in the definition.
fn checksum(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for bit in bytes.iter().flat_map(|byte| (0..8).map(move |bit| byte >> bit & 1)) {
        let is_odd = crc & 1 != u32::from(bit);
        crc = crc >> 1 ^ if is_odd { 0x82f6_3b78 } else { 0 };
    }
    (!crc).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// The records of a TFRecord file; panics where a checksum is wrong.
fn records(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut records = Vec::new();
    while !bytes.is_empty() {
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        assert_eq!(bytes[8..12], checksum(&bytes[..8]).to_le_bytes());
        let record = &bytes[12..12 + length];
        assert_eq!(bytes[12 + length..16 + length], checksum(record).to_le_bytes());
        records.push(record.to_vec());
        bytes = &bytes[16 + length..];
    }
    records
}

/// A field of a message: its number, and its raw bytes (eight for a number).
type Field = (u64, Vec<u8>);

fn fields(mut bytes: &[u8]) -> Vec<Field> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let length = match key & 7 {
            0 => {
                fields.push((key >> 3, varint(&mut bytes).to_le_bytes().to_vec()));
                continue;
            }
            1 => 8,
            2 => varint(&mut bytes) as usize,
            5 => 4,
            other => panic!("wire type {other}"),
        };
        fields.push((key >> 3, bytes[..length].to_vec()));
        bytes = &bytes[length..];
    }
    fields
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut number = 0;
    for shift in (0..).step_by(7) {
        let byte = bytes[0];
        *bytes = &bytes[1..];
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
    }
    number
}

fn field(message: &[u8], number: u64) -> Option<Vec<u8>> {
    fields(message).into_iter().find_map(|(found, bytes)| (found == number).then_some(bytes))
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

/// Step, tag and value of every event in a file.
fn said(path: &Path) -> Vec<(u64, String, String)> {
    let mut said = Vec::new();
    for event in records(&std::fs::read(path).unwrap()) {
        let step = u64::from_le_bytes(field(&event, 2).unwrap().try_into().unwrap());
        let time = f64::from_le_bytes(field(&event, 1).unwrap().try_into().unwrap());
        assert!(time > 1.7e9, "{time} is before this was written");
        for (number, bytes) in fields(&event) {
            match number {
                3 => said.push((step, "version".into(), text(bytes))),
                7 => said.push((step, "session".into(), field(&bytes, 1).unwrap()[0].to_string())),
                5 => said.extend(fields(&bytes).into_iter().map(|(_, value)| {
                    let tag = text(field(&value, 1).unwrap());
                    (step, tag, value_text(&value))
                })),
                _ => {}
            }
        }
    }
    said
}

fn value_text(value: &[u8]) -> String {
    if let Some(number) = field(value, 2) {
        return f32::from_le_bytes(number.try_into().unwrap()).to_string();
    }
    let plugin = field(&field(value, 9).unwrap(), 1).unwrap();
    let tensor = field(value, 8).unwrap();
    assert_eq!(field(&tensor, 1).unwrap()[0], 7, "a tensor of strings");
    format!("{}: {}", text(field(&plugin, 1).unwrap()), text(field(&tensor, 8).unwrap()))
}

fn check(events: &EventFile, expected: &[(u64, &str, &str)]) {
    let said = said(events.path());
    let said: Vec<(u64, &str, &str)> =
        said.iter().map(|(step, tag, value)| (*step, &**tag, &**value)).collect();
    assert_eq!(said, expected);
}

#[test]
fn an_independent_reader_finds_what_was_written() {
    let folder = TestFolder::new("events");
    let mut events = EventFile::create(&folder.0.join("deep/below"), None).unwrap();
    let exposed = |seconds| Span::exposed(Seconds::new(seconds));
    let record = StepRecord {
        samples: Some(0..16),
        step: 300,
        tokens: 1 << 20,
        loss: 2.5,
        gradient_norm: 0.75,
        learning_rate: 0.5,
        tokens_per_second: 1000.0,
        mfu: Some(0.25),
        memory: Bytes::new(4096.0),
        breakdown: Breakdown::default().with(Part::Compute, exposed(1.5)),
        predicted: Some(Breakdown::default().with(Part::Memory, exposed(0.5))),
        seconds: 2.0,
        ranks: None,
    };
    events.write_step(&record).unwrap();
    let sample = Some("Once upon a time\nthere was ä".to_owned());
    events
        .write_evaluation(&EvaluationRecord { step: 300, loss: Some(2.0), perplexity: Some(7.5), sample })
        .unwrap();
    check(
        &events,
        &[
            (0, "version", "brain.Event:2"),
            (300, "train/loss", "2.5"),
            (300, "train/gradient_norm", "0.75"),
            (300, "train/learning_rate", "0.5"),
            (300, "train/tokens_per_second", "1000"),
            (300, "train/mfu", "0.25"),
            (300, "train/memory_bytes", "4096"),
            (300, "train/step_seconds", "2"),
            (300, "train/tokens", "1048576"),
            (300, "measured/compute", "1.5"),
            (300, "predicted/memory", "0.5"),
            (300, "evaluation/loss", "2"),
            (300, "evaluation/perplexity", "7.5"),
            (300, "evaluation/sample", "text: Once upon a time\nthere was ä"),
        ],
    );
}

#[test]
fn a_resumed_run_begins_a_file_that_takes_later_steps_back() {
    let folder = TestFolder::new("resumed-events");
    let first = EventFile::create(&folder.0, None).unwrap();
    let second = EventFile::create(&folder.0, Some(7)).unwrap();
    let third = EventFile::create(&folder.0, Some(7)).unwrap();
    check(&second, &[(0, "version", "brain.Event:2"), (8, "session", "1")]);
    assert!(first.path() < second.path() && second.path() < third.path(), "files are read in order");
    let name = first.path().file_name().unwrap().to_str().unwrap();
    assert!(name.starts_with("events.out.tfevents.1"), "{name}");
}

#[test]
fn a_folder_that_cannot_be_made_is_an_error() {
    let folder = TestFolder::new("no-events");
    std::fs::write(folder.0.join("file"), "").unwrap();
    let error = EventFile::create(&folder.0.join("file"), None).err().unwrap();
    assert!(matches!(error, RecordError::Create { .. }));
}
