//! `bedplate doctor`: what is wrong with this node, with a job's NCCL, or with some nodes of a cluster.

mod cluster;
mod log;
mod page;

use std::collections::BTreeMap;
use std::path::PathBuf;

use bedplate_catalog::Catalog;
use bedplate_diag::{Class, Diagnostic, Page};
use bedplate_doctor::{Check, CheckVerdict, NodeFacts, Sources, examine, gather, worst};
use bedplate_host::host_name;
use bedplate_terminal::{CliError, Console, Context};
use serde_json::{Value, json};

use crate::connection::Connection;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate doctor
  bedplate doctor --like p5.48xlarge
  bedplate doctor --nccl-log slurm-4711.out --like p5.48xlarge
  bedplate doctor --cluster
  bedplate doctor --cluster --context site --like p5.48xlarge
  bedplate doctor --json | jq '.checks[] | select(.verdict != \"pass\")'

It inspects the five layers under a training job: hardware and its settings,
the kernel, the CUDA runtime, communication libraries, frameworks and
variables. It changes nothing, loads no library and starts no Python. Costs are
predictions for one reference job; see docs/doctor.md. Exits with 1 when a
check fails; warnings alone exit with 0.")]
pub(crate) struct Arguments {
    /// The catalog instance that the node should be; on EC2 the firmware names it
    #[arg(long, value_name = "INSTANCE")]
    like: Option<String>,
    /// Show from logs written with NCCL_DEBUG=INFO what a job really used; `-` reads standard input
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["cluster", "facts"])]
    nccl_log: Vec<String>,
    /// Examine every node with a small job, and show the odd ones out
    #[arg(long, conflicts_with = "facts")]
    cluster: bool,
    /// Seconds to wait for the jobs of --cluster
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    patience: u64,
    /// Where the nodes of --cluster have this program [default: where it is here]
    #[arg(long, value_name = "PATH", requires = "cluster")]
    program: Option<String>,
    /// The partition for the jobs of --cluster, if the default one lacks nodes
    #[arg(long, value_name = "NAME", requires = "cluster")]
    partition: Option<String>,
    /// The account for the jobs of --cluster
    #[arg(long, value_name = "NAME", requires = "cluster")]
    account: Option<String>,
    /// Print what was read, as JSON, and judge nothing
    #[arg(long)]
    facts: bool,
    /// Read a machine whose file system is mounted here; %N stands for the node's name
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: String,
    /// The node's name, where it is not the machine's
    #[arg(long, hide = true)]
    node: Option<String>,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum DoctorError {
    #[error("no node of the cluster could be examined: {why}")]
    NoNodes { why: String },
    #[error("{nodes} nodes were asked, and `{program}` is on none of them")]
    NoProgram { program: String, nodes: usize },
    #[error("cannot make a folder for what the nodes print")]
    Folder { source: std::io::Error },
}

pub(crate) const PAGES: &[&Page] = &[&NO_NODES, &NO_PROGRAM, &FOLDER];

static NO_NODES: Page = Page {
    code: "doctor/no-nodes",
    class: Class::Transient,
    meaning: "Every node is down or drained, or the jobs that should have examined them did not run in time.",
    remedy: "see `bedplate node list`; give the jobs more time with --patience",
};

static NO_PROGRAM: Page = Page {
    code: "doctor/no-program",
    class: Class::User,
    meaning: "Every node examines itself by running this program in a small job, so the program must be on the nodes, at the path that the job names: by default the path that it has here. The jobs found no such program there, or may not execute it.",
    remedy: "put the program on a file system that the nodes share, or name the path that it has there with `--program`",
};

static FOLDER: Page = Page {
    code: "doctor/folder",
    class: Class::User,
    meaning: "On Slurm the output of jobs goes to files in a folder `.bedplate`, which is made where the command runs and removed when it ends. It could not be made.",
    remedy: "run the command in a folder of your own that the nodes see too, such as your home",
};

impl Diagnostic for DoctorError {
    fn page(&self) -> &'static Page {
        match self {
            DoctorError::NoNodes { .. } => &NO_NODES,
            DoctorError::NoProgram { .. } => &NO_PROGRAM,
            DoctorError::Folder { .. } => &FOLDER,
        }
    }
}

pub(crate) fn run(arguments: &Arguments, context: &Context, console: &mut Console) -> Result<(), CliError> {
    let catalog = context.load_catalog()?;
    if let Some(like) = &arguments.like {
        catalog.instance(like)?;
    }
    let like = arguments.like.as_deref();
    if !arguments.nccl_log.is_empty() {
        return log::run(&arguments.nccl_log, like, &catalog, console);
    }
    if arguments.cluster {
        return cluster::run(arguments, &catalog, console);
    }
    let facts = gather(&sources(arguments));
    if arguments.facts {
        return console.json(&json!(facts));
    }
    node(&facts, like, &catalog, console)
}

fn sources(arguments: &Arguments) -> Sources {
    let node = arguments.node.clone().unwrap_or_else(host_name);
    let root = PathBuf::from(arguments.root.replace("%N", &node));
    if root.as_os_str() == "/" {
        return Sources::this(node);
    }
    // Variables of this process say nothing about another machine.
    let nvidia_smi = root.join("usr/bin/nvidia-smi");
    Sources { root, nvidia_smi, environment: BTreeMap::new(), ..Sources::this(node) }
}

fn node(
    facts: &NodeFacts,
    like: Option<&str>,
    catalog: &Catalog,
    console: &mut Console,
) -> Result<(), CliError> {
    let examination = examine(facts, catalog, like);
    let checks = &examination.checks;
    if console.is_json() {
        console.json(&json!({
            "node": facts.node,
            "instance": examination.instance,
            "verdict": worst(checks),
            "checks": checks,
        }))?;
    } else {
        let against = examination.instance.map_or_else(String::new, |name| format!(", compared with {name}"));
        console.line(&format!("{}: {}{against}", facts.node, page::count(checks)))?;
        console.text(&page::checks(checks, console.width()))?;
    }
    end(checks)
}

/// What fails makes the command fail.
fn end(checks: &[Check]) -> Result<(), CliError> {
    if worst(checks) == CheckVerdict::Fail { Err(CliError::Refused) } else { Ok(()) }
}

fn verdicts(checks: &[Check]) -> Value {
    let count = |verdict| checks.iter().filter(|check| check.verdict == verdict).count();
    json!({ "pass": count(CheckVerdict::Pass), "warn": count(CheckVerdict::Warn), "fail": count(CheckVerdict::Fail) })
}
