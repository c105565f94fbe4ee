//! The rules of a job from the object that keeps its pods together.

use bedplate_units::Seconds;
use serde_json::Value;

use super::Reader;
use super::values::{text, texts};
use crate::Job;
use crate::kubernetes::names;

impl Reader {
    pub(super) fn add_object(&mut self, job: &mut Job, object: &Value) -> Result<(), String> {
        let metadata = &object["metadata"];
        job.kubernetes.namespace = text(&metadata["namespace"]);
        if job.policy.account.is_none() {
            job.policy.account = text(&metadata["annotations"][names::ACCOUNT]);
        }
        let queue = text(&metadata["labels"][names::KUEUE_QUEUE]);
        // Where the partition says it already the queue follows from it.
        job.kubernetes.queue = queue.filter(|queue| job.policy.partition.as_ref() != Some(queue));
        let own = [names::MANAGED_BY, names::JOB, names::KUEUE_QUEUE];
        job.labels =
            texts(&metadata["labels"]).into_iter().filter(|(key, _)| !own.contains(&key.as_str())).collect();
        Ok(())
    }

    pub(super) fn add_job_set(&mut self, job: &mut Job, spec: &Value) {
        job.policy.is_held = spec["suspend"] == true;
        job.policy.retries = spec["failurePolicy"]["maxRestarts"]
            .as_u64()
            .and_then(|number| u32::try_from(number).ok())
            .unwrap_or(0);
        for rule in spec["failurePolicy"]["rules"].as_array().into_iter().flatten() {
            let about = |reason: &str| {
                rule["onJobFailureReasons"]
                    .as_array()
                    .is_some_and(|all| all.iter().any(|each| each == reason))
            };
            match rule["action"].as_str() {
                Some("FailJobSet") if about("PodFailurePolicy") => job.policy.is_requeued = false,
                Some("FailJobSet") if about("DeadlineExceeded") => {}
                Some("RestartJobSetAndIgnoreMaxRestarts") if about("PodFailurePolicy") => {}
                _ => self.remark(
                    "spec.failurePolicy.rules",
                    "a gang starts again after the loss of a node, and as often as `retries` after failures",
                ),
            }
        }
        let jobs = spec["replicatedJobs"].as_array();
        let limits = jobs
            .into_iter()
            .flatten()
            .filter_map(|role| role["template"]["spec"]["activeDeadlineSeconds"].as_u64());
        add_limit(job, limits.min());
    }

    pub(super) fn add_job(&mut self, job: &mut Job, spec: &Value) {
        self.rest(
            "spec",
            spec,
            &[
                "parallelism",
                "completions",
                "completionMode",
                "backoffLimit",
                "activeDeadlineSeconds",
                "podFailurePolicy",
                "template",
                "suspend",
                "ttlSecondsAfterFinished",
            ],
        );
        if spec["completions"]
            .as_u64()
            .is_some_and(|completions| Some(completions) != spec["parallelism"].as_u64())
        {
            self.remark(
                "spec.completions",
                "all pods of a gang start at once; `parallelism` is their number",
            );
        }
        job.policy.is_held = spec["suspend"] == true;
        job.policy.retries =
            spec["backoffLimit"].as_u64().and_then(|number| u32::try_from(number).ok()).unwrap_or(6);
        let lost = spec["podFailurePolicy"]["rules"][0]["action"].as_str();
        let is_alone = spec["parallelism"].as_u64().unwrap_or(1) == 1;
        job.policy.is_requeued = !(lost == Some("FailJob") && is_alone);
        add_limit(job, spec["activeDeadlineSeconds"].as_u64());
    }

    pub(super) fn add_pytorch_job(&mut self, job: &mut Job, spec: &Value) {
        let policy = &spec["runPolicy"];
        self.rest(
            "spec.runPolicy",
            policy,
            &[
                "suspend",
                "cleanPodPolicy",
                "ttlSecondsAfterFinished",
                "backoffLimit",
                "activeDeadlineSeconds",
            ],
        );
        job.policy.is_held = policy["suspend"] == true;
        job.policy.retries =
            policy["backoffLimit"].as_u64().and_then(|number| u32::try_from(number).ok()).unwrap_or(0);
        if spec["nprocPerNode"].is_string() {
            self.remark(
                "spec.nprocPerNode",
                "the command is started once on each node, and `torchrun` in it starts the rest",
            );
        }
        add_limit(job, policy["activeDeadlineSeconds"].as_u64());
    }
}

/// The annotation has the limit in full; a field of Kubernetes whole seconds of it.
fn add_limit(job: &mut Job, seconds: Option<u64>) {
    let seconds = seconds.map(|seconds| seconds as f64);
    if job.policy.time_limit.is_none_or(|limit| Some(limit.get().ceil().max(1.0)) != seconds) {
        job.policy.time_limit = seconds.map(Seconds::new);
    }
}
