//! A job that ran as planned: its plan, as `plan train --json` printed it, and what it reported of its steps.

use bedplate_layout::Layout;
use bedplate_perf::{Hardware, Stack, Task, Workload};
use bedplate_report::Report;
use bedplate_topology::Cluster;
use bedplate_transformer::Transformer;
use serde_json::{Value, json};

use super::{OwnRunsError, settled};
use crate::Case;

/// What of a question must be known to ask it again; part of the plan's JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedQuestion {
    /// The model as it was named: a built-in name or a path.
    pub model: String,
    /// The cluster as it was named; `None` for the nodes that a scheduler offered.
    pub cluster: Option<String>,
    pub stack: Stack,
    pub task: Task,
}

impl PlannedQuestion {
    pub fn to_json(&self) -> Value {
        let rank = match self.task {
            Task::Lora { rank } => Some(rank),
            _ => None,
        };
        json!({
            "model": self.model,
            "cluster": self.cluster,
            "stack": self.stack.name(),
            "is_pretraining": self.task == Task::Pretrain,
            "lora_rank": rank,
        })
    }
}

/// What a plan says of its job.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedJob {
    pub model: String,
    pub cluster: String,
    pub workload: Workload,
    pub layout: Layout,
}

impl PlannedJob {
    /// Of a plan from the file `path`.
    pub fn read(plan: &Value, path: &str) -> Result<Self, OwnRunsError> {
        let question = &plan["question"];
        let lacks = |key| OwnRunsError::NotAPlan { path: path.to_owned(), key };
        let text = |value: &Value, key| value.as_str().map(String::from).ok_or_else(|| lacks(key));
        let number = |key| plan[key].as_u64().ok_or_else(|| lacks(key));
        let stack = text(&question["stack"], "question.stack")?;
        let stack = Stack::ALL.into_iter().find(|(name, _)| *name == stack).map(|(_, stack)| stack);
        Ok(Self {
            model: text(&question["model"], "question.model")?,
            cluster: text(&question["cluster"], "question.cluster")?,
            workload: Workload {
                sequence: number("sequence")?,
                global_batch: number("global_batch")?,
                task: match question["lora_rank"].as_u64() {
                    Some(rank) => Task::Lora { rank: rank as u32 },
                    None if question["is_pretraining"].as_bool() == Some(true) => Task::Pretrain,
                    None => Task::FineTune,
                },
                stack: stack.ok_or_else(|| lacks("question.stack"))?,
                ..Workload::default()
            },
            layout: text(&plan["layout"], "layout")?.parse()?,
        })
    }

    /// The job as a measured row, with steps of so many seconds.
    pub fn case(
        &self,
        id: &str,
        model: Transformer,
        cluster: &Cluster,
        hardware: Hardware,
        seconds: f64,
    ) -> Case {
        let accelerator = cluster.kinds().first().and_then(|kind| kind.accelerator.clone());
        Case {
            id: id.to_owned(),
            source: "this site".into(),
            accelerator: accelerator.unwrap_or_default(),
            model,
            tokens_per_second: self.workload.tokens() / (seconds * f64::from(hardware.gpus)),
            hardware,
            layout: self.layout,
            workload: self.workload,
            memory_gb: None,
            is_recipe: false,
        }
    }
}

/// The median step of a job's reports without the first two, or the mean that a cluster kept and `job show` prints.
pub fn reported_seconds(reports: &str, path: &str) -> Result<f64, OwnRunsError> {
    let kept = serde_json::from_str::<Value>(reports).ok();
    let kept = kept.and_then(|shown| shown["steps"]["mean_s"].as_f64());
    let steps: Vec<f64> = reports.lines().filter_map(step_seconds).collect();
    let mut steps = settled(&steps).to_vec();
    steps.sort_by(f64::total_cmp);
    let median = steps.get(steps.len() / 2).copied();
    let found = median.or(kept).filter(|seconds| seconds.is_finite() && *seconds > 0.0);
    found.ok_or_else(|| OwnRunsError::NoReports { path: path.to_owned() })
}

fn step_seconds(line: &str) -> Option<f64> {
    match Report::from_line(line.as_bytes()).ok()? {
        Report::Step(step) => Some(step.seconds),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_that_is_read_asks_the_question_that_was_asked() {
        for task in [Task::Pretrain, Task::FineTune, Task::Lora { rank: 8 }] {
            let question = PlannedQuestion {
                model: "llama-3.1-8b".into(),
                cluster: Some("p5.48xlarge:2".into()),
                stack: Stack::Fsdp,
                task,
            };
            let mut plan = json!({"layout": "dp16.zero3", "sequence": 4096, "global_batch": 64});
            plan["question"] = question.to_json();
            let job = PlannedJob::read(&plan, "plan.json").unwrap();
            assert_eq!((job.model, Some(job.cluster)), (question.model, question.cluster));
            assert_eq!((job.workload.task, job.workload.stack), (task, question.stack));
            plan["sequence"] = Value::Null;
            let lacks = PlannedJob::read(&plan, "plan.json").unwrap_err().to_string();
            assert!(lacks.ends_with("it lacks `sequence`"), "{lacks}");
        }
    }

    #[test]
    fn the_mean_of_a_cluster_counts_where_no_step_was_reported() {
        assert_eq!(reported_seconds("{\"steps\": {\"mean_s\": 2.5}}", "show.json").unwrap(), 2.5);
        assert!(reported_seconds("", "reports").is_err());
    }
}
