//! A training run: progress, speed, and measured parts of a step beside predicted ones.

use super::instances;
use crate::grafana::{Dashboard, Panel, PanelKind, Row};

pub(super) fn dashboard() -> Dashboard {
    Dashboard {
        uid: "bedplate-training",
        title: "Training run",
        description: "What `bedplate train` tells, and where its time goes",
        variables: vec![instances("bedplate_train_steps_total")],
        rows: vec![progress(), speed(), parts(), gpus()],
    }
}

fn of(metric: &str) -> String {
    format!("bedplate_train_{metric}{{instance=~\"$instance\"}}")
}

fn graph(title: &'static str, unit: &'static str, metric: &str) -> Panel {
    Panel::new(title, PanelKind::TimeSeries, unit).query(of(metric), "{{instance}}")
}

fn progress() -> Row {
    Row {
        title: "Progress",
        panels: vec![
            graph("Loss", "none", "loss").query(of("evaluation_loss"), "{{instance}} evaluation"),
            graph("Gradient norm", "none", "gradient_norm"),
            graph("Learning rate", "none", "learning_rate"),
            Panel::new("Steps", PanelKind::Stat, "locale").query(of("steps_total"), "{{instance}}"),
            Panel::new("Tokens", PanelKind::Stat, "short").query(of("tokens_total"), "{{instance}}"),
        ],
    }
}

fn speed() -> Row {
    let ratio = "bedplate_train_step_seconds{instance=~\"$instance\"} / on (instance, job) sum by (instance, job) (bedplate_train_predicted_seconds{instance=~\"$instance\"})";
    Row {
        title: "Speed",
        panels: vec![
            graph("Tokens per second", "short", "tokens_per_second"),
            graph("Model FLOPs utilisation", "percentunit", "mfu_ratio"),
            graph("Step", "s", "step_seconds").query(
                "sum by (instance) (bedplate_train_predicted_seconds{instance=~\"$instance\"})",
                "{{instance}} predicted",
            ),
            Panel::new("Step over prediction", PanelKind::TimeSeries, "none")
                .says("1 is as predicted; above 1.3 an alert fires")
                .query(ratio, "{{instance}}")
                .limits(1.1, 1.3),
            graph("Memory of the process", "bytes", "memory_bytes"),
        ],
    }
}

fn parts() -> Row {
    let measured = "rate(bedplate_train_exposed_seconds_total{instance=~\"$instance\"}[$__rate_interval]) / on (instance, job) group_left rate(bedplate_train_steps_total{instance=~\"$instance\"}[$__rate_interval])";
    Row {
        title: "Parts of a step",
        panels: vec![
            Panel::new("Measured, exposed", PanelKind::TimeSeries, "s").query(measured, "{{part}}"),
            Panel::new("Predicted, exposed", PanelKind::TimeSeries, "s")
                .query(of("predicted_seconds"), "{{part}}"),
            Panel::new("Hidden behind other work", PanelKind::TimeSeries, "percentunit").query(
                "rate(bedplate_train_hidden_seconds_total{instance=~\"$instance\"}[$__rate_interval])",
                "{{part}}",
            ),
        ],
    }
}

fn gpus() -> Row {
    let by_job = |title, unit, expression: &str| {
        Panel::new(title, PanelKind::TimeSeries, unit).query(expression, "job {{hpc_job}}")
    };
    Row {
        title: "GPUs by job",
        panels: vec![
            by_job("SM activity", "percentunit", "avg by (hpc_job) (DCGM_FI_PROF_SM_ACTIVE{hpc_job!=\"\"})"),
            by_job("Power", "watt", "sum by (hpc_job) (DCGM_FI_DEV_POWER_USAGE{hpc_job!=\"\"})"),
            by_job("Slowest SM clock", "rotmhz", "min by (hpc_job) (DCGM_FI_DEV_SM_CLOCK{hpc_job!=\"\"})")
                .says("In MHz; all ranks wait for the slowest"),
            by_job(
                "Least active GPU",
                "percentunit",
                "min by (hpc_job) (DCGM_FI_PROF_SM_ACTIVE{hpc_job!=\"\"})",
            ),
        ],
    }
}
