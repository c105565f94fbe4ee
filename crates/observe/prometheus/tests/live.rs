//! A real Prometheus scrapes every metric; every query of every dashboard parses and returns series, every rule evaluates,
//! and Grafana's model takes every dashboard.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bedplate_breakdown::{Breakdown, Part, Span};
use bedplate_exporter::metrics::{self, Kind};
use bedplate_peers::{Prometheus, PrometheusShape};
use bedplate_prometheus::grafana::flaws;
use bedplate_prometheus::{RECORDINGS, RuleOptions, dashboards, names, rules_file};
use bedplate_record::{EvaluationRecord, Exposition, Exposure, Metrics, MetricsServer, StepRecord};
use bedplate_units::Seconds;
use serde_json::{Value, json};

/// Metrics of other programs: recorded from the daemon; written by hand under the names that vLLM documents.
const DAEMON: &str = include_str!("metrics/daemon.prom");
const VLLM: &str = include_str!("metrics/vllm.prom");
const PATIENCE: Duration = Duration::from_secs(120);

/// Every metric of the exporter's table for two hosts; counters grow with each scrape.
fn exporter_text(scrape: u64) -> String {
    let mut text = Exposition::default();
    for metric in metrics::all() {
        text.head(metric.name, metric.kind.name(), metric.help);
        for host in ["n1", "n2"] {
            let label = |name: &&str| match *name {
                "Hostname" => format!("Hostname=\"{host}\""),
                "gpu" => "gpu=\"0\"".to_owned(),
                other => format!("{other}=\"some\""),
            };
            let labels: Vec<String> = metric.labels.iter().map(label).collect();
            let value = if metric.kind == Kind::Counter { scrape as f64 } else { 1.0 };
            text.sample(metric.name, &labels.join(","), value);
        }
    }
    text.into_string()
}

/// The numbers of a recorded text grow with each scrape, so that rates are not empty.
fn growing(text: &str, scrape: u64) -> String {
    let grow = |line: &str| match line.rsplit_once(' ') {
        Some((series, value)) if !line.starts_with('#') => {
            let value: f64 = value.parse().unwrap();
            let is_counter = ["_total", "_bucket", "_sum", "_count"]
                .iter()
                .any(|end| series.split('{').next().unwrap_or_default().ends_with(end));
            format!("{series} {}\n", if is_counter { value + scrape as f64 } else { value })
        }
        _ => format!("{line}\n"),
    };
    text.lines().map(grow).collect()
}

/// A training run that makes a step between scrapes.
fn training() -> impl Fn(u64) -> String {
    let metrics = Metrics::default();
    metrics.set_evaluation(&EvaluationRecord {
        loss: Some(2.0),
        perplexity: Some(7.4),
        ..EvaluationRecord::default()
    });
    move |scrape| {
        let exposed = |seconds| Span::exposed(Seconds::new(seconds));
        metrics.set_step(&StepRecord {
            step: scrape,
            tokens: 4096 * scrape,
            mfu: Some(0.4),
            breakdown: Breakdown::default()
                .with(Part::Compute, exposed(0.7))
                .with(Part::ScaleOut, exposed(0.3)),
            predicted: Some(Breakdown::default().with(Part::Compute, exposed(0.8))),
            seconds: 1.0,
            ..StepRecord::default()
        });
        metrics.text()
    }
}

fn serve(text: impl Fn(u64) -> String + Send + 'static) -> MetricsServer {
    let scrapes = Arc::new(AtomicU64::new(1));
    let address: SocketAddr = "127.0.0.1:0".parse().unwrap();
    MetricsServer::start(address, Exposure::Loopback, move || text(scrapes.fetch_add(1, Ordering::Relaxed)))
        .unwrap()
}

/// What Grafana puts in the place of its variables.
fn filled(expression: &str) -> String {
    expression
        .replace("$__rate_interval", "10s")
        .replace("$Hostname", ".*")
        .replace("$gpu", ".*")
        .replace("$instance", ".*")
}

fn series(answer: &str) -> usize {
    let document: Value = serde_json::from_str(answer).unwrap();
    document["data"]["result"].as_array().map_or(0, Vec::len)
}

