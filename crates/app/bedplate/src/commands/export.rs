//! `bedplate export`: the metrics of this machine for Prometheus, and what the rules find in them.

mod act;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bedplate_diag::Page;
use bedplate_exporter::{Exporter, ExporterOptions, ScrapeTarget};
use bedplate_finding::OpenFinding;
use bedplate_host::host_name;
use bedplate_record::{Exposure, MetricsServer};
use bedplate_terminal::present::printable_line;
use bedplate_terminal::{CliError, Console};
use nix::sys::signal::{SigSet, Signal};
use serde_json::json;

use crate::connection::Connection;
use crate::watching::Watching;

pub(crate) const PAGES: &[&Page] = act::PAGES;

/// The port of dcgm-exporter, so that existing scrape configurations fit.
const ADDRESS: &str = "127.0.0.1:9400";

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate export                                  http://127.0.0.1:9400/metrics, until Ctrl-C
  bedplate export --once | grep XID                one reading, as text
  bedplate export --listen 0.0.0.0:9400 --public   also for a Prometheus elsewhere
  bedplate export --hostname-label both --scrape http://127.0.0.1:8000/metrics,job=12,rank=0
  bedplate export --drain --context site           drain this node of a Slurm on findings

Names and labels are those of dcgm-exporter, node_exporter and the vendors; docs/metrics.md
lists them. Missing hardware has no series. Nodes of `bedplate up` watch
themselves and need no exporter.")]
pub(crate) struct Arguments {
    /// Where Prometheus finds it; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = ADDRESS, value_parser = address)]
    listen: SocketAddr,
    /// Let other machines read it; it has neither encryption nor passwords
    #[arg(long)]
    public: bool,
    /// Print one reading as text and end
    #[arg(long, conflicts_with_all = ["listen", "public", "drain"])]
    once: bool,
    /// Take this node out of service in its cluster when a finding calls for it
    #[arg(long)]
    drain: bool,
    /// Metrics of a rank to pass on: http://host:port/path, with ,job= and ,rank= behind it; may be repeated
    #[arg(long, value_name = "URL")]
    scrape: Vec<String>,
    /// A folder of files named after GPUs, with the job of each inside, as dcgm-exporter has it
    #[arg(long, value_name = "FOLDER", visible_alias = "hpc-job-mapping-dir")]
    job_mapping_dir: Option<PathBuf>,
    /// The program that reads Neuron devices [default: neuron-monitor, where it is installed]
    #[arg(long, value_name = "PROGRAM")]
    neuron_monitor: Option<PathBuf>,
    #[command(flatten)]
    watching: Watching,
    #[command(flatten)]
    connection: Connection,
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "it is an IP address and a port, such as 127.0.0.1:9400 or [::]:9400".to_owned())
}

pub(crate) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    let mut options = arguments.watching.options(&host_name())?;
    options.targets =
        arguments.scrape.iter().map(|text| ScrapeTarget::parse(text)).collect::<Result<_, _>>()?;
    options.job_folder.clone_from(&arguments.job_mapping_dir);
    options.neuron_monitor = arguments.neuron_monitor.clone().or_else(neuron_monitor);
    if arguments.once {
        return once(options, console);
    }
    let actor = match arguments.drain {
        true => Some(act::Actor::new(arguments.connection.driver()?, &options.node, console.clone())?),
        false => None,
    };
    serve(arguments, options, actor, console)
}

/// Two readings, because some metrics compare the newest with the one before.
fn once(mut options: ExporterOptions, console: &mut Console) -> Result<(), CliError> {
    let interval = options.interval.min(Duration::from_secs(1));
    options.interval = interval;
    let exporter = Exporter::start(options)?;
    thread::sleep(interval * 2 + Duration::from_millis(100));
    if console.is_json() {
        return console.json(&json!({ "metrics": exporter.text(), "findings": exporter.findings() }));
    }
    console.text(&exporter.text())
}

fn serve(
    arguments: &Arguments,
    mut options: ExporterOptions,
    actor: Option<act::Actor>,
    console: &mut Console,
) -> Result<(), CliError> {
    // Blocked before threads are started, which inherit it.
    let signals = [Signal::SIGINT, Signal::SIGTERM].into_iter().collect::<SigSet>();
    let _ = signals.thread_block();
    let told = console.clone();
    let actor = actor.map(Arc::new);
    options.on_findings = Some(Arc::new(move |findings: Vec<OpenFinding>| {
        for open in &findings {
            told.say(&printable_line(&format!("{}; calls for: {}", open.finding, open.finding.action)));
        }
        if let Some(actor) = &actor {
            actor.hear(findings);
        }
    }));
    let exporter = Exporter::start(options)?;
    let exposure = if arguments.public { Exposure::Anybody } else { Exposure::Loopback };
    let server = MetricsServer::start(arguments.listen, exposure, exporter.reader())
        .map_err(bedplate_exporter::ExportError::from)?;
    let url = format!("http://{}/metrics", server.address());
    if console.is_json() {
        console.json(&json!({ "url": url }))?;
    } else {
        console.line(&url)?;
    }
    let began = Instant::now();
    // Whatever this returns, the exporter ends.
    let _ = signals.wait();
    console.say(&format!("ends after {:.0} s", began.elapsed().as_secs_f64()));
    Ok(())
}

/// Where AWS installs it, or where the path has it.
fn neuron_monitor() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/opt/aws/neuron/bin".into()]);
    folders.map(|folder| folder.join("neuron-monitor")).find(|program| program.is_file())
}
