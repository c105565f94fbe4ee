//! `bedplate bench submit`: how fast jobs are accepted, and how fast small ones are done.

mod load;
mod past;
mod slurm;

use std::path::Path;

use bedplate_diag::{Diagnostic, Page, Source};
use bedplate_local::{TemporaryCluster, Wanted};
use bedplate_terminal::benchmarks::{SLURM, STUCK};
use bedplate_terminal::present::{Column, Table, now_ms};
use bedplate_terminal::{CliError, Console, Context};
use bedplate_topology::{Format, ImportOptions, import};
use bedplate_units::grouped;
use serde_json::{Map, Value, json};

use crate::product::launcher;
use load::Measured;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate bench submit
  bedplate bench submit --peer slurm --json
  bedplate bench submit --jobs 10000 --clients 8
  bedplate bench submit --ended 1000000

A cluster of 8 nodes with 16 CPUs each is started for this. First the
jobs (`true`, one node, one task) are submitted over HTTP and run: drain_s is
the time from the first submission to the last end. Then all nodes are taken,
and as many jobs are submitted while the scheduler examines the whole queue:
submissions_per_s, each of them on disk before it is acknowledged. Then once
more while four clients ask without pause why a job waits: explained_p99_ms. With
--ended the daemon begins with a history of so many jobs; daemon_mib is the memory
that it holds in the end. --peer
slurm starts a Slurm of the same shape from the system's packages and does the
same there with sbatch, and again with its REST server where that is installed.")]
pub(super) struct Arguments {
    /// How many jobs
    #[arg(long, value_name = "COUNT", default_value_t = 2000)]
    jobs: u32,
    /// How many clients submit at once
    #[arg(long, value_name = "COUNT", default_value_t = 4)]
    clients: u32,
    /// Ended jobs in the journal at the start
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    ended: u64,
    /// Also measure another system
    #[arg(long, value_enum)]
    peer: Option<Peer>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Peer {
    /// Slurm, from the packages of this system
    Slurm,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum SubmitBenchError {
    #[error("Slurm cannot be measured: {why}")]
    Slurm { why: String },
    #[error("{done} of {jobs} jobs have ended after {seconds} s")]
    Stuck { done: u64, jobs: u32, seconds: u64 },
}

impl Diagnostic for SubmitBenchError {
    fn page(&self) -> &'static Page {
        match self {
            SubmitBenchError::Slurm { .. } => &SLURM,
            SubmitBenchError::Stuck { .. } => &STUCK,
        }
    }
}

/// The shape of both clusters.
const NODES: u32 = 8;
const CPUS: u32 = 16;

pub(super) fn run(arguments: &Arguments, context: &Context, console: &mut Console) -> Result<(), CliError> {
    if arguments.peer.is_some() {
        slurm::check_installed().map_err(|why| SubmitBenchError::Slurm { why })?;
    }
    let ours = measure(arguments, context, console)?;
    let mut peers = Vec::new();
    if let Some(Peer::Slurm) = arguments.peer {
        for transport in slurm::Transport::installed() {
            console.say(&format!("now Slurm by {}", transport.name()));
            let measured = slurm::measure(transport, arguments.jobs, arguments.clients);
            peers.push((transport, measured.map_err(|why| SubmitBenchError::Slurm { why })?));
        }
    }
    if console.is_json() {
        return console.json(&as_json(arguments, &ours, &peers));
    }
    console.table(&table(&ours, &peers))
}

fn measure(arguments: &Arguments, context: &Context, console: &Console) -> Result<Measured, CliError> {
    let description = format!(
        "name = \"bench\"\n[[kind]]\nname = \"small\"\nvcpus = {CPUS}\nmemory = \"4000 MiB\"\n\
         [[group]]\nkind = \"small\"\ncount = {NODES}\n"
    );
    let catalog = context.load_catalog()?;
    let source = Source::new("the benchmark", &description);
    let cluster = import(Format::Document, &[source], &ImportOptions::default(), &catalog)?;
    let wanted = Wanted { cluster: Some(cluster), ..Wanted::default() };
    let prepare = |folder: &Path| -> Result<(), CliError> {
        if arguments.ended > 0 {
            console.say(&format!("writing a history of {} jobs", grouped(arguments.ended)));
            past::write(folder, &load::no_op(), arguments.ended, now_ms())?;
        }
        Ok(())
    };
    let cluster = TemporaryCluster::start_with(&wanted, &catalog, launcher(context, console)?, prepare)?;
    let measured = load::measure(cluster.driver.place(), arguments.jobs, arguments.clients)?;
    Ok(Measured { daemon_mib: cluster.daemon_mib(), ..measured })
}

fn as_json(arguments: &Arguments, ours: &Measured, peers: &[(slurm::Transport, Measured)]) -> Value {
    let mut object = Map::new();
    object.insert("jobs".into(), json!(arguments.jobs));
    object.insert("clients".into(), json!(arguments.clients));
    object.insert("ended".into(), json!(arguments.ended));
    for (name, value) in ours.figures() {
        object.insert(name.into(), json!(value));
    }
    for (transport, peer) in peers {
        object.insert("peer".into(), json!("slurm"));
        let mark = transport.mark();
        for ((name, value), (_, own)) in peer.figures().into_iter().zip(ours.figures()) {
            object.insert(format!("peer_{mark}{name}"), json!(value));
            object.insert(format!("ratio_{mark}{name}"), json!(ratio(own, value)));
        }
    }
    Value::Object(object)
}

/// Ours over the peer's.
fn ratio(own: Option<f64>, peer: Option<f64>) -> Option<f64> {
    Some(own? / peer?).filter(|ratio| ratio.is_finite())
}

fn table(ours: &Measured, peers: &[(slurm::Transport, Measured)]) -> Table {
    let mut columns = vec![Column::left("FIGURE", 0), Column::right("BEDPLATE", 0)];
    for (transport, _) in peers {
        columns.extend([Column::right(transport.title(), 0), Column::right("RATIO", 0)]);
    }
    let mut table = Table::new(columns);
    let shown = |value: Option<f64>| value.map(|value| format!("{value:.2}")).unwrap_or_default();
    for (at, (name, own)) in ours.figures().into_iter().enumerate() {
        let mut row = vec![name.to_owned(), shown(own)];
        for (_, peer) in peers {
            let other = peer.figures()[at].1;
            row.extend([shown(other), shown(ratio(own, other))]);
        }
        table.row(row);
    }
    table
}
