//! What the control plane and the agents of nodes say to each other, one JSON object a line.
//!
//! A link carries messages in order and may break at any time. So every message may be lost with its link or come
//! twice, and nothing depends on its coming once: a run is named by its job and number, phases only go forward, and
//! [`FromAgent::Hello`] and [`FromAgent::Heartbeat`] say all that a node holds, so that both sides can compare.

use std::collections::BTreeMap;

use bedplate_finding::OpenFinding;
use bedplate_job::rank_environment::{NodePart, StepPart};
use bedplate_report::Report;
use serde::{Deserialize, Serialize};

pub use bedplate_job::rank_environment::{JobFacts, Peer};
pub use bedplate_report::Checkpoint;

/// One attempt to run a gang. Numbers of a job only grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RunId {
    pub job: u64,
    pub number: u32,
}

impl std::fmt::Display for RunId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "run {} of job {}", self.number, self.job)
    }
}

/// From the control plane to an agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToAgent {
    /// The first answer on a link. The node may work; what it holds and is not in `keep` must go.
    Welcome {
        keep: Vec<RunId>,
        heartbeat_ms: u64,
        silence_ms: u64,
        closed_ms: u64,
    },
    /// The first and last answer: the node may not join.
    Unwelcome {
        why: String,
    },
    /// The heartbeat of this number has been heard.
    Alive {
        sequence: u64,
    },
    /// First phase of a start: make everything ready that can fail, start nothing.
    Prepare(Box<Launch>),
    /// Second phase: all nodes are ready.
    Go {
        run: RunId,
        master_port: u16,
    },
    /// Ask the ranks to end, kill them after the grace, clean up. Answered by [`FromAgent::Released`].
    Stop {
        run: RunId,
        grace_ms: u64,
    },
    Signal {
        run: RunId,
        signal: i32,
        to: Audience,
    },
    Suspend {
        run: RunId,
    },
    Resume {
        run: RunId,
    },
    /// Start tasks of a step inside a running gang, for an `srun` that waits for them.
    Step(Box<NodeStep>),
    /// How long the folders of runs stay that are over, and how much they may hold together.
    Retain {
        age_ms: u64,
        bytes: u64,
    },
    /// An operator knows of what the node found until then, by the node's own clock, and trusts it again.
    Acknowledge {
        until_ms: u64,
    },
    /// Write down what the processes of a run do now. Answered by [`FromAgent::Dumped`].
    Dump {
        run: RunId,
    },
    /// Jobs failed there: the node is to check itself now. Answered by [`FromAgent::Checked`].
    Check,
    /// The end of the run is on disk; the agent may forget it.
    Forget {
        run: RunId,
    },
    /// Read from a log; answered by [`FromAgent::Chunk`].
    ReadLog {
        request: u64,
        log: LogName,
        offset: u64,
        most_bytes: u64,
    },
    /// The cluster goes down and nothing runs any more: the agent ends, as on SIGTERM.
    End,
    /// Break something on purpose, for tests and demonstrations.
    Chaos(Chaos),
}

/// Which processes of a run a signal is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Audience {
    All,
    /// The tasks that a script started with `srun`, but not its shell.
    Steps,
    /// The shell of a script only.
    Script,
}

/// From an agent to the control plane.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FromAgent {
    /// The first message on a link.
    Hello(Hello),
    /// Every heartbeat says all that the node holds.
    Heartbeat {
        sequence: u64,
        held: Vec<HeldRun>,
        /// What is wrong with the node, all of it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        findings: Vec<OpenFinding>,
    },
    /// The node could start the run at once. Its first node names a free port for the ranks to meet at.
    Prepared {
        run: RunId,
        master_port: Option<u16>,
    },
    /// It cannot.
    NotPrepared {
        run: RunId,
        why: Unready,
    },
    /// A rank has failed; the others cannot go on without it.
    RankFailed {
        run: RunId,
        rank: u32,
        end: RankEnd,
    },
    /// Nothing of the run is left on the node: processes gone, epilog run, devices free.
    Released {
        run: RunId,
        end: NodeEnd,
    },
    /// A rank of the job says something about itself.
    Report {
        run: RunId,
        rank: u32,
        report: Report,
    },
    /// What is wrong with the node has changed; this is all of it.
    Findings {
        findings: Vec<OpenFinding>,
    },
    /// Counters of the node now, for who compares them with what they were: sums of what grows, the lowest of levels.
    Counters {
        readings: Vec<(String, f64)>,
    },
    /// The node's own probe has failed, or that of a run.
    Unhealthy {
        reason: String,
        #[serde(default)]
        run: Option<RunId>,
    },
    /// The node's probe succeeds again.
    Healthy,
    /// What the check has found that was asked for.
    Checked {
        fault: Option<String>,
    },
    /// What the processes of a run did when that was asked for, and where all of it is written.
    Dumped {
        run: RunId,
        what: String,
    },
    /// A script inside a run wants tasks on its nodes.
    StepWanted(Box<StepRequest>),
    Chunk {
        request: u64,
        bytes: Vec<u8>,
        next_offset: u64,
        is_open: bool,
        error: Option<String>,
    },
}

