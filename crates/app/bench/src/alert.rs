//! `bedplate bench alert`: from an XID to an alert at a webhook, through a real Prometheus and Alertmanager.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bedplate_diag::{Diagnostic, Page};
use bedplate_exporter::{Exporter, ExporterOptions};
use bedplate_peers::{Prometheus, PrometheusShape, Webhook};
use bedplate_prometheus::{RuleOptions, rules_file};
use bedplate_record::{Exposition, Exposure, MetricsServer};
use bedplate_terminal::benchmarks::{NO_ALERT, PEERS};
use bedplate_terminal::present::Facts;
use bedplate_terminal::{CliError, Console};
use serde_json::{Value, json};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate bench alert
  bedplate bench alert --rounds 20 --interval 15
  bedplate bench alert --nvml target/debug/libbedplate_fakenvml.so --json

Prometheus and Alertmanager from Debian's packages scrape one endpoint and evaluate our rules at the
given interval. In each round another GPU reports XID 79 at a moment that the scrape does not know;
the time until Alertmanager has called the webhook counts. With --nvml the event goes through the
exporter and a scripted NVML, otherwise the endpoint shows it at once.")]
pub(super) struct Arguments {
    /// Events, one after the other
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64))]
    rounds: u32,
    /// Seconds between scrapes and between evaluations
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=60))]
    interval: u64,
    /// A scripted NVML, built by `cargo build -p bedplate-fakenvml`
    #[arg(long, value_name = "FILE")]
    nvml: Option<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum AlertError {
    #[error("Prometheus and Alertmanager could not be measured: {why}")]
    Peers { why: String },
    #[error("no alert came within {seconds} s of event {round}")]
    NoAlert { round: u32, seconds: u64 },
}

impl Diagnostic for AlertError {
    fn page(&self) -> &'static Page {
        match self {
            AlertError::Peers { .. } => &PEERS,
            AlertError::NoAlert { .. } => &NO_ALERT,
        }
    }
}

/// What the project wants at intervals of 2 s.
const LIMIT: f64 = 5.0;
const GPUS: u32 = 64;
const XID: u32 = 79;

pub(super) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    let peers = |why: String| AlertError::Peers { why };
    let webhook = Webhook::listen().map_err(|error| peers(error.to_string()))?;
    let source = Source::start(arguments).map_err(peers)?;
    let rules = rules_file(&RuleOptions { interval_s: Some(arguments.interval), ..RuleOptions::default() });
    let shape = PrometheusShape {
        targets: vec![("bedplate".to_owned(), source.server.address().to_string())],
        interval_s: arguments.interval,
        rules: Some(rules),
        webhook: Some(webhook.url()),
    };
    let prometheus = Prometheus::start(&shape).map_err(peers)?;
    // The first scrapes and evaluations have passed.
    thread::sleep(Duration::from_secs(3 * arguments.interval));
    let mut seconds = Vec::new();
    for round in 0..arguments.rounds {
        // Another moment between two scrapes each time: the golden ratio spreads them evenly.
        let phase = (f64::from(round) * 0.618_034).fract() * arguments.interval as f64;
        thread::sleep(Duration::from_secs_f64(phase));
        seconds.push(measure(round, &source, &webhook, arguments.interval)?);
    }
    show(&mut seconds, arguments, prometheus.resident_mib(), console)
}

fn measure(round: u32, source: &Source, webhook: &Webhook, interval: u64) -> Result<f64, AlertError> {
    let patience = Duration::from_secs(20 * interval + 60);
    let began = Instant::now();
    source.raise(round).map_err(|why| AlertError::Peers { why })?;
    while let Some(request) = webhook.next(patience.saturating_sub(began.elapsed())) {
        if is_about(&request.body, round) {
            return Ok((request.at - began).as_secs_f64());
        }
    }
    Err(AlertError::NoAlert { round, seconds: patience.as_secs() })
}

fn is_about(body: &str, gpu: u32) -> bool {
    let document: Value = serde_json::from_str(body).unwrap_or_default();
    let alerts = document["alerts"].as_array().cloned().unwrap_or_default();
    let (name, gpu) = (format!("GpuXid{XID}"), gpu.to_string());
    alerts
        .iter()
        .any(|alert| alert["labels"]["alertname"] == name.as_str() && alert["labels"]["gpu"] == gpu.as_str())
}

