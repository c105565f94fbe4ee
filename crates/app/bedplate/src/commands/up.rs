//! `bedplate up`: a cluster on this machine.
//!
//! One daemon and one agent for each node, each a process of its own that goes on when this command has returned. The
//! state directory has all that is needed to find them again, to start them again, and to end them.

mod error;
pub(crate) mod join;
mod launch;
mod shape;
mod share;
pub(crate) mod supervise;
mod temporary;

use std::path::PathBuf;
use std::time::Instant;

use bedplate_drivers::{Driver, Local, NodeId, NodeSummary};
use bedplate_terminal::{CliError, Console, Context};
use nix::sys::signal::{SigSet, Signal};
use serde_json::json;

use crate::connection::{Connection, state_directory};
use crate::machine::Machine;

pub(crate) use error::{PAGES, UpError};
pub(crate) use launch::{
    CLUSTER, find_agent, hold, is_running, start_agent, start_daemon, stop_supervisor, wait_for_nodes,
};
pub(crate) use shape::Shape;
pub(crate) use temporary::{TemporaryCluster, with_description};

#[derive(clap::Args, Default)]
#[command(after_help = "\
Examples:
  bedplate up                                  one node, like this machine
  bedplate up --nodes 4 --like p5.48xlarge     nodes that pretend to be larger
  bedplate up --cluster cluster.toml --site site.toml
  bedplate up --nodes 2 --foreground           until Ctrl-C
  bedplate up --listen 10.0.0.1:7431 --remote 1   and another machine, which joins

GPUs that this machine does not have are pretended: slots that are leased,
numbered and enforced as real ones are. Jobs run as you; started by root, each
runs as the user whose token submitted it. A daemon or an agent
that dies or stands still is started again; a daemon then finds its jobs again
and loses none.")]
pub(crate) struct Arguments {
    /// How many nodes
    #[arg(short, long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) nodes: Option<u32>,
    /// An instance of the catalog that every node is like
    #[arg(long, value_name = "INSTANCE")]
    pub(crate) like: Option<String>,
    /// So many nodes more, that take the place of lost ones
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pub(crate) spare: u32,
    /// So many nodes more, that are other machines and join; needs --listen
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pub(crate) remote: u32,
    /// A whole cluster: INSTANCE:COUNT, or the file of a description
    #[arg(long, value_name = "CLUSTER", conflicts_with_all = ["nodes", "like", "spare"])]
    pub(crate) cluster: Option<String>,
    /// Partitions, QOS, quotas and priorities of the scheduler
    #[arg(long, value_name = "FILE")]
    pub(crate) site: Option<PathBuf>,
    /// Where the daemon listens; beyond loopback it speaks TLS [default: 127.0.0.1, any free port]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<String>,
    /// A command that says by its exit code, every few seconds, whether a node is well
    #[arg(long, value_name = "COMMAND")]
    pub(crate) probe: Option<String>,
    /// Health rules of your own, over the built-in ones
    #[arg(long, value_name = "FILE")]
    pub(crate) health_rules: Option<PathBuf>,
    /// Whose advice about XIDs is followed
    #[arg(long, value_name = "PROFILE")]
    pub(crate) profile: Option<crate::commands::export::ProfileName>,
    /// Offer the metrics of each node to Prometheus on loopback: the first at this port, the next at the following ones
    #[arg(long, value_name = "PORT")]
    pub(crate) export: Option<u16>,
    /// Nodes read the folder of their name in this one instead of this machine
    #[arg(long, value_name = "FOLDER", hide = true)]
    pub(crate) observe_root: Option<PathBuf>,
    /// Where the cluster keeps its journal, tokens and logs [default: ~/.local/state/bedplate]
    #[arg(long, visible_alias = "state", value_name = "DIR", env = "BEDPLATE_STATE", hide_env_values = true)]
    pub(crate) state_dir: Option<PathBuf>,
    /// Stay here, and take the cluster down on Ctrl-C
    #[arg(long)]
    pub(crate) foreground: bool,
}

impl Arguments {
    /// Whether anything was said about what the cluster shall be.
    fn names_a_shape(&self) -> bool {
        self.nodes.is_some() || self.like.is_some() || self.cluster.is_some() || self.spare + self.remote > 0
    }
}

pub(crate) fn run(arguments: &Arguments, context: &Context, console: &mut Console) -> Result<(), CliError> {
    // Blocked before anything is started, so that Ctrl-C amid the start ends in an orderly way too.
    let signals = [Signal::SIGINT, Signal::SIGTERM].into_iter().collect::<SigSet>();
    if arguments.foreground {
        signals.thread_block().map_err(|source| UpError::Signals { source: source.into() })?;
    }
    let outcome = bring_up(arguments, context, console);
    if arguments.foreground {
        if outcome.is_ok() {
            console.say("Ctrl-C takes it down");
            // Whatever this returns, the cluster goes down.
            let _ = signals.wait();
        }
        super::down::take_down(&state_directory(arguments.state_dir.clone()), false, console)?;
    }
    outcome
}

