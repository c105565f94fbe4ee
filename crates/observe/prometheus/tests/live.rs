//! A real Prometheus scrapes the exporter; every query of every dashboard parses and returns series, every rule evaluates,
//! and Grafana's model takes every dashboard.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bedplate_breakdown::{Breakdown, Part, Span};
use bedplate_exporter::{Exporter, ExporterOptions, JobOnGpu, Root, metrics};
use bedplate_fakenvml::FakeNvml;
use bedplate_peers::{Prometheus, PrometheusShape, Webhook};
use bedplate_prometheus::grafana::flaws;
use bedplate_prometheus::{RECORDINGS, RuleOptions, dashboards, names, rules_file};
use bedplate_record::{EvaluationRecord, Exposure, Metrics, MetricsServer, StepRecord};
use bedplate_testkit::{wait_to_see, wait_until};
use bedplate_units::Seconds;
use serde_json::{Value, json};

/// Metrics of other programs: recorded from the daemon; written by hand under the names that vLLM documents.
const DAEMON: &str = include_str!("metrics/daemon.prom");
const VLLM: &str = include_str!("metrics/vllm.prom");
const PATIENCE: Duration = Duration::from_secs(120);

/// The exporter over a pretended host: eight GPUs of a pretended NVML, network cards, Lustre, disks, and one XID.
struct Host {
    folder: PathBuf,
    exporter: Arc<Exporter>,
    nvml: FakeNvml,
}

impl Host {
    fn start(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("bedplate-boards-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        for (path, text) in FILES {
            write(&folder, path, text);
        }
        for metric in metrics::all() {
            if let Some(counter) = metric.name.strip_prefix("node_amazonefa_") {
                write(
                    &folder,
                    &format!("sys/class/infiniband/rdmap0s6/ports/1/hw_counters/{counter}"),
                    "10\n",
                );
            }
        }
        let nvml = FakeNvml::install(&folder, 8).unwrap();
        let mut options = ExporterOptions::new("n1");
        options.root = Root::at(&folder);
        options.interval = Duration::from_millis(500);
        let exporter = Arc::new(Exporter::start(options).unwrap());
        exporter.set_jobs([(0, JobOnGpu { job: "12".into(), rank: Some("0".into()) })].into());
        // Events count from when the exporter listens to them.
        wait_until("it listens to XIDs", || exporter.text().contains("DCGM_FI_DEV_XID_ERRORS{"));
        Self { folder, exporter, nvml }
    }

    fn serve(&self) -> MetricsServer {
        let exporter = Arc::clone(&self.exporter);
        serve(move |_| exporter.text())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn write(folder: &Path, path: &str, text: &str) {
    let path = folder.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

const FILES: &[(&str, &str)] = &[
    ("dev/kmsg", ""),
    ("sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data", "1000\n"),
    ("sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error", "0\n"),
    ("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n"),
    ("sys/class/infiniband/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)\n"),
    (
        "sys/kernel/debug/lustre/llite/fsx-ffff9a/stats",
        "snapshot_time 1.0 secs.nsecs\nread_bytes 2 samples [bytes] 1 4096 8192\nwrite_bytes 2 samples [bytes] 1 4096 8192\nopen 3 samples [usecs] 1 2 3000000\n",
    ),
    (
        "sys/kernel/debug/lustre/osc/fsx-OST0000-osc-ffff9a/rpc_stats",
        "read RPCs in flight:  3\nwrite RPCs in flight: 4\npending write pages:  20\npending read pages:   2\n",
    ),
    ("sys/fs/lustre/osc/fsx-OST0000-osc-ffff9a/import", "import:\n    state: FULL\n"),
    ("sys/class/nvme/nvme0/state", "live\n"),
    ("sys/class/nvme/nvme0/hwmon1/temp1_input", "41000\n"),
    ("proc/pressure/cpu", "some avg10=0.00 avg60=0.00 avg300=0.00 total=2500000\n"),
    (
        "proc/pressure/io",
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=2500000\nfull avg10=0.00 total=1000000\n",
    ),
    ("proc/stat", "cpu  100 0 50 900 10 0 0 0 0 0\n"),
    ("proc/meminfo", "MemTotal:       1000 kB\nMemAvailable:    500 kB\n"),
    ("proc/diskstats", " 259 0 nvme0n1 5 0 16 250 7 0 8 100 0 300 350 0 0 0 0\n"),
    ("proc/self/mounts", "/dev/root / ext4 rw 0 0\n"),
];

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

fn serve(text: impl Fn(u64) -> String + Send + Sync + 'static) -> MetricsServer {
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
    let host = Host::start("boards");
    host.nvml.raise_xid(3, 79).unwrap();
    let servers = [
        ("bedplate", host.serve()),
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
    let mut without_series = || {
        // A query that does not parse is refused at once; one without series may need another scrape.
        waiting.retain(|query| {
            series(&prometheus.query(query).unwrap_or_else(|told| panic!("{query}: {told}"))) == 0
        });
        waiting.clone()
    };
    wait_to_see("every query has series", &mut without_series, |waiting| waiting.is_empty());
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
fn an_xid_becomes_an_alert_at_a_webhook() {
    let host = Host::start("alert");
    let server = host.serve();
    let webhook = Webhook::listen().unwrap();
    let shape = PrometheusShape {
        targets: vec![("bedplate".to_owned(), server.address().to_string())],
        interval_s: 1,
        rules: Some(rules_file(&RuleOptions { interval_s: Some(1), ..RuleOptions::default() })),
        webhook: Some(webhook.url()),
    };
    if let Some(missing) = shape.missing() {
        println!("SKIPPED: {missing} is not installed");
        return;
    }
    let _prometheus = Prometheus::start(&shape).unwrap();
    host.nvml.raise_xid(5, 79).unwrap();
    let began = Instant::now();
    loop {
        let request = webhook.next(PATIENCE.saturating_sub(began.elapsed())).expect("an alert comes");
        let told: Value = serde_json::from_str(&request.body).unwrap();
        let alerts = told["alerts"].as_array().unwrap();
        let of_xid = alerts.iter().find(|alert| alert["labels"]["alertname"] == "GpuXid79");
        if let Some(alert) = of_xid {
            let label = |name: &str| alert["labels"][name].as_str().unwrap_or_default().to_owned();
            assert_eq!(
                (label("Hostname"), label("gpu"), label("severity")),
                ("n1".into(), "5".into(), "critical".into())
            );
            assert_eq!(label("action"), "reboot");
            assert!(
                alert["annotations"]["summary"].as_str().unwrap().starts_with("n1 GPU 5: XID 79"),
                "{alert:#}"
            );
            return;
        }
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
