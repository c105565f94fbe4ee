//! Records as JSON, one object per line.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use bedplate_breakdown::Breakdown;
use bedplate_host::Replacement;
use serde_json::{Map, Value, json};

use crate::{EvaluationRecord, RankTimes, RanksRecord, RecordError, StepRecord};

/// A file with a line for each record. Every record is in the file when its method returns.
pub struct RecordLines {
    path: PathBuf,
    file: File,
    told: Told,
}

/// The last steps that a file has lines for.
#[derive(Debug, Clone, Copy, Default)]
struct Told {
    step: Option<u64>,
    evaluation: Option<u64>,
}

impl Told {
    fn note(&mut self, object: &Value) {
        let last = match object["kind"].as_str() {
            Some("step") => &mut self.step,
            Some("evaluation") => &mut self.evaluation,
            _ => return,
        };
        *last = (*last).max(object["step"].as_u64());
    }
}

impl StepRecord {
    /// The record as a line of JSON, without its end.
    pub fn to_line(&self) -> String {
        step_object(self).to_string()
    }
}

impl RecordLines {
    /// An empty file, whatever was there before.
    pub fn create(path: &Path) -> Result<Self, RecordError> {
        let file = File::create(path).map_err(RecordError::creating(path))?;
        Ok(Self { path: path.to_owned(), file, told: Told::default() })
    }

    /// The file of an earlier run without its lines for steps after `step` and without a truncated last line. A missing
    /// file is created. The lines taken out are appended to `aside`; without it they are dropped, as those of steps that
    /// will be repeated.
    pub fn resume(path: &Path, step: u64, aside: Option<&Path>) -> Result<Self, RecordError> {
        let told = if path.exists() { take_back(path, step, aside)? } else { Told::default() };
        let file =
            OpenOptions::new().append(true).create(true).open(path).map_err(RecordError::creating(path))?;
        Ok(Self { path: path.to_owned(), file, told })
    }

    /// Whether there is a line for an evaluation after a step.
    pub fn has_evaluation(&self, step: u64) -> bool {
        self.told.evaluation.is_some_and(|told| told >= step)
    }

    /// Adds lines of steps that the file lacks at its end.
    pub fn complete(&mut self, steps: &[String]) -> Result<(), RecordError> {
        let objects = steps.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut missing: Vec<(u64, Value)> =
            objects.filter_map(|object| Some((object["step"].as_u64()?, object))).collect();
        missing.sort_by_key(|(step, _)| *step);
        for (step, object) in missing {
            if self.told.step.is_none_or(|told| told < step) {
                self.write(&object)?;
            }
        }
        Ok(())
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn write_step(&mut self, record: &StepRecord) -> Result<(), RecordError> {
        self.write(&step_object(record))
    }

    pub fn write_evaluation(&mut self, record: &EvaluationRecord) -> Result<(), RecordError> {
        let EvaluationRecord { step, loss, perplexity, sample } = record;
        self.write(&json!({
            "kind": "evaluation", "step": step, "loss": loss, "perplexity": perplexity, "sample": sample,
        }))
    }

    pub fn write_ranks(&mut self, record: &RanksRecord) -> Result<(), RecordError> {
        let RanksRecord { step, ranks, layout } = record;
        self.write(&json!({"kind": "ranks", "step": step, "ranks": ranks, "layout": layout}))
    }

    fn write(&mut self, object: &Value) -> Result<(), RecordError> {
        self.told.note(object);
        self.file.write_all(format!("{object}\n").as_bytes()).map_err(RecordError::writing(&self.path))
    }
}

/// Numbers that JSON does not have, such as the loss of a run that has diverged, are null.
fn step_object(record: &StepRecord) -> Value {
    let mut object = json!({
        "kind": "step",
        "step": record.step,
        "tokens": record.tokens,
        "loss": record.loss,
        "gradient_norm": record.gradient_norm,
        "learning_rate": record.learning_rate,
        "tokens_per_second": record.tokens_per_second,
        "mfu": record.mfu,
        "memory_bytes": record.memory.get(),
        "seconds": record.seconds,
        "measured": seconds_by_part(&record.breakdown),
        "predicted": record.predicted.as_ref().map(seconds_by_part),
    });
    if let Some(samples) = &record.samples {
        object["samples"] = json!([samples.start, samples.end]);
    }
    if let Some(RankTimes { count, slowest, imbalance, communication }) = record.ranks {
        object["ranks"] = json!({
            "count": count, "slowest": slowest, "imbalance": imbalance, "communication": communication
        });
    }
    object
}

/// Exposed seconds of the parts that took any, and hidden ones under their own name.
fn seconds_by_part<Origin>(breakdown: &Breakdown<Origin>) -> Map<String, Value> {
    let mut parts = Map::new();
    for (part, span) in breakdown.parts() {
        if !span.exposed.is_zero() {
            parts.insert(part.name().into(), span.exposed.get().into());
        }
        if !span.hidden.is_zero() {
            parts.insert(format!("{part}_hidden"), span.hidden.get().into());
        }
    }
    parts
}

/// Replaces the file by the kept lines, so that there is a complete file at any time.
fn take_back(path: &Path, step: u64, aside: Option<&Path>) -> Result<Told, RecordError> {
    let failing = |source| RecordError::Resume { path: path.to_owned(), step, source };
    let append = |aside| OpenOptions::new().append(true).create(true).open(aside).map(BufWriter::new);
    let mut rest = aside.map(append).transpose().map_err(failing)?;
    let mut kept = BufWriter::new(Replacement::create(path).map_err(failing)?);
    let told = split(path, step, &mut kept, rest.as_mut())?;
    if let Some(rest) = rest {
        rest.into_inner()
            .map_err(|error| error.into_error())
            .and_then(|file| file.sync_all())
            .map_err(failing)?;
    }
    kept.into_inner().map_err(|error| error.into_error()).and_then(Replacement::commit).map_err(failing)?;
    Ok(told)
}

/// Copies lines up to a step to one writer, and those after it to the other.
fn split(
    path: &Path,
    step: u64,
    kept: &mut impl Write,
    mut rest: Option<&mut impl Write>,
) -> Result<Told, RecordError> {
    let failing = |source| RecordError::Resume { path: path.to_owned(), step, source };
    let mut from = BufReader::new(File::open(path).map_err(failing)?);
    let (mut line, mut told) = (Vec::new(), Told::default());
    for number in 1.. {
        line.clear();
        if from.read_until(b'\n', &mut line).map_err(failing)? == 0 {
            break;
        }
        match step_of(&line) {
            Some((found, object)) if found <= step && line.ends_with(b"\n") => {
                told.note(&object);
                kept.write_all(&line).map_err(failing)?
            }
            Some(_) => {
                if let Some(rest) = rest.as_mut().filter(|_| line.ends_with(b"\n")) {
                    rest.write_all(&line).map_err(failing)?;
                }
            }
            None if is_last(&mut from).map_err(failing)? => break,
            None => return Err(RecordError::NotARecord { path: path.to_owned(), line: number }),
        }
    }
    Ok(told)
}

fn step_of(line: &[u8]) -> Option<(u64, Value)> {
    let object = serde_json::from_slice::<Value>(line).ok()?;
    Some((object.get("step")?.as_u64()?, object))
}

fn is_last(from: &mut impl BufRead) -> io::Result<bool> {
    Ok(from.fill_buf()?.is_empty())
}

#[cfg(test)]
mod tests;