/// Who joins, and what it still holds from before.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    pub node: String,
    /// Where peers reach its ranks.
    pub address: String,
    /// Different each time the agent starts.
    pub incarnation: u64,
    pub held: Vec<HeldRun>,
    /// What the host really has, for people.
    pub host: HostMachine,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostMachine {
    pub name: String,
    pub cores: u32,
    pub memory_mib: u64,
    /// Real GPUs; the rest of the node's device slots are pretended.
    pub gpus: u32,
    /// What the node makes sure of by itself: `cores by cpuset`, `memory by cgroup v2`.
    #[serde(default)]
    pub enforced: Vec<String>,
}

/// A run on a node, as its agent sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HeldRun {
    pub run: RunId,
    pub phase: HeldPhase,
    /// Stopped in place: its devices are lent to others meanwhile.
    #[serde(default)]
    pub is_suspended: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeldPhase {
    Preparing,
    Prepared {
        master_port: Option<u16>,
    },
    Running,
    Stopping,
    /// Kept until the control plane says `forget`.
    Released {
        end: NodeEnd,
    },
}

/// Why a node could not prepare a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Unready {
    /// The node's fault; it should be looked at.
    Prolog { status: i32, output: String },
    /// The job's fault: no such directory, output that cannot be written.
    Job { why: String },
    /// It holds devices for another run that has not gone yet.
    Busy { why: String },
}

/// How the ranks of one node ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeEnd {
    /// The first rank that failed by itself, if any.
    pub failed: Option<FailedRank>,
    /// The ranks were stopped before they had ended by themselves.
    pub was_stopped: bool,
    /// Ranks that never started, or died with their agent or by its lease.
    pub was_lost: bool,
    pub epilog_failed: Option<String>,
    pub cpu_ms: u64,
    pub peak_memory_mib: u64,
    /// Where the node can measure it.
    pub energy_joules: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedRank {
    pub rank: u32,
    pub end: RankEnd,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RankEnd {
    Exit(i32),
    Signal(i32),
    /// It could not be started: the error number.
    NotStarted(i32),
    /// Its run shim was killed, and everything of the run with it.
    #[serde(rename = "unguarded")]
    ShimKilled,
    /// The kernel killed it: its run had used all the memory it may. Without a limit it is only known that the kernel
    /// killed something on the host for want of memory at that time.
    OutOfMemory {
        limit_mib: Option<u64>,
    },
}

impl RankEnd {
    pub fn is_success(self) -> bool {
        self == RankEnd::Exit(0)
    }

    /// Whether something other than the process itself ended it.
    pub fn is_from_outside(self) -> bool {
        matches!(self, RankEnd::Signal(_) | RankEnd::ShimKilled | RankEnd::OutOfMemory { .. })
    }

    /// As a shell would say it.
    pub fn status(self) -> i32 {
        match self {
            RankEnd::Exit(code) => code,
            RankEnd::Signal(signal) => 128 + signal,
            RankEnd::NotStarted(_) => 127,
            RankEnd::ShimKilled | RankEnd::OutOfMemory { .. } => 128 + 9,
        }
    }
}

impl std::fmt::Display for RankEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RankEnd::Exit(code) => write!(f, "exit code {code}"),
            RankEnd::Signal(signal) => write!(f, "signal {signal}"),
            RankEnd::NotStarted(2) => write!(f, "its program was not found"),
            RankEnd::NotStarted(13) => write!(f, "its program may not be executed"),
            RankEnd::NotStarted(number) => write!(f, "it could not be started (error {number})"),
            RankEnd::OutOfMemory { limit_mib: Some(mib) } => {
                write!(f, "out of memory: its run may use {mib} MiB on a node")
            }
            RankEnd::OutOfMemory { limit_mib: None } => {
                write!(f, "out of memory, most likely: killed while the kernel killed for memory on its host")
            }
            RankEnd::ShimKilled => {
                write!(f, "its run shim was killed, most likely by a process of the run")
            }
        }
    }
}

