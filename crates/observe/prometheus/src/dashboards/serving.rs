//! Serving by vLLM, under the names that vLLM gives its metrics.

use super::instances;
use crate::grafana::{Dashboard, Panel, PanelKind, Row};

pub(super) fn dashboard() -> Dashboard {
    Dashboard {
        uid: "bedplate-serving",
        title: "Serving",
        description: "Replicas of vLLM: load, latency, cache",
        variables: vec![instances("vllm:num_requests_running")],
        rows: vec![load(), latency(), cache()],
    }
}

fn of(metric: &str) -> String {
    format!("vllm:{metric}{{instance=~\"$instance\"}}")
}

fn rate(metric: &str) -> String {
    format!("sum by (instance) (rate({}[$__rate_interval]))", of(metric))
}

fn load() -> Row {
    let graph = |title, unit, expression: String| {
        Panel::new(title, PanelKind::TimeSeries, unit).query(expression, "{{instance}}")
    };
    Row {
        title: "Load",
        panels: vec![
            graph("Requests running", "short", of("num_requests_running")),
            graph("Requests waiting", "short", of("num_requests_waiting")),
            graph("Requests done", "reqps", rate("request_success_total")),
            graph("Tokens generated per second", "short", rate("generation_tokens_total")),
            graph("Tokens of prompts per second", "short", rate("prompt_tokens_total")),
            graph("Preemptions", "cps", rate("num_preemptions_total")),
        ],
    }
}

fn quantiles(title: &'static str, histogram: &str) -> Panel {
    let quantile = |share: &str| {
        format!(
            "histogram_quantile({share}, sum by (le) (rate({}[$__rate_interval])))",
            of(&format!("{histogram}_bucket"))
        )
    };
    Panel::new(title, PanelKind::TimeSeries, "s")
        .query(quantile("0.5"), "p50")
        .query(quantile("0.95"), "p95")
        .query(quantile("0.99"), "p99")
}

fn latency() -> Row {
    Row {
        title: "Latency",
        panels: vec![
            quantiles("Time to first token", "time_to_first_token_seconds"),
            quantiles("Time between tokens", "inter_token_latency_seconds"),
            quantiles("Whole request", "e2e_request_latency_seconds"),
            quantiles("In the queue", "request_queue_time_seconds"),
        ],
    }
}

fn cache() -> Row {
    let hits = format!("{} / {}", rate("prefix_cache_hits_total"), rate("prefix_cache_queries_total"));
    Row {
        title: "Cache",
        panels: vec![
            Panel::new("KV cache in use", PanelKind::TimeSeries, "percentunit")
                .query(of("kv_cache_usage_perc"), "{{instance}}")
                .limits(0.9, 0.98),
            Panel::new("Prefix cache hits", PanelKind::TimeSeries, "percentunit").query(hits, "{{instance}}"),
        ],
    }
}
