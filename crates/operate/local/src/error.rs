//! Why a cluster does not come up or go down.

use std::io;
use std::path::PathBuf;

use bedplate_diag::{Class, Diagnostic, Page, Place, Reason};
use bedplate_drivers::{DriverError, NodeId};
use bedplate_journal::JournalError;
use bedplate_topology::TopologyError;

#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    #[error("another cluster is up in {}: {has}", state.display())]
    OtherShape { has: String, state: PathBuf },
    #[error("a cluster is up in {}", state.display())]
    StillUp { state: PathBuf },
    #[error("no cluster was ever started in {}", state.display())]
    NoShape { state: PathBuf },
    #[error("cannot use {}", path.display())]
    State { path: PathBuf, source: io::Error },
    #[error("{what} ended right after its start: {said}")]
    Died { what: String, said: String, log: PathBuf },
    #[error("the daemon has not answered for {seconds} s and does nothing: {said}")]
    Silent { seconds: u64, said: String, log: PathBuf },
    #[error("cannot start {what}")]
    Start { what: String, source: io::Error },
    #[error("{} of {total} nodes have not joined within {seconds} s: {}", missing.len(), names(missing))]
    NotJoined { missing: Vec<NodeId>, total: usize, seconds: u64, log: PathBuf },
    #[error("this machine has {gpus} GPUs of a model that the catalog does not have: {model}")]
    UnknownGpu { gpus: u32, model: String },
    #[error("other machines cannot reach this one at {}", listen.as_deref().unwrap_or("127.0.0.1"))]
    Unreachable { listen: Option<String> },
    #[error("{} has a cluster, so it cannot join another one", state.display())]
    HasCluster { state: PathBuf },
    #[error("node {node} has joined from {}", state.display())]
    JoinedAlready { node: String, state: PathBuf },
    #[error("cannot reach a control plane at {server}")]
    NoServer { server: String, source: io::Error },
    #[error("node {node} has not joined within {seconds} s: {said}")]
    NotAdmitted { node: String, seconds: u64, said: String, log: PathBuf },
    #[error("the control plane at {server} does not let this machine be node {node}: {why}")]
    TurnedAway { node: String, server: String, why: String },
    #[error("the agent of node {node} does not run")]
    NoAgent { node: String },
    #[error("cannot wait for signals")]
    Signals { source: io::Error },
    #[error("{} processes of the cluster are still there: {}", pids.len(), list(pids))]
    Left { pids: Vec<u32> },
    #[error("no daemon runs on this machine that could be killed")]
    NoDaemon,
    #[error(transparent)]
    Driver(#[from] DriverError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Cluster(#[from] TopologyError),
}

fn names(nodes: &[NodeId]) -> String {
    nodes.iter().map(NodeId::as_str).collect::<Vec<_>>().join(", ")
}