impl Launch {
    /// What the environment of its processes is made of.
    pub fn part(&self) -> NodePart<'_> {
        let checkpoint = self.checkpoint.as_ref();
        NodePart {
            job: self.run.job,
            run: self.run.number,
            job_name: &self.job_name,
            user: &self.user,
            node_index: self.node_index,
            peers: &self.peers,
            devices: &self.devices,
            cpus: self.cpus,
            ranks: &self.ranks,
            world_size: self.world_size,
            set: &self.environment,
            facts: &self.facts,
            checkpoint: checkpoint.map(|checkpoint| (checkpoint.step, checkpoint.path.as_deref())),
            survives: self.survives,
            is_newcomer: self.joins.is_some(),
        }
    }
}

impl NodeStep {
    /// What the environment of its tasks is made of.
    pub fn part(&self) -> StepPart<'_> {
        StepPart {
            number: self.number,
            node_index: self.node_index,
            nodes: &self.nodes,
            tasks: &self.tasks,
            task_count: self.task_count,
            set: &self.environment,
        }
    }
}

/// Everything a node must know to play its part in a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Launch {
    pub run: RunId,
    /// The number of the run whose ranks it joins, which have met already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joins: Option<u32>,
    /// The ranks go on without nodes that are lost.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub survives: bool,
    pub job_name: String,
    pub user: String,
    /// This node's place among `peers`.
    pub node_index: u32,
    /// All nodes of the gang, in the order of their ranks.
    pub peers: Vec<Peer>,
    /// Local indices of the devices that are leased to this run here.
    pub devices: Vec<u32>,
    /// Other runs may hold the same device: each has a share of it.
    pub shares_device: bool,
    pub cpus: u32,
    /// No limit when zero.
    pub memory_mib: u64,
    /// Ranks that start here; none on the other nodes of a script.
    pub ranks: Vec<u32>,
    pub world_size: u32,
    pub program: Program,
    /// What the job sets itself.
    pub environment: BTreeMap<String, String>,
    /// Facts for `SLURM_*` and `BEDPLATE_*`: partition, account, QOS, array place, limits.
    pub facts: JobFacts,
    pub directory: Option<String>,
    /// Patterns of file names, as `bedplate_job::FileNames` expands them.
    pub stdin: Option<String>,
    pub stdout: Option<String>,
    pub stderr: Option<String>,
    /// Output files are opened to append: the run continues earlier ones.
    pub appends: bool,
    pub prolog: Option<String>,
    pub epilog: Option<String>,
    pub probe: Option<Probe>,
    /// Where the job shall go on.
    pub checkpoint: Option<Checkpoint>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Program {
    /// Once for each rank.
    Command(Vec<String>),
    /// Once, on the first node.
    Script(String),
}

/// A command that says whether all is well, by its exit code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    pub command: String,
    pub every_ms: u64,
}

/// What an `srun` asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepRequest {
    pub run: RunId,
    /// All nodes of the gang when empty.
    pub nodes: Vec<String>,
    /// How many of them; all when absent.
    pub node_count: Option<u32>,
    /// Tasks in all; the job's tasks for each node when absent.
    pub tasks: Option<u32>,
    pub tasks_per_node: Option<u32>,
    pub arguments: Vec<String>,
    pub environment: BTreeMap<String, String>,
    pub directory: String,
    pub reply: ReplyTo,
}

/// Where the tasks of a step send their output, and what proves that they may.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplyTo {
    pub address: String,
    pub secret: String,
}

/// A step's part on one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStep {
    pub run: RunId,
    /// Counts the steps of a run.
    pub number: u32,
    pub node_index: u32,
    pub node_count: u32,
    pub nodes: Vec<String>,
    pub tasks: Vec<u32>,
    pub task_count: u32,
    pub arguments: Vec<String>,
    pub environment: BTreeMap<String, String>,
    pub directory: String,
    pub reply: ReplyTo,
}

/// One stream of one rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogName {
    pub run: RunId,
    pub rank: u32,
    pub stream: LogStream,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogStream {
    Stdout,
    Stderr,
}

/// What can be broken on a node on purpose.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Chaos {
    /// The agent dies as by `kill -9`.
    Die,
    /// Neither side hears the other for this long, and neither is told.
    Cut { for_ms: u64 },
    /// Every message is delayed, for this long.
    Delay { by_ms: u64, for_ms: u64 },
    /// One rank dies as by `kill -9`; the first found when none is named.
    KillRank { run: Option<RunId>, rank: Option<u32> },
    /// The node behaves as if this XID had been seen on a GPU.
    Xid { gpu: u32, xid: u32 },
    /// Makes the node's own probe fail from now on, or stops that.
    Probe { fails: bool },
}
