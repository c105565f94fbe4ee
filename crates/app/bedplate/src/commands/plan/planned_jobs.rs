//! `plan calibrate --jobs PLAN=REPORTS`: jobs that ran as planned, as measured rows for the fit.
//!
//! A plan is what `plan train --json` printed; reports are the lines that the job wrote (`docs/report.md`), or what
//! `bedplate job show --json` prints of it.

use std::str::FromStr;

use bedplate_calibrate::Case;
use bedplate_catalog::Catalog;
use bedplate_diag::{Class, Diagnostic, Page};
use bedplate_layout::Layout;
use bedplate_perf::{Hardware, Stack, Task, Workload};
use bedplate_report::Report;
use bedplate_terminal::{CliError, ProgramError, files};
use serde_json::{Value, json};

use super::question::Loaded;
use crate::commands::{cluster, model};

#[derive(Debug, thiserror::Error)]
enum PlannedJobError {
    #[error("`{path}` is no plan that can be asked again: it lacks `{key}`")]
    NotAPlan { path: String, key: &'static str },
    #[error("`{path}` reports no step")]
    NoSteps { path: String },
}

pub(super) static NOT_A_PLAN: Page = Page {
    code: "plan/not-a-plan",
    class: Class::User,
    meaning: "A job is compared with the plan that it was launched by, as `bedplate --json plan train` prints it.",
    remedy: "give `PLAN=REPORTS` with a plan printed by this release",
};

pub(super) static NO_REPORTS: Page = Page {
    code: "plan/no-reports",
    class: Class::User,
    meaning: "The reports of a job have no step with its seconds.",
    remedy: "give the file that the job reports to, or the output of `bedplate --json job show`",
};

impl Diagnostic for PlannedJobError {
    fn page(&self) -> &'static Page {
        match self {
            PlannedJobError::NotAPlan { .. } => &NOT_A_PLAN,
            PlannedJobError::NoSteps { .. } => &NO_REPORTS,
        }
    }
}

/// The two files of one job.
#[derive(Debug, Clone)]
pub(super) struct PlannedJob {
    plan: String,
    reports: String,
}

impl FromStr for PlannedJob {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (plan, reports) = text.split_once('=').ok_or("write PLAN=REPORTS, two files")?;
        Ok(Self { plan: plan.into(), reports: reports.into() })
    }
}

/// What of a question must be known to ask it again; part of the plan's JSON.
pub(super) fn question_json(loaded: &Loaded) -> Value {
    let rank = match loaded.workload.task {
        Task::Lora { rank } => Some(rank),
        _ => None,
    };
    json!({
        "model": loaded.named,
        "cluster": loaded.named_cluster,
        "stack": loaded.workload.stack.name(),
        "is_pretraining": loaded.workload.task == Task::Pretrain,
        "lora_rank": rank,
    })
}

impl PlannedJob {
    pub(super) fn case(&self, catalog: &Catalog) -> Result<Case, CliError> {
        let plan: Value = serde_json::from_str(&files::read_text(&self.plan)?)
            .map_err(|error| ProgramError::Usage { message: format!("`{}`: {error}", self.plan) })?;
        let question = &plan["question"];
        let text = |value: &Value, key| value.as_str().map(String::from).ok_or_else(|| self.lacks(key));
        let number = |key| plan[key].as_u64().ok_or_else(|| self.lacks(key));
        let cluster = cluster::load(&text(&question["cluster"], "question.cluster")?, catalog)?;
        let hardware = Hardware::from_cluster(&cluster, catalog)?;
        let stack = text(&question["stack"], "question.stack")?;
        let stack = Stack::ALL.into_iter().find(|(name, _)| *name == stack).map(|(_, stack)| stack);
        let task = match question["lora_rank"].as_u64() {
            Some(rank) => Task::Lora { rank: rank as u32 },
            None if question["is_pretraining"].as_bool() == Some(true) => Task::Pretrain,
            None => Task::FineTune,
        };
        let workload = Workload {
            sequence: number("sequence")?,
            global_batch: number("global_batch")?,
            task,
            stack: stack.ok_or_else(|| self.lacks("question.stack"))?,
            ..Workload::default()
        };
        let layout: Layout = text(&plan["layout"], "layout")?.parse()?;
        let seconds = self.seconds()?;
        Ok(Case {
            id: self.reports.clone(),
            source: "this site".into(),
            accelerator: cluster
                .kinds()
                .first()
                .and_then(|kind| kind.accelerator.clone())
                .unwrap_or_default(),
            model: model::load(&text(&question["model"], "question.model")?)?,
            tokens_per_second: workload.tokens() / (seconds * f64::from(hardware.gpus)),
            hardware,
            layout,
            workload,
            memory_gb: None,
            is_recipe: false,
        })
    }

    fn lacks(&self, key: &'static str) -> PlannedJobError {
        PlannedJobError::NotAPlan { path: self.plan.clone(), key }
    }

    /// The median step without the first two, or the mean that a cluster kept.
    fn seconds(&self) -> Result<f64, CliError> {
        let text = files::read_text(&self.reports)?;
        let kept = serde_json::from_str::<Value>(&text).ok();
        let kept = kept.and_then(|shown| shown["steps"]["mean_s"].as_f64());
        let mut steps: Vec<f64> = text.lines().filter_map(step_seconds).collect();
        if steps.len() > 4 {
            steps.drain(..2);
        }
        steps.sort_by(f64::total_cmp);
        let median = steps.get(steps.len() / 2).copied();
        let found = median.or(kept).filter(|seconds| seconds.is_finite() && *seconds > 0.0);
        Ok(found.ok_or_else(|| PlannedJobError::NoSteps { path: self.reports.clone() })?)
    }
}

fn step_seconds(line: &str) -> Option<f64> {
    match Report::from_line(line.as_bytes()).ok()? {
        Report::Step(step) => Some(step.seconds),
        _ => None,
    }
}
