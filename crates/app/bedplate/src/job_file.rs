//! Job files, and the predictions that go with jobs, as users name them.

use bedplate_breakdown::{Breakdown, Predicted};
use bedplate_diag::{Diagnostic, Page, pages};
use bedplate_job::sbatch::Draft;
use bedplate_job::{Flaw, Imported, Job, Remark};
use bedplate_terminal::{CliError, files};
use serde_json::{Value, json};

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

/// How a launch that `bedplate plan train --launch` printed carries its prediction: in a comment of the script or job file.
const EXPECTS: &str = "bedplate expects:";

/// The comment for a prediction.
pub(crate) fn expects_line(breakdown: &Breakdown<Predicted>) -> String {
    let exact = |seconds: f64| format!("{seconds:.5}").parse::<f64>().unwrap_or(seconds);
    let parts = breakdown.parts().filter(|(_, span)| !span.busy().is_zero());
    let parts = parts.map(|(part, span)| {
        let (exposed, hidden) = (exact(span.exposed.get()), exact(span.hidden.get()));
        let value =
            if hidden == 0.0 { json!(exposed) } else { json!({ "exposed_s": exposed, "hidden_s": hidden }) };
        (part.name().to_owned(), value)
    });
    format!("# {EXPECTS} {}", Value::Object(parts.collect()))
}

/// The prediction in a comment of a script or job file, the last one.
pub(crate) fn expected_in(text: &str) -> Option<Breakdown<Predicted>> {
    let comments = text.lines().filter_map(|line| line.trim_start().strip_prefix('#'));
    let expects = comments.filter_map(|comment| comment.trim_start().strip_prefix(EXPECTS));
    expects.filter_map(|json| serde_json::from_str(json).ok()).next_back()
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
    use super::*;
    use bedplate_breakdown::{Part, Span};
    use bedplate_units::Seconds;

    #[test]
    fn a_script_carries_the_prediction_of_its_launch() {
        let hidden = Span { exposed: Seconds::new(0.5), hidden: Seconds::new(0.25) };
        let predicted = Breakdown::default()
            .with(Part::Compute, Span::exposed(Seconds::new(1.234_567)))
            .with(Part::ScaleOut, hidden);
        let line = expects_line(&predicted);
        assert_eq!(
            line,
            r##"# bedplate expects: {"compute":1.23457,"scale_out":{"exposed_s":0.5,"hidden_s":0.25}}"##
        );
        let read = expected_in(&format!("#!/bin/sh\n#SBATCH -N 2\n{line}\ntrain\n")).unwrap();
        assert_eq!((read.total(), read[Part::ScaleOut]), (Seconds::new(1.73457), hidden));
        assert!(expected_in("#!/bin/sh\n# bedplate expects: soon\n").is_none());
    }

    #[test]
    fn a_plan_gives_its_breakdown_and_anything_else_none() {
        let plan = json!({ "breakdown": { "compute": { "exposed_s": 1.5, "hidden_s": 0.0 }, "scale_out": { "exposed_s": 0.5, "hidden_s": 1.0 } } });
        assert_eq!(from_plan(&plan).unwrap().total(), Seconds::new(2.0));
        assert!(from_plan(&json!({})).is_none());
        assert!(from_plan(&json!({ "breakdown": { "magic": { "exposed_s": 1, "hidden_s": 0 } } })).is_none());
        assert!(from_plan(&json!({ "breakdown": { "compute": "1" } })).is_none());
    }
}
