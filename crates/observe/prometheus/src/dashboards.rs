//! The dashboards.

mod cluster;
mod host;
mod scheduler;
mod serving;
mod storage;
mod training;

use crate::grafana::{Dashboard, Variable};

/// All dashboards, in the order of their file names.
pub fn all() -> Vec<(&'static str, Dashboard)> {
    vec![
        ("gpu-health-cluster", cluster::dashboard()),
        ("gpu-health-host", host::dashboard()),
        ("training-run", training::dashboard()),
        ("serving", serving::dashboard()),
        ("scheduler", scheduler::dashboard()),
        ("storage", storage::dashboard()),
    ]
}

fn hosts() -> Variable {
    Variable {
        name: "Hostname",
        label: "Host",
        query: "label_values(bedplate_gpus_answering, Hostname)".to_owned(),
    }
}

fn instances(metric: &str) -> Variable {
    Variable { name: "instance", label: "Instance", query: format!("label_values({metric}, instance)") }
}
