//! `bedplate chaos …`: breaks something on purpose, to see it heal.

mod disk;
mod storm;

use std::path::PathBuf;
use std::time::Instant;

use bedplate_control::wire::{Chaos, RunId};
use bedplate_diag::{Class, Diagnostic, Page};
use bedplate_drivers::{Driver, JobId, Local, NodeId};
use bedplate_local::{Shape, hold, kill_daemon, stop_supervisor};
use bedplate_terminal::{CliError, Console, Context};
use bedplate_units::Seconds;
use serde_json::json;

use crate::connection::Connection;
use crate::launcher::launcher;

#[derive(clap::Subcommand)]
#[command(after_help = "\
Examples:
  bedplate chaos kill-node n2              its agent dies as by kill -9, and its ranks with it
  bedplate chaos cut n2 --for 10s          no message passes, either way
  bedplate chaos kill-rank 12 --rank 3
  bedplate chaos xid n2 --xid 79           as if a GPU had fallen off the bus
  bedplate chaos kill-control              the daemon dies and is started again
  bedplate chaos storm --seed 7 --for 60s

A killed node comes back after a second or more: each time after twice as long.")]
pub(crate) enum Arguments {
    /// The agent of a node dies, as by kill -9
    KillNode {
        node: NodeId,
        #[command(flatten)]
        connection: Connection,
    },
    /// A rank of a job dies, as by kill -9
    KillRank {
        job: JobId,
        #[arg(short, long, default_value_t = 0)]
        rank: u32,
        #[command(flatten)]
        connection: Connection,
    },
    /// The daemon dies, as by kill -9, and is started again
    KillControl {
        /// Leave it dead
        #[arg(long)]
        stay_dead: bool,
        #[command(flatten)]
        connection: Connection,
    },
    /// Node and daemon do not hear each other for a while, without notice
    Cut {
        node: NodeId,
        #[arg(long = "for", value_name = "TIME", default_value = "10s")]
        lasts: Seconds,
        #[command(flatten)]
        connection: Connection,
    },
    /// Every message of a node takes longer
    Delay {
        node: NodeId,
        #[arg(long, value_name = "TIME", default_value = "200ms")]
        by: Seconds,
        #[arg(long = "for", value_name = "TIME", default_value = "10s")]
        lasts: Seconds,
        #[command(flatten)]
        connection: Connection,
    },
    /// The disk of the state directory is full for a while
    FillDisk {
        #[arg(long = "for", value_name = "TIME", default_value = "10s")]
        lasts: Seconds,
        /// Leave this much free
        #[arg(long, value_name = "BYTES", default_value_t = 0)]
        leave: u64,
        /// Fill it even though other programs use it too
        #[arg(long)]
        really: bool,
        #[command(flatten)]
        connection: Connection,
    },
    /// The health probe of a node fails, or succeeds again
    Probe {
        node: NodeId,
        #[arg(long, conflicts_with = "heal")]
        fail: bool,
        #[arg(long)]
        heal: bool,
        #[command(flatten)]
        connection: Connection,
    },
    /// A node behaves as if the kernel log had shown an XID of a GPU
    Xid {
        node: NodeId,
        /// The code
        #[arg(long, default_value_t = 79)]
        xid: u32,
        #[arg(long, default_value_t = 0)]
        gpu: u32,
        #[command(flatten)]
        connection: Connection,
    },
    /// One after the other at random, for a while
    Storm(storm::Arguments),
}

#[derive(Debug, thiserror::Error)]
enum ChaosError {
    #[error("job {job} has no rank {rank} that runs")]
    NoRank { job: JobId, rank: u32 },
    #[error("{} is on a disk that the whole machine uses", path.display())]
    SharedDisk { path: PathBuf },
    #[error("cannot write into {}", path.display())]
    Fill { path: PathBuf, source: std::io::Error },
}

pub(crate) const PAGES: &[&Page] = &[&NO_RANK, &SHARED_DISK, &FILL];

