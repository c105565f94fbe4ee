//! The control plane: jobs, nodes, GPUs, and how fast it decides.

use super::instances;
use crate::grafana::{Dashboard, Panel, PanelKind, Row};

pub(super) fn dashboard() -> Dashboard {
    Dashboard {
        uid: "bedplate-scheduler",
        title: "Scheduler",
        description: "Jobs and nodes of the cluster, and the health of its control plane",
        variables: vec![instances("bedplate_links")],
        rows: vec![jobs(), control()],
    }
}

fn of(metric: &str) -> String {
    format!("bedplate_{metric}{{instance=~\"$instance\"}}")
}

fn rate(metric: &str) -> String {
    format!("rate({}[$__rate_interval])", of(metric))
}

fn graph(title: &'static str, unit: &'static str, expression: String, legend: &'static str) -> Panel {
    Panel::new(title, PanelKind::TimeSeries, unit).query(expression, legend)
}

fn jobs() -> Row {
    let used = "1 - sum by (instance) (bedplate_gpus_free{instance=~\"$instance\"}) / sum by (instance) (bedplate_gpus{instance=~\"$instance\"})";
    Row {
        title: "Jobs and nodes",
        panels: vec![
            graph("Jobs by state", "short", of("jobs"), "{{state}}"),
            graph("Nodes by state", "short", of("nodes"), "{{state}}"),
            Panel::new("GPUs in use", PanelKind::Gauge, "percentunit").query(used, "{{instance}}"),
            Panel::new("GPUs free", PanelKind::Stat, "short").query(of("gpus_free"), "{{instance}}"),
            graph("Jobs taken in per second", "ops", rate("submissions_total"), "{{instance}}")
                .query(rate("submissions_refused_total"), "refused"),
            graph("Runs that came back", "cps", rate("run_restarts_total"), "{{instance}}"),
        ],
    }
}

fn control() -> Row {
    let quantile = |metric: &str| {
        format!(
            "histogram_quantile(0.99, sum by (le) (rate({}[$__rate_interval])))",
            of(&format!("{metric}_bucket"))
        )
    };
    Row {
        title: "Control plane",
        panels: vec![
            graph("A turn of the control thread, p99", "s", quantile("control_turn_seconds"), "p99"),
            graph("A cycle of the scheduler, p99", "s", quantile("scheduler_tick_seconds"), "p99"),
            graph("A commit of the journal, p99", "s", quantile("journal_commit_seconds"), "p99"),
            graph("An answer, p99", "s", quantile("http_request_seconds"), "p99"),
            graph("Requests by status", "reqps", "sum by (status) (rate(bedplate_http_requests_total{instance=~\"$instance\"}[$__rate_interval]))".to_owned(), "{{status}}"),
            graph("Agents that are linked", "short", of("links"), "{{instance}}"),
            Panel::new("Journal", PanelKind::Stat, "bool").query(of("journal_healthy"), "{{instance}}"),
            graph("Memory of the daemon", "bytes", of("resident_memory_bytes"), "{{instance}}"),
        ],
    }
}
