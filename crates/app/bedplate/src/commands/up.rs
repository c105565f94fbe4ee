//! `bedplate up`: a cluster on this machine.
//!
//! One daemon and one agent for each node, each a process of its own that goes on when this command has returned. The
//! state directory has all that is needed to find them again, to start them again, and to end them.

pub(crate) mod join;
pub(crate) mod supervise;

use std::path::PathBuf;

use bedplate_catalog::Catalog;
use bedplate_drivers::{Driver, JobQuery};
use bedplate_local::{
    LocalError, Machine, Up, Wanted, Watch, invite, is_running, set_aside, state_directory, take_down,
};
use bedplate_terminal::{CliError, Console, Context, files};
use nix::sys::signal::{SigSet, Signal};
use serde_json::json;

use crate::clusters;
use crate::health_rules::ProfileName;
use crate::job_text::labels_of;
use crate::launcher::launcher;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate up                                  one node, like this machine
  bedplate up --nodes 4 --like p5.48xlarge     nodes like this instance
  bedplate up --cluster cluster.toml --site site.toml
  bedplate up --nodes 2 --foreground           until Ctrl-C
  bedplate up --fresh                          without the jobs of the last time
  bedplate up --listen 10.0.0.1:7431 --remote 1   and another machine, which joins
  bedplate up --from BACKUP --listen 10.0.0.9:7431   after the machine of the daemon was lost

GPUs that this machine lacks are simulated: slots are leased, numbered and
enforced like real ones. Jobs run as you; if root starts the cluster, each runs
as the user whose token submitted it. A daemon or an agent that dies or freezes
is started again; the daemon loses no jobs.")]
pub(crate) struct Arguments {
    /// How many nodes
    #[arg(short, long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    nodes: Option<u32>,
    /// Make every node like this instance of the catalog
    #[arg(long, value_name = "INSTANCE")]
    like: Option<String>,
    /// Extra nodes that replace lost ones
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    spare: u32,
    /// Extra nodes on other machines, which join; needs --listen
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    remote: u32,
    /// A whole cluster: INSTANCE:COUNT, or the file of a description
    #[arg(long, value_name = "CLUSTER", conflicts_with_all = ["nodes", "like", "spare"])]
    cluster: Option<String>,
    /// Partitions, QOS, quotas and priorities of the scheduler
    #[arg(long, value_name = "FILE")]
    site: Option<PathBuf>,
    /// Where the daemon listens [default: 127.0.0.1, any free port]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// A command, run every few seconds, that fails when a node is unhealthy
    #[arg(long, value_name = "COMMAND")]
    probe: Option<String>,
    /// Health rules of your own, added to the built-in ones
    #[arg(long, value_name = "FILE")]
    health_rules: Option<PathBuf>,
    /// Whose advice about XIDs to follow
    #[arg(long, value_name = "PROFILE")]
    profile: Option<ProfileName>,
    /// Serve the metrics of each node to Prometheus on loopback: the first node at this port, the others at the ports after it
    #[arg(long, value_name = "PORT")]
    export: Option<u16>,
    /// Nodes read the folder of their name in this one instead of this machine
    #[arg(long, value_name = "FOLDER", hide = true)]
    observe_root: Option<PathBuf>,
    /// Where the cluster keeps its journal, tokens and logs [default: ~/.local/state/bedplate]
    #[arg(long, visible_alias = "state", value_name = "DIR", env = "BEDPLATE_STATE", hide_env_values = true)]
    state_dir: Option<PathBuf>,
    /// Go on from a back-up of a cluster whose machine is gone; agents that know this address too find it by its certificate
    #[arg(long, value_name = "BACKUP", conflicts_with_all = ["nodes", "like", "cluster", "spare", "remote"])]
    from: Option<PathBuf>,
    /// Begin anew: jobs, history and tokens of the cluster that was here are set aside, and the answer says where
    #[arg(long, conflicts_with = "from")]
    fresh: bool,
    /// Stay in the foreground; Ctrl-C takes the cluster down
    #[arg(long)]
    foreground: bool,
}

impl Arguments {
    /// The same, with the cluster read and paths that mean the same everywhere.
    fn wanted(&self, catalog: &Catalog) -> Result<Wanted, CliError> {
        let absolute = |path: &Option<PathBuf>| path.as_deref().map(files::absolute).transpose();
        Ok(Wanted {
            nodes: self.nodes,
            like: self.like.clone(),
            spare: self.spare,
            remote: self.remote,
            cluster: self.cluster.as_ref().map(|given| clusters::load(given, catalog)).transpose()?,
            site: absolute(&self.site)?,
            probe: self.probe.clone(),
            listen: self.listen.clone(),
            watch: Watch {
                rules: absolute(&self.health_rules)?,
                profile: self.profile.map(|name| name.profile().to_string()),
                export: self.export,
                root: absolute(&self.observe_root)?,
            },
        })
    }
}

pub(crate) fn run(arguments: &Arguments, context: &Context, console: &mut Console) -> Result<(), CliError> {
    // Blocked before anything is started, so that Ctrl-C amid the start ends in an orderly way too.
    let signals = [Signal::SIGINT, Signal::SIGTERM].into_iter().collect::<SigSet>();
    if arguments.foreground {
        signals.thread_block().map_err(|source| LocalError::Signals { source: source.into() })?;
    }
    let outcome = bring_up(arguments, context, console);
    if arguments.foreground {
        if outcome.is_ok() {
            console.say("Ctrl-C takes it down");
            // Whatever this returns, the cluster goes down.
            let _ = signals.wait();
        }
        take_down(&state_directory(arguments.state_dir.clone()), false, &|remark| console.say(remark))?;
    }
    outcome
}

fn bring_up(arguments: &Arguments, context: &Context, console: &mut Console) -> Result<(), CliError> {
    let catalog = context.load_catalog()?;
    let state = state_directory(arguments.state_dir.clone());
    let (launcher, wanted) = (launcher(context, console)?, arguments.wanted(&catalog)?);
    if arguments.fresh
        && let Some(aside) = set_aside(&state)?
    {
        console.say(&format!(
            "the cluster that was here is in {}; delete it when you need it no longer",
            aside.display()
        ));
    }
    let was_up = is_running(&state)?;
    let up = match &arguments.from {
        Some(backup) => launcher.bring_up_from(backup, &state, &wanted, &catalog)?,
        None => launcher.bring_up(&state, &wanted, &catalog)?,
    };
    if !was_up {
        say_revived(&up, console)?;
    }
    report(&up, console)
}

/// Which jobs of an earlier start go on.
fn say_revived(Up { driver, .. }: &Up, console: &Console) -> Result<(), CliError> {
    let jobs = driver.jobs(&JobQuery::default())?;
    if let Some(labels) = labels_of(&jobs) {
        console.say(&format!(
            "revived jobs of the last time: {labels}; `bedplate down`, then `up --fresh` begins without them"
        ));
    }
    Ok(())
}

/// What stands.
fn report(Up { driver, shape }: &Up, console: &mut Console) -> Result<(), CliError> {
    let nodes = driver.nodes()?;
    let machine = Machine::this();
    let invitations = invite(driver, &nodes, shape)?;
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
    for line in shape.describe(&nodes, machine) {
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
const ONE_USER: &str = "all jobs run as you, no matter who submits them: the roles of tokens do not protect against a malicious job";