static NO_RANK: Page = Page {
    code: "chaos/no-rank",
    class: Class::User,
    meaning: "Only a running rank can be killed, and the job has no such rank running.",
    remedy: "see with `bedplate job show` whether the job runs and how many ranks it has",
};
static SHARED_DISK: Page = Page {
    code: "chaos/shared-disk",
    class: Class::User,
    meaning: "The cluster's state is on a disk that the whole machine uses. Filling it would stop other programs too.",
    remedy: "start the cluster with its state on a small disk of its own, or say `--really`",
};
static FILL: Page = Page {
    code: "chaos/fill",
    class: Class::User,
    meaning: "The disk could not be filled, because nothing can be written where the cluster has its state.",
    remedy: "check the permissions of the state directory",
};

impl Diagnostic for ChaosError {
    fn page(&self) -> &'static Page {
        match self {
            ChaosError::NoRank { .. } => &NO_RANK,
            ChaosError::SharedDisk { .. } => &SHARED_DISK,
            ChaosError::Fill { .. } => &FILL,
        }
    }
}

pub(crate) fn run(arguments: &Arguments, context: &Context, console: &mut Console) -> Result<(), CliError> {
    let did = match arguments {
        Arguments::KillNode { node, connection } => {
            connection.local("chaos")?.chaos(node, &Chaos::Die)?;
            format!("{node}: its agent dies")
        }
        Arguments::KillRank { job, rank, connection } => kill_rank(&connection.local("chaos")?, job, *rank)?,
        Arguments::KillControl { stay_dead, connection } => {
            kill_control(connection, !*stay_dead, context, console)?
        }
        Arguments::Cut { node, lasts, connection } => {
            connection.local("chaos")?.chaos(node, &Chaos::Cut { for_ms: milliseconds(*lasts) })?;
            format!("{node}: cut off for {lasts}")
        }
        Arguments::Delay { node, by, lasts, connection } => {
            let chaos = Chaos::Delay { by_ms: milliseconds(*by), for_ms: milliseconds(*lasts) };
            connection.local("chaos")?.chaos(node, &chaos)?;
            format!("{node}: every message takes {by} longer, for {lasts}")
        }
        Arguments::FillDisk { lasts, leave, really, connection } => {
            disk::fill(connection.state()?.path(), milliseconds(*lasts), *leave, *really, console)?
        }
        Arguments::Probe { node, heal, connection, .. } => {
            connection.local("chaos")?.chaos(node, &Chaos::Probe { fails: !heal })?;
            format!("{node}: its probe {}", if *heal { "succeeds again" } else { "fails from now on" })
        }
        Arguments::Xid { node, xid, gpu, connection } => {
            connection.local("chaos")?.chaos(node, &Chaos::Xid { gpu: *gpu, xid: *xid })?;
            format!("{node}: as if XID {xid} had been seen on GPU {gpu}")
        }
        Arguments::Storm(arguments) => return storm::run(arguments, context, console),
    };
    console.say(&did);
    if console.is_json() { console.json(&json!({ "did": did })) } else { Ok(()) }
}

fn milliseconds(time: Seconds) -> u64 {
    (time.get() * 1000.0).round() as u64
}

fn kill_rank(driver: &Local, job: &JobId, rank: u32) -> Result<String, CliError> {
    let no_rank = || ChaosError::NoRank { job: job.clone(), rank };
    let summary = driver.job(job)?.summary;
    if summary.life.ended_ms.is_some() || summary.nodes.is_empty() {
        return Err(no_rank().into());
    }
    let place = driver.ranks(job)?.into_iter().find(|place| place.rank == rank).ok_or_else(no_rank)?;
    let number = summary.id.as_str().parse().map_err(|_| no_rank())?;
    let run = RunId { job: number, number: place.run.unwrap_or(summary.life.runs) };
    driver.chaos(&place.node, &Chaos::KillRank { run: Some(run), rank: Some(rank) })?;
    Ok(format!("job {job}: rank {rank} on {} dies", place.node))
}

fn kill_control(
    connection: &Connection,
    starts_again: bool,
    context: &Context,
    console: &Console,
) -> Result<String, CliError> {
    let state = connection.state()?;
    if !starts_again {
        stop_supervisor(&state);
    }
    let _held = hold(&state)?;
    let began = Instant::now();
    let pid = kill_daemon(&state)?;
    if !starts_again {
        return Ok(format!("the daemon (process {pid}) is dead; `bedplate up` starts it again"));
    }
    launcher(context, console)?.start_daemon(&state, &Shape::load(&state)?)?;
    Ok(format!("the daemon died and answers again after {:.2} s", began.elapsed().as_secs_f64()))
}