fn show(seconds: &mut [f64], arguments: &Arguments, mib: f64, console: &mut Console) -> Result<(), CliError> {
    seconds.sort_by(f64::total_cmp);
    let median = seconds[seconds.len() / 2];
    let worst = seconds[seconds.len() - 1];
    let best = seconds[0];
    if console.is_json() {
        return console.json(&json!({
            "rounds": arguments.rounds, "interval_s": arguments.interval, "through_exporter": arguments.nvml.is_some(),
            "best_s": best, "median_s": median, "worst_s": worst, "limit_s": LIMIT, "prometheus_resident_mib": mib,
        }));
    }
    let mut facts = Facts::default();
    facts
        .add(
            "events",
            format!("{}, {} s between scrapes and evaluations", arguments.rounds, arguments.interval),
        )
        .add("XID to webhook", format!("{best:.2} s best, {median:.2} s median, {worst:.2} s worst"))
        .add("wanted", format!("below {LIMIT:.0} s at intervals of 2 s"))
        .add("memory of the peers", format!("{mib:.0} MiB"));
    console.text(&facts.render(console.width()))
}

/// An endpoint that Prometheus scrapes, and a way to make a GPU of it fail.
struct Source {
    server: MetricsServer,
    kind: Kind,
}

enum Kind {
    /// GPUs that have failed, as the endpoint shows them.
    Shown(Arc<Mutex<Vec<u32>>>),
    /// The folder of a scripted NVML; it goes with the value.
    Scripted(Folder),
}

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Source {
    fn start(arguments: &Arguments) -> Result<Self, String> {
        match &arguments.nvml {
            None => {
                let failed: Arc<Mutex<Vec<u32>>> = Arc::default();
                let shown = Arc::clone(&failed);
                let text = move || exposition(&shown.lock().unwrap_or_else(PoisonError::into_inner));
                Ok(Self { server: serve(text)?, kind: Kind::Shown(failed) })
            }
            Some(library) => Self::scripted(library),
        }
    }

    /// The real exporter over a copy of a scripted library.
    fn scripted(library: &Path) -> Result<Self, String> {
        let text = |error: std::io::Error| error.to_string();
        let folder =
            Folder(std::env::temp_dir().join(format!("bedplate-bench-alert-{}", std::process::id())));
        fs::create_dir_all(&folder.0).map_err(text)?;
        let copy = folder.0.join("libnvidia-ml.so.1");
        fs::copy(library, &copy).map_err(|error| format!("{}: {error}", library.display()))?;
        write_script(&folder.0, &json!({ "gpus": vec![json!({}); GPUS as usize], "events": [] }))?;
        let mut options = ExporterOptions::new("n1");
        options.nvml = Some(copy);
        options.reads_kernel_log = false;
        let exporter = Exporter::start(options).map_err(|error| error.to_string())?;
        wait_for_gpus(&exporter)?;
        Ok(Self { server: serve(move || exporter.text())?, kind: Kind::Scripted(folder) })
    }

    fn raise(&self, gpu: u32) -> Result<(), String> {
        match &self.kind {
            Kind::Shown(failed) => {
                failed.lock().unwrap_or_else(PoisonError::into_inner).push(gpu);
                Ok(())
            }
            Kind::Scripted(folder) => {
                let path = folder.0.join("nvml.json");
                let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
                let mut script: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
                if let Some(events) = script["events"].as_array_mut() {
                    events.push(json!({ "gpu": gpu, "xid": XID }));
                }
                write_script(&folder.0, &script)
            }
        }
    }
}

/// Replaced as a whole: a reader sees the old one or the new one.
fn write_script(folder: &Path, script: &Value) -> Result<(), String> {
    let fresh = folder.join("nvml.json.new");
    let written =
        fs::write(&fresh, script.to_string()).and_then(|()| fs::rename(&fresh, folder.join("nvml.json")));
    written.map_err(|error| error.to_string())
}

/// Events count from when the exporter listens.
fn wait_for_gpus(exporter: &Exporter) -> Result<(), String> {
    let deadline = Instant::now() + Duration::from_secs(60);
    while Instant::now() < deadline {
        if exporter.text().contains("DCGM_FI_DEV_XID_ERRORS{") {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(50));
    }
    Err("the exporter shows no GPU of the scripted NVML".to_owned())
}

fn serve(text: impl Fn() -> String + Send + Sync + 'static) -> Result<MetricsServer, String> {
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    MetricsServer::start(address, Exposure::Loopback, text).map_err(|error| error.to_string())
}

/// What the exporter shows of XIDs.
fn exposition(failed: &[u32]) -> String {
    let mut text = Exposition::default();
    text.head("DCGM_FI_DEV_XID_ERRORS", "gauge", "Value of the last XID error encountered.");
    for gpu in 0..GPUS {
        let value = if failed.contains(&gpu) { f64::from(XID) } else { 0.0 };
        text.sample("DCGM_FI_DEV_XID_ERRORS", &format!("gpu=\"{gpu}\",Hostname=\"n1\""), value);
    }
    text.head("DCGM_EXP_XID_ERRORS_COUNT", "counter", "XID errors of this code since the exporter started.");
    for gpu in failed {
        text.sample(
            "DCGM_EXP_XID_ERRORS_COUNT",
            &format!("gpu=\"{gpu}\",Hostname=\"n1\",xid=\"{XID}\""),
            1.0,
        );
    }
    text.into_string()
}