fn list(pids: &[u32]) -> String {
    pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

pub const PAGES: &[&Page] = &[
    &OTHER_SHAPE,
    &STILL_UP,
    &NO_SHAPE,
    &STATE,
    &DIED,
    &SILENT,
    &START,
    &NOT_JOINED,
    &UNKNOWN_GPU,
    &UNREACHABLE,
    &HAS_CLUSTER,
    &JOINED_ALREADY,
    &NO_SERVER,
    &NO_AGENT,
    &NOT_ADMITTED,
    &TURNED_AWAY,
    &SIGNALS,
    &LEFT,
    &NO_DAEMON,
];

static STILL_UP: Page = Page {
    code: "up/still-up",
    class: Class::User,
    meaning: "A cluster can only begin anew when nothing of the old one runs: its jobs would go on without anybody who knows them.",
    remedy: "take it down first: `bedplate down`",
};
static UNREACHABLE: Page = Page {
    code: "up/unreachable",
    class: Class::User,
    meaning: "Machines that join must reach the daemon, and their ranks must reach the ranks on this machine. A loopback address or 0.0.0.0 does not tell them where it is.",
    remedy: "name an address of this machine in their network: `--listen 10.0.0.1:7431`",
};
static HAS_CLUSTER: Page = Page {
    code: "join/has-cluster",
    class: Class::User,
    meaning: "The state directory belongs to a cluster that `bedplate up` started on this machine.",
    remedy: "name another directory with `--state-dir DIR`",
};
static JOINED_ALREADY: Page = Page {
    code: "join/joined",
    class: Class::User,
    meaning: "An agent started by `bedplate join` runs from this state directory already.",
    remedy: "take it away with `bedplate down`, or name another directory with `--state-dir DIR`",
};
static NO_SERVER: Page = Page {
    code: "join/no-server",
    class: Class::Transient,
    meaning: "No connection could be made to the address that the other machine's `bedplate up` printed.",
    remedy: "check the address, routes and firewalls, and that the cluster is up",
};
static NO_AGENT: Page = Page {
    code: "join/no-agent",
    class: Class::Transient,
    meaning: "This machine is a node of a cluster on another one, and the process that runs its jobs is not there. Its supervisor starts it again, with growing pauses.",
    remedy: "read `supervisor.log` and the agent's log in the state directory",
};
static NOT_ADMITTED: Page = Page {
    code: "join/not-admitted",
    class: Class::User,
    meaning: "The agent was started, but did not reach the control plane in time, or ended. The end of its log is in the message.",
    remedy: "read the agent's log, which is named; check that the cluster is up and can be reached",
};
static TURNED_AWAY: Page = Page {
    code: "join/turned-away",
    class: Class::User,
    meaning: "The control plane answered and does not let this machine be that node; the message says why. A token is good for one node, and for that node again. While an agent is heard as a node, a second one with the same line is turned away.",
    remedy: "run `bedplate up` again on the first machine: it prints a new line for each node that has not joined",
};

static OTHER_SHAPE: Page = Page {
    code: "up/other-shape",
    class: Class::User,
    meaning: "A cluster runs from this state directory, and it has other nodes than the one asked for. Its jobs were accepted for those nodes.",
    remedy: "take it down with `bedplate down`, or keep both: `bedplate up --state-dir DIR …`",
};
static NO_SHAPE: Page = Page {
    code: "up/no-shape",
    class: Class::User,
    meaning: "The state directory does not say which nodes its cluster has, so none of them can be started.",
    remedy: "start the cluster with `bedplate up`",
};
static STATE: Page = Page {
    code: "up/state",
    class: Class::User,
    meaning: "A cluster keeps its journal, tokens and logs in its state directory, and that could not be made, read or written.",
    remedy: "make it writable, or name another one with `--state-dir DIR`",
};
static DIED: Page = Page {
    code: "up/died",
    class: Class::User,
    meaning: "The daemon or an agent was started and ended at once. The end of its log is in the message.",
    remedy: "read the log beside the state directory's other files, and correct what it names",
};
static SILENT: Page = Page {
    code: "up/silent",
    class: Class::Transient,
    meaning: "The daemon was started and neither answers nor works: none of its threads computes or waits for the disk. One that reads a large journal is waited for.",
    remedy: "read the log that is named; a file system that hangs or a process that was stopped shows in `ps -L`",
};
static START: Page = Page {
    code: "up/start",
    class: Class::Transient,
    meaning: "A process of the cluster could not be started: the machine has no room for another, or the program file is gone.",
    remedy: "check limits on processes and memory, then try again",
};
static NOT_JOINED: Page = Page {
    code: "up/not-joined",
    class: Class::Transient,
    meaning: "The daemon runs, but agents of some nodes did not reach it in time. The others work.",
    remedy: "look into the agents' logs in the state directory; `bedplate node start NAME` tries again",
};
static UNKNOWN_GPU: Page = Page {
    code: "up/unknown-gpu",
    class: Class::User,
    meaning: "The machine's GPUs could not be found in the catalog, so nothing is known about their memory and speed.",
    remedy: "say which machine it is like with `--like INSTANCE`, or describe it with `--cluster FILE`",
};
static SIGNALS: Page = Page {
    code: "up/signals",
    class: Class::Bug,
    meaning: "The program could not install its handler for Ctrl-C.",
    remedy: "please report the command and this message",
};
static LEFT: Page = Page {
    code: "down/left",
    class: Class::Transient,
    meaning: "Processes of the cluster did not end, not even when they were killed. They hang inside the operating system, for example on a file server that does not answer.",
    remedy: "look at them with `ps`; they end when what they wait for answers",
};
static NO_DAEMON: Page = Page {
    code: "chaos/no-daemon",
    class: Class::User,
    meaning: "The daemon can only be killed on the machine on which it runs, by the user who started it.",
    remedy: "run this where `bedplate up` was run, with the same `--state-dir`",
};

impl LocalError {
    /// The error of another crate that this one only passes on.
    fn passed_on(&self) -> Option<&dyn Diagnostic> {
        match self {
            LocalError::Driver(error) => Some(error),
            LocalError::Journal(error) => Some(error),
            LocalError::Cluster(error) => Some(error),
            _ => None,
        }
    }
}

impl Diagnostic for LocalError {
    fn page(&self) -> &'static Page {
        match self {
            LocalError::StillUp { .. } => &STILL_UP,
            LocalError::OtherShape { .. } => &OTHER_SHAPE,
            LocalError::NoShape { .. } => &NO_SHAPE,
            LocalError::State { .. } => &STATE,
            LocalError::Died { .. } => &DIED,
            LocalError::Silent { .. } => &SILENT,
            LocalError::Start { .. } => &START,
            LocalError::NotJoined { .. } => &NOT_JOINED,
            LocalError::UnknownGpu { .. } => &UNKNOWN_GPU,
            LocalError::Unreachable { .. } => &UNREACHABLE,
            LocalError::HasCluster { .. } => &HAS_CLUSTER,
            LocalError::JoinedAlready { .. } => &JOINED_ALREADY,
            LocalError::NoServer { .. } => &NO_SERVER,
            LocalError::NoAgent { .. } => &NO_AGENT,
            LocalError::NotAdmitted { .. } => &NOT_ADMITTED,
            LocalError::TurnedAway { .. } => &TURNED_AWAY,
            LocalError::Signals { .. } => &SIGNALS,
            LocalError::Left { .. } => &LEFT,
            LocalError::NoDaemon => &NO_DAEMON,
            LocalError::Driver(error) => error.page(),
            LocalError::Journal(error) => error.page(),
            LocalError::Cluster(error) => error.page(),
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            LocalError::Died { log, .. }
            | LocalError::Silent { log, .. }
            | LocalError::NotJoined { log, .. }
            | LocalError::NotAdmitted { log, .. } => Some(format!("see {}", log.display())),
            _ => self.passed_on()?.help(),
        }
    }

    fn reason(&self) -> Option<&Reason> {
        self.passed_on()?.reason()
    }

    fn place(&self) -> Option<&Place> {
        self.passed_on()?.place()
    }
}
