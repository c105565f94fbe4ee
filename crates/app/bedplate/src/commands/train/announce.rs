//! What a run in a job hears from its environment and says to its agent.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use bedplate_layout::Layout;
use bedplate_report::{OWN_TRAINER, RunArguments};
use bedplate_train::{Resume, TrainConfig, announce_arguments};
use serde_json::Value;

type Variable<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// A variable of this process; an empty one counts as absent.
pub(super) fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// The file in which a rank says how far it is; absent outside of jobs.
pub(super) fn from_environment() -> Option<PathBuf> {
    variable("BEDPLATE_REPORT").map(PathBuf::from)
}

/// Says what is trained and how it is shared out, for advice; a model without a configuration file is not told.
pub(super) fn arguments(report: &Path, config: &TrainConfig, ranks: u32) {
    let path = PathBuf::from(&config.model.config);
    let path = if path.is_dir() { path.join("config.json") } else { path };
    let Ok(text) = std::fs::read_to_string(path) else { return };
    let Ok(model) = serde_json::from_str::<Value>(&text) else { return };
    let training = &config.training;
    let layout = training.layout.unwrap_or(Layout { data: ranks, ..Layout::ONE });
    let layout = Layout { micro_batch: u32::try_from(training.micro_batch).unwrap_or(1), ..layout };
    let arguments = RunArguments {
        trainer: OWN_TRAINER.to_owned(),
        config: model.to_string(),
        layout: layout.to_string(),
        sequence: config.data.sequence as u64,
        global_batch: training.batch,
        steps: Some(training.steps),
    };
    announce_arguments(report, arguments);
}

/// Where a run begins. A job that announced a checkpoint before it was started again goes on from what it has done since, even
/// where its command names an older checkpoint: that was for its first start.
pub(super) fn resume(asked: Option<&Option<PathBuf>>, output: &Path, variable: Variable<'_>) -> Resume {
    let announced = variable("BEDPLATE_CHECKPOINT_PATH").map(PathBuf::from);
    let has_announced = announced.is_some() || variable("BEDPLATE_CHECKPOINT_STEP").is_some();
    let is_elsewhere = |path: &PathBuf| path.exists() && !is_inside(path, output);
    match (announced.filter(is_elsewhere), asked) {
        (Some(elsewhere), _) => Resume::From(elsewhere),
        (None, _) if has_announced => Resume::IfPossible,
        (None, Some(Some(path))) => Resume::From(path.clone()),
        (None, Some(None)) => Resume::Newest,
        (None, None) if variable("BEDPLATE_REPORT").is_some() => Resume::IfPossible,
        (None, None) => Resume::No,
    }
}

fn is_inside(path: &Path, folder: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().ok();
    real(path).zip(real(folder)).is_some_and(|(path, folder)| path.starts_with(folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(set: &[(&str, &str)]) -> impl Fn(&str) -> Option<OsString> {
        move |name| set.iter().find(|(set, _)| *set == name).map(|(_, value)| value.into())
    }

    #[test]
    fn a_job_that_was_started_again_keeps_its_progress() {
        let output = std::env::temp_dir().join(format!("bedplate-resume-{}", std::process::id()));
        let (own, other) = (output.join("run/checkpoints/step-00000060"), output.join("elsewhere"));
        for folder in [&own, &other] {
            std::fs::create_dir_all(folder).unwrap();
        }
        let [own, other] = [own, other].map(|path| path.into_os_string().into_string().unwrap());
        let (back, newest) = (Some(PathBuf::from("step-40")), None);
        let report = ("BEDPLATE_REPORT", "r");
        let check = |asked: Option<&Option<PathBuf>>, set: &[(&str, &str)], expected: Resume| {
            assert_eq!(resume(asked, &output.join("run"), &with(set)), expected, "{asked:?} {set:?}");
        };
        check(None, &[], Resume::No);
        check(Some(&newest), &[], Resume::Newest);
        check(Some(&back), &[], Resume::From("step-40".into()));
        check(None, &[report], Resume::IfPossible);
        check(Some(&back), &[report], Resume::From("step-40".into()));
        check(Some(&back), &[report, ("BEDPLATE_CHECKPOINT_PATH", &own)], Resume::IfPossible);
        check(Some(&back), &[report, ("BEDPLATE_CHECKPOINT_PATH", "/pruned")], Resume::IfPossible);
        check(Some(&back), &[report, ("BEDPLATE_CHECKPOINT_STEP", "60")], Resume::IfPossible);
        check(None, &[report, ("BEDPLATE_CHECKPOINT_PATH", &other)], Resume::From(other.clone().into()));
        std::fs::remove_dir_all(&output).unwrap();
    }
}
