//! A job as a batch script of Slurm that anyone can read.
//!
//! What Slurm has a word for becomes an option. What it has none for is a [`Remark`] under the key of the job file,
//! or, where the job would be another one without it, a refusal. Nothing is dropped in silence. A job that was read
//! from a script keeps that script: only the lines whose options were changed since are written anew.

mod commands;
mod kept;
mod settings;

use super::Remark;
use crate::shell;
use crate::{Job, JobError, Workload};

/// An option of sbatch by its long name without dashes, and its value.
pub type Setting = (String, Option<String>);

/// A script for `sbatch`, and what it does not say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// The whole script with its `#SBATCH` lines.
    pub script: String,
    /// The options of those lines, in their order, for submissions that do not read them from the script.
    pub options: Vec<Setting>,
    /// Patterns of files that differ between tasks (`output`, `error`, `input`): what the script starts names them.
    pub files_of_tasks: Vec<Setting>,
    /// What Slurm does not do or does otherwise, by the key of the job file.
    pub remarks: Vec<Remark>,
}

/// The batch script of a job. Whether the job can ever run is a question for [`Job::flaws`].
///
/// The variables that a job sets become part of the script. A caller that hands them over beside it clears
/// [`Job::environment`] first.
pub fn render(job: &Job) -> Result<Rendered, JobError> {
    let settings = settings::Settings::of(job)?;
    match &job.workload {
        Workload::Script { text } => kept::script(job, text, settings),
        Workload::Command { arguments } => commands::script(job, arguments, settings),
        Workload::Native { kind, configuration } => {
            let arguments = ["bedplate", kind, configuration].map(str::to_owned);
            commands::script(job, &arguments, settings)
        }
    }
}

fn refusal(key: &str, reason: impl Into<String>) -> JobError {
    JobError::NotForSlurm { key: key.to_owned(), reason: reason.into() }
}

fn remark(key: &str, text: impl Into<String>) -> Remark {
    Remark { option: key.to_owned(), line: None, text: text.into() }
}

/// One `#SBATCH` line.
fn line((name, value): &Setting) -> String {
    match value {
        Some(value) => format!("#SBATCH --{name}={}\n", shell::option_value(value)),
        None => format!("#SBATCH --{name}\n"),
    }
}
