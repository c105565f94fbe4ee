//! Event files, which TensorBoard reads while they grow.

use bedplate_host::clock;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::event::{EventValue, What, event};
use crate::framing::frame;
use crate::{EvaluationRecord, RecordError, StepRecord};

/// One file of events. Every record is in the file when its method returns.
pub struct EventFile {
    path: PathBuf,
    file: File,
    buffer: Vec<u8>,
}

impl EventFile {
    /// A new file in `folder`, which is created if missing. A run that resumes after a step says so, and TensorBoard
    /// drops later steps from files of earlier runs in the folder.
    pub fn create(folder: &Path, resumes_after: Option<u64>) -> Result<Self, RecordError> {
        std::fs::create_dir_all(folder).map_err(RecordError::creating(folder))?;
        let (path, file) = create_new(folder).map_err(RecordError::creating(folder))?;
        let mut events = Self { path, file, buffer: Vec::new() };
        events.add(0, &What::Version);
        if let Some(step) = resumes_after {
            events.add(step + 1, &What::Start);
        }
        events.flush()?;
        Ok(events)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn write_step(&mut self, record: &StepRecord) -> Result<(), RecordError> {
        self.add(record.step, &What::Values(&step_values(record)));
        self.flush()
    }

    pub fn write_evaluation(&mut self, record: &EvaluationRecord) -> Result<(), RecordError> {
        self.add(record.step, &What::Values(&evaluation_values(record)));
        self.flush()
    }

    fn add(&mut self, step: u64, what: &What<'_>) {
        frame(&event(clock::unix_time().as_secs_f64(), step, what), &mut self.buffer);
    }

    /// Whole records only, in one call, so that a reader rarely sees half of one.
    fn flush(&mut self) -> Result<(), RecordError> {
        let written = self.file.write_all(&self.buffer);
        self.buffer.clear();
        written.map_err(RecordError::writing(&self.path))
    }
}

fn step_values(record: &StepRecord) -> Vec<(String, EventValue<'static>)> {
    let named = [
        ("train/loss", Some(record.loss)),
        ("train/gradient_norm", Some(record.gradient_norm)),
        ("train/learning_rate", Some(record.learning_rate)),
        ("train/tokens_per_second", Some(record.tokens_per_second)),
        ("train/mfu", record.mfu),
        ("train/memory_bytes", Some(record.memory.get())),
        ("train/step_seconds", Some(record.seconds)),
        ("train/tokens", Some(record.tokens as f64)),
    ];
    let named = named.into_iter().filter_map(|(tag, number)| Some((tag.to_owned(), number?)));
    let measured =
        record.breakdown.parts().map(|(part, span)| (format!("measured/{part}"), span.exposed.get()));
    let predicted = record.predicted.iter().flat_map(|predicted| predicted.parts());
    let predicted = predicted.map(|(part, span)| (format!("predicted/{part}"), span.exposed.get()));
    let parts = measured.chain(predicted).filter(|(_, seconds)| *seconds != 0.0);
    named.chain(parts).map(|(tag, number)| (tag, EventValue::Scalar(number as f32))).collect()
}

fn evaluation_values(record: &EvaluationRecord) -> Vec<(String, EventValue<'_>)> {
    let scalar = |tag: &str, number: f64| (tag.to_owned(), EventValue::Scalar(number as f32));
    let named = [("evaluation/loss", record.loss), ("evaluation/perplexity", record.perplexity)];
    let known = named.into_iter().filter_map(|(tag, number)| Some(scalar(tag, number?)));
    let mut values: Vec<_> = known.collect();
    values.extend(
        record.sample.as_deref().map(|sample| ("evaluation/sample".into(), EventValue::Text(sample))),
    );
    values
}

/// `events.out.tfevents.<seconds since 1970>.<host>`, followed by a number where that exists: files are read in the
/// order of their names.
fn create_new(folder: &Path) -> io::Result<(PathBuf, File)> {
    let seconds = clock::unix_time().as_secs();
    let name = format!("events.out.tfevents.{seconds}.{}", bedplate_host::host_name());
    let mut path = folder.join(&name);
    for number in 1.. {
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Ok(file) => return Ok((path, file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                path = folder.join(format!("{name}.{number}"));
            }
            Err(error) => return Err(error),
        }
    }
    unreachable!("some number is free")
}

#[cfg(test)]
mod tests;
