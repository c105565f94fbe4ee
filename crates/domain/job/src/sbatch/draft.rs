//! A job in the making: options applied one by one.

use std::fmt;

use bedplate_units::Bytes;

use super::options::{self, Effect, Takes};
use crate::{Gang, Job, JobError, Role, Workload};

/// A job in the making.
#[derive(Debug, Clone)]
pub struct Draft {
    pub(super) job: Job,
    pub(super) asked: Asked,
    pub(super) remarks: Vec<Remark>,
    /// The line that is being read.
    pub(super) line: Option<usize>,
    /// The option that is being applied.
    pub(super) option: String,
}

/// What was asked about the gang, before anything is worked out from it.
#[derive(Debug, Clone, Default)]
pub(super) struct Asked {
    pub(super) nodes: Option<u32>,
    pub(super) tasks: Option<u32>,
    pub(super) tasks_per_node: Option<u32>,
    pub(super) tasks_per_gpu: Option<u32>,
    pub(super) gpus: Option<u32>,
    pub(super) gpus_per_node: Option<u32>,
    pub(super) gpus_per_task: Option<u32>,
    pub(super) accelerator: Option<String>,
    pub(super) cpus_per_task: Option<u32>,
    pub(super) cpus_per_gpu: Option<u32>,
    pub(super) memory: Option<Memory>,
    pub(super) is_exclusive: bool,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Memory {
    PerNode(Bytes),
    PerCpu(Bytes),
    PerGpu(Bytes),
    /// All that the node has.
    Whole,
}

/// A job that was read, and what of its options is not honoured.
#[derive(Debug, Clone, PartialEq)]
pub struct Imported {
    pub job: Job,
    pub remarks: Vec<Remark>,
}

/// What is not honoured, and what happens instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remark {
    /// As it was spelled out: `--mail-type`.
    pub option: String,
    /// The line of the script, counted from 1.
    pub line: Option<usize>,
    pub text: String,
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}: {}: {}", self.option, self.text),
            None => write!(f, "{}: {}", self.option, self.text),
        }
    }
}

impl Draft {
    pub fn new(name: &str, workload: Workload) -> Self {
        Self {
            job: Job::new(name, workload, Gang::of(Role::named(Role::ONLY))),
            asked: Asked::default(),
            remarks: Vec::new(),
            line: None,
            option: String::new(),
        }
    }

    /// Applies an option, by its long name (`nodes`) or its letter (`N`), with or without dashes before it.
    pub fn apply(&mut self, option: &str, value: Option<&str>) -> Result<(), JobError> {
        let row = options::find(option.trim_start_matches('-'))?;
        self.option = format!("--{}", row.name);
        let bad =
            |reason: String| JobError::BadOption { option: format!("--{}", row.name), reason, place: None };
        match (row.takes, value) {
            (Takes::Value, None) => return Err(bad("it needs a value".into())),
            (Takes::Nothing, Some(_)) => return Err(bad("it takes no value".into())),
            _ => {}
        }
        match row.effect {
            Effect::Set(set) => set(self, value.unwrap_or("")).map_err(bad),
            Effect::Remark => {
                self.remark(row.meaning);
                Ok(())
            }
        }
    }

    /// The job, with the gang worked out from all that was asked about it.
    pub fn finish(mut self) -> Result<Imported, JobError> {
        let role = self.role()?;
        self.job.gang = Gang::of(role);
        self.check_nodes();
        Ok(Imported { job: self.job, remarks: self.remarks })
    }

    pub(super) fn remark(&mut self, text: impl Into<String>) {
        let option = self.option.clone();
        self.remark_on(&option, text);
    }

    pub(super) fn remark_on(&mut self, option: &str, text: impl Into<String>) {
        self.remarks.push(Remark { option: option.to_owned(), line: self.line, text: text.into() });
    }
}
