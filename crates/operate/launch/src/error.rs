//! Why a gang cannot be launched.

use std::io;
use std::path::PathBuf;

use bedplate_diag::{Class, Diagnostic, Page};

#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error("this process is not in an allocation: {variable} is not set")]
    NoAllocation { variable: &'static str },
    #[error("the list of nodes `{list}` cannot be read: {reason}")]
    NodeList { list: String, reason: String },
    #[error(
        "the allocation has {nodes} nodes, {spares} of them spares; at least one must be left for the gang"
    )]
    TooManySpares { nodes: usize, spares: usize },
    #[error("the number of ranks per node is not known: the allocation has no GPUs")]
    NoRanks,
    #[error("the launcher cannot listen for its helpers")]
    Listen { source: io::Error },
    #[error("the record of the launch cannot be kept in {path}")]
    Record { path: PathBuf, source: io::Error },
    #[error("the helper cannot reach its launcher at {server}")]
    Unreachable { server: String, source: io::Error },
    #[error("the launcher is not named: neither an address nor SLURM_LAUNCH_NODE_IPADDR is given")]
    NoLauncher,
}

pub const PAGES: &[&Page] =
    &[&NO_ALLOCATION, &NODE_LIST, &TOO_MANY_SPARES, &NO_RANKS, &LISTEN, &RECORD, &UNREACHABLE, &NO_LAUNCHER];

static NO_ALLOCATION: Page = Page {
    code: "launch/no-allocation",
    class: Class::Usage,
    meaning: "`bedplate launch` runs inside a job of Slurm, in its batch script or below `salloc`, because there Slurm says which nodes the job has. It was started outside of one.",
    remedy: "start it in a batch script, or try it on this machine with `--here NODES`",
};
static NODE_LIST: Page = Page {
    code: "launch/node-list",
    class: Class::User,
    meaning: "The variable in which Slurm lists the nodes of the job does not hold such a list.",
    remedy: "do not change SLURM_JOB_NODELIST in the script",
};
static TOO_MANY_SPARES: Page = Page {
    code: "launch/too-many-spares",
    class: Class::User,
    meaning: "Spares are nodes of the allocation that run no ranks until another node is lost. They leave no node of this allocation for the gang.",
    remedy: "ask for more nodes, or for fewer spares",
};
static NO_RANKS: Page = Page {
    code: "launch/no-ranks",
    class: Class::User,
    meaning: "One rank is started for each GPU of a node unless another number is given. This job has no GPUs.",
    remedy: "give the number with `--ranks-per-node`",
};
static LISTEN: Page = Page {
    code: "launch/listen",
    class: Class::Transient,
    meaning: "Helpers on the nodes connect to a port of the launcher, and no port could be opened.",
    remedy: "check the limits on open files and the firewall of the node, then start the job again",
};
static RECORD: Page = Page {
    code: "launch/record",
    class: Class::User,
    meaning: "The launcher writes the newest checkpoint and the excluded nodes to a file, so that the job goes on from there when Slurm starts it again. This file cannot be written or read.",
    remedy: "name a folder that all nodes share and that you may write to with `--state`",
};
static UNREACHABLE: Page = Page {
    code: "launch/unreachable",
    class: Class::Transient,
    meaning: "The helper of a node could not connect to the launcher on the first node of the job.",
    remedy: "check that nodes of the partition may connect to each other",
};
static NO_LAUNCHER: Page = Page {
    code: "launch/no-launcher",
    class: Class::Usage,
    meaning: "A helper is started by `bedplate launch`, which tells it where to connect.",
    remedy: "start `bedplate launch` instead",
};

impl Diagnostic for LaunchError {
    fn page(&self) -> &'static Page {
        match self {
            LaunchError::NoAllocation { .. } => &NO_ALLOCATION,
            LaunchError::NodeList { .. } => &NODE_LIST,
            LaunchError::TooManySpares { .. } => &TOO_MANY_SPARES,
            LaunchError::NoRanks => &NO_RANKS,
            LaunchError::Listen { .. } => &LISTEN,
            LaunchError::Record { .. } => &RECORD,
            LaunchError::Unreachable { .. } => &UNREACHABLE,
            LaunchError::NoLauncher => &NO_LAUNCHER,
        }
    }
}