#[test]
fn every_query_of_every_dashboard_returns_series_and_every_rule_evaluates() {
    let servers = [
        ("bedplate", serve(exporter_text)),
        ("bedplate-daemon", serve(|scrape| growing(DAEMON, scrape))),
        ("bedplate-training", serve(training())),
        ("bedplate-serving", serve(|scrape| growing(VLLM, scrape))),
    ];
    let targets =
        servers.iter().map(|(job, server)| ((*job).to_owned(), server.address().to_string())).collect();
    let rules = rules_file(&RuleOptions { interval_s: Some(1), ..RuleOptions::default() });
    let shape = PrometheusShape { targets, interval_s: 1, rules: Some(rules), webhook: None };
    if let Some(missing) = shape.missing() {
        println!("SKIPPED: {missing} is not installed");
        return;
    }
    let prometheus = Prometheus::start(&shape).unwrap();
    let mut waiting: BTreeSet<String> = dashboards::all()
        .iter()
        .flat_map(|(_, board)| board.queries().map(|query| filled(&query.expression)).collect::<Vec<_>>())
        .chain(RECORDINGS.iter().filter(|it| !it.expression.contains("[5m]")).map(|it| it.name.to_owned()))
        .collect();
    let count = waiting.len();
    assert!(count > 90, "{count}");
    let began = Instant::now();
    while !waiting.is_empty() {
        // A query that does not parse is refused at once; one without series may need another scrape.
        waiting.retain(|query| {
            series(&prometheus.query(query).unwrap_or_else(|told| panic!("{query}: {told}"))) == 0
        });
        assert!(began.elapsed() < PATIENCE, "without series: {waiting:#?}");
        thread::sleep(Duration::from_millis(500));
    }
    let rules: Value = serde_json::from_str(&prometheus.get("/api/v1/rules").unwrap()).unwrap();
    for rule in rules["data"]["groups"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|group| group["rules"].as_array().unwrap())
    {
        assert_ne!(rule["health"], json!("err"), "{rule:#}");
    }
}

#[test]
fn dashboards_have_the_form_that_grafana_takes() {
    for (file, board) in dashboards::all() {
        for hostname in ["Hostname", "hostname"] {
            let found = flaws(&board.to_json(hostname));
            assert!(found.is_empty(), "{file}: {found:#?}");
        }
        assert!(!board.to_json("hostname").to_string().contains("{{Hostname"), "{file}");
    }
}

#[test]
fn a_dashboard_that_grafana_would_not_draw_is_found() {
    let (_, board) = dashboards::all().remove(0);
    let good = board.to_json("Hostname");
    type Harm = fn(&mut Value);
    let harms: [(Harm, &str); 8] = [
        (|it| it["title"] = json!(""), "title"),
        (|it| it["uid"] = json!("with space"), "uid"),
        (|it| it["panels"][3]["type"] = json!("graph3d"), "a type"),
        (|it| it["panels"][3]["datasource"] = json!("Prometheus"), "data source"),
        (|it| it["panels"][3]["gridPos"]["w"] = json!(30), "24 columns"),
        (|it| it["panels"][3]["targets"] = json!([]), "a query"),
        (|it| it["panels"][3]["id"] = json!(1), "an id"),
        (|it| it["panels"][4]["gridPos"] = it["panels"][3]["gridPos"].clone(), "over another"),
    ];
    for (harm, told) in harms {
        let mut bad = good.clone();
        harm(&mut bad);
        let found = flaws(&bad);
        assert!(found.iter().any(|flaw| flaw.contains(told)), "{told}: {found:#?}");
    }
}

#[test]
fn dashboards_use_metrics_that_exist() {
    let known = names::known();
    for (file, board) in dashboards::all() {
        for query in board.queries() {
            for name in names::metrics_in(&filled(&query.expression)) {
                assert!(
                    known.contains(&name) || names::is_of_others(&name),
                    "{file} uses {name}, which does not exist"
                );
            }
        }
    }
}

#[test]
fn the_cluster_dashboard_has_the_panels_of_21645_and_memory_errors() {
    let (_, board) = dashboards::all().remove(0);
    let titles: Vec<&str> = board.panels().map(|panel| panel.title).collect();
    for title in [
        "Read me",
        "Uncorrectable remapped rows",
        "Correctable remapped rows",
        "XID errors",
        "Row remap failure",
        "Thermal violation",
        "Missing GPUs",
        "Instances reporting",
        "Double-bit ECC errors",
        "Single-bit ECC errors",
    ] {
        assert!(titles.contains(&title), "{title} is missing: {titles:?}");
    }
}
