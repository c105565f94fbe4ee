//! Job files, and the predictions that go with jobs, as users name them.

use bedplate_breakdown::{Breakdown, Predicted};
use bedplate_diag::{Diagnostic, Page, pages};
use bedplate_job::sbatch::Draft;
use bedplate_job::{Flaw, Imported, Job, Remark};
use bedplate_terminal::{CliError, files};
use serde_json::Value;

#[derive(Debug, thiserror::Error)]
pub(crate) enum JobFileError {
    #[error("the job cannot run: {}", list(flaws))]
    Flawed { flaws: Vec<Flaw> },
    #[error("{file} has no prediction of a training step")]
    NoPrediction { file: String },
}

fn list(flaws: &[Flaw]) -> String {
    flaws.iter().map(Flaw::to_string).collect::<Vec<_>>().join("; ")
}

pages! { pub(crate) PAGES "submit":
    FLAWED "flawed" User
        "The job can be read, but it contradicts itself or asks for nothing that could run."
        "correct what the message names; docs/job.md has every key"
    NO_PREDICTION "no-prediction" User
        "A file given with `--expected` must be what `bedplate plan train --json` prints: an object with a `breakdown` of exposed and hidden seconds."
        "make it with `bedplate plan train … --json > plan.json`"
}

impl Diagnostic for JobFileError {
    fn page(&self) -> &'static Page {
        match self {
            JobFileError::Flawed { .. } => &FLAWED,
            JobFileError::NoPrediction { .. } => &NO_PREDICTION,
        }
    }
}

/// The job of a job file or a batch script that can run, and remarks on the script.
pub(crate) fn read_file(path: &str) -> Result<(Job, Vec<Remark>), CliError> {
    let text = files::read_text(path)?;
    let Imported { job, remarks } = match text.starts_with("#!") {
        true => Draft::from_script(&text, path)?.finish()?,
        false => Job::from_file(&text, path)?,
    };
    refuse_flaws(&job)?;
    Ok((job, remarks))
}

pub(crate) fn refuse_flaws(job: &Job) -> Result<(), JobFileError> {
    match job.flaws() {
        flaws if flaws.is_empty() => Ok(()),
        flaws => Err(JobFileError::Flawed { flaws }),
    }
}

/// The prediction that `bedplate plan train --json` printed, read back.
pub(crate) fn read_expected(path: &str) -> Result<Breakdown<Predicted>, CliError> {
    let text = files::read_text(path)?;
    let plan: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
    from_plan(&plan).ok_or_else(|| JobFileError::NoPrediction { file: path.to_owned() }.into())
}

/// Without one, the file is no plan of training.
fn from_plan(plan: &Value) -> Option<Breakdown<Predicted>> {
    serde_json::from_value(plan.get("breakdown")?.clone()).ok()
}

#[cfg(test)]
mod tests {
    use bedplate_units::Seconds;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_plan_gives_its_breakdown_and_anything_else_none() {
        let plan = json!({ "breakdown": { "compute": { "exposed_s": 1.5, "hidden_s": 0.0 }, "scale_out": { "exposed_s": 0.5, "hidden_s": 1.0 } } });
        assert_eq!(from_plan(&plan).unwrap().total(), Seconds::new(2.0));
        assert!(from_plan(&json!({})).is_none());
        assert!(from_plan(&json!({ "breakdown": { "magic": { "exposed_s": 1, "hidden_s": 0 } } })).is_none());
        assert!(from_plan(&json!({ "breakdown": { "compute": "1" } })).is_none());
    }
}