fn bring_up(arguments: &Arguments, context: &Context, console: &mut Console) -> Result<(), CliError> {
    let state = state_directory(arguments.state_dir.clone());
    let known = Shape::find(&state)?;
    let is_up = is_running(&state)?;
    let shape = match known {
        // The daemon knows jobs of this shape; another one is another cluster.
        Some(known) if !arguments.names_a_shape() => known.with_rules(arguments)?,
        known => {
            let wanted = Shape::new(arguments, context, Machine::this())?;
            match known {
                Some(known) if known.cluster != wanted.cluster && is_up => {
                    return Err(
                        UpError::OtherShape { has: known.summary(), state: state.path().to_owned() }.into()
                    );
                }
                _ => wanted,
            }
        }
    };
    let began = Instant::now();
    if is_up {
        console.say("the cluster is up already");
        if arguments.site.is_some() || arguments.probe.is_some() || arguments.listen.is_some() {
            console
                .say("--site, --probe and --listen count when it starts: `bedplate down`, then this again");
        }
        launch::start_supervisor(&state, context)?;
        let driver = Connection::of(state.path().to_owned()).local("this")?;
        return report(&driver, &shape, console);
    }
    shape.keep(&state)?;
    let held = hold(&state)?;
    let driver = start_daemon(&state, &shape, context, console)?;
    let is_missing = |node: &NodeSummary| !node.is_linked && shape.share(node.name.as_str()).is_some();
    let missing: Vec<NodeId> = driver.nodes()?.into_iter().filter(is_missing).map(|node| node.name).collect();
    for name in &missing {
        if find_agent(&state, name).is_none() {
            start_agent(&state, &driver, &shape, name)?;
        }
    }
    drop(held);
    launch::start_supervisor(&state, context)?;
    wait_for_nodes(&state, &driver, &missing, console)?;
    console.say(&format!("up in {:.1} s", began.elapsed().as_secs_f64()));
    report(&driver, &shape, console)
}

/// What stands.
fn report(driver: &Local, shape: &Shape, console: &mut Console) -> Result<(), CliError> {
    let nodes = driver.nodes()?;
    let machine = Machine::this();
    let invitations = join::invite(driver, &nodes, shape)?;
    if console.is_json() {
        return console.json(&json!({
            "server": driver.place().url(),
            "fingerprint": driver.place().fingerprint,
            "nodes": nodes,
            "machine": { "cores": machine.cores, "memory_mib": machine.memory_mib, "gpus": machine.gpus },
            "over_commitment": shape.over_commitment(machine),
            "join": invitations,
        }));
    }
    for line in describe(&nodes, shape) {
        console.line(&line)?;
    }
    console.line(&format!("server: {}", driver.place().url()))?;
    if let Some(fingerprint) = &driver.place().fingerprint {
        console.line(&format!("fingerprint: {fingerprint}"))?;
    }
    if !invitations.is_empty() {
        console.say("on each machine that joins, one of these:");
    }
    for invitation in &invitations {
        console.line(invitation)?;
    }
    if !nix::unistd::geteuid().is_root() {
        console.say(ONE_USER);
    }
    console.say("next: bedplate submit --nodes 1 --follow -- hostname");
    Ok(())
}

/// Where no agent is root, whatever tokens say.
const ONE_USER: &str =
    "all jobs run as you, whoever submits them: the roles of tokens protect little from a job";

/// What stands, in a few lines.
pub(crate) fn describe(nodes: &[NodeSummary], shape: &Shape) -> Vec<String> {
    let machine = Machine::this();
    let linked = nodes.iter().filter(|node| node.is_linked).count();
    let gpus: u32 = nodes.iter().map(|node| node.gpus).sum();
    let devices = match (gpus, machine.gpus) {
        (0, _) => "no GPUs".to_owned(),
        (gpus, 0) => format!("{gpus} GPUs, all of them pretended slots"),
        (gpus, real) if gpus > real => format!("{gpus} GPUs, of which this machine really has {real}"),
        (gpus, _) => format!("{gpus} GPUs"),
    };
    let mut lines = vec![format!("{}: {linked} of {} nodes, {devices}", shape.name, nodes.len())];
    for node in nodes.iter().filter(|node| !node.is_linked || node.reason.is_some()) {
        let down = || match shape.share(node.name.as_str()) {
            Some(_) => format!("down; `bedplate node start {}`", node.name),
            None => "has not joined".to_owned(),
        };
        let why = node.reason.as_ref().map_or_else(down, |reason| reason.text.clone());
        lines.push(format!("{}: {why}", node.name));
    }
    lines.extend(shape.over_commitment(machine));
    lines
}
