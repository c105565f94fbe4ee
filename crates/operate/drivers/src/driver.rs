//! The trait behind which a cluster is driven.
//!
//! It has what our own control plane, Slurm and Kubernetes can honour, in types of its own. How each would do it:
//!
//! | method | our control plane | Slurm | Kubernetes |
//! |---|---|---|---|
//! | `submit` | `POST /v1/jobs` with the key | `sbatch --parsable` or REST, the key in the comment | create a JobSet named by the key |
//! | `jobs`, `job` | `GET /v1/jobs…` | `squeue --json`, ended ones by `sacct --json` | list JobSets, their Workloads and pods |
//! | `order` | `DELETE`, `POST …/hold` | `scancel`, `scontrol hold\|release\|requeue` | suspend, with a mark |
//! | `explain` | the scheduler's reason and remedies | the reason code and `squeue --start` | conditions of pods and of Kueue's Workload |
//! | `watch` | server-sent events | asks again and again, and compares | the watch API |
//! | `logs` | from the node, by rank | the files of `StdOut`, where they can be read | logs of the rank's pod |
//! | `ranks` | from the run | `scontrol show job -d` | pods by their index |
//! | `nodes`, `node` | `GET /v1/nodes…` | `scontrol show node --json` | list nodes |
//! | `drain`, `resume` | `POST …/drain` | `scontrol update state=drain\|resume` | cordon, uncordon |
//!
//! What a cluster cannot do is missing from its [`Capability`] list, and the method refuses with
//! [`DriverError::Cannot`]. What only one kind of cluster has (tokens, chaos, usage by SQL) is a method of that kind.

use std::io::Write;
use std::ops::ControlFlow;
use std::time::Duration;

use bedplate_host::clock;
use bedplate_job::Job;

use crate::{
    Capability, ClusterEvent, ClusterView, DriverError, Explained, JobDetail, JobId, JobState, JobSummary,
    NodeDetail, NodeId, NodeSummary, RankPlace, Submitted,
};

/// What is told of changes, until it has seen enough.
pub type See<'a> = &'a mut dyn FnMut(ClusterEvent) -> ControlFlow<()>;

/// A key for one submission: repeated after a lost answer, it stays one job.
pub fn new_submission_key() -> String {
    let now = clock::unix_time().as_nanos();
    format!("{}-{now}", std::process::id())
}

/// A cluster that takes jobs. All calls block.
pub trait Driver: Send + Sync {
    /// What people read in messages: `the cluster at http://127.0.0.1:7431`.
    fn name(&self) -> String;

    /// What the cluster can do beyond taking, listing and cancelling jobs and listing nodes.
    fn capabilities(&self) -> &[Capability];

    fn can(&self, capability: Capability) -> bool {
        self.capabilities().contains(&capability)
    }

    /// The refusal of what the cluster cannot do.
    fn cannot(&self, capability: Capability) -> DriverError {
        DriverError::Cannot { cluster: self.name(), capability }
    }

    /// What should be said beside the answers given since it was last asked: what they leave out and why.
    fn remarks(&self) -> Vec<String> {
        Vec::new()
    }

    /// How long callers that look again and again should wait in between.
    fn pause(&self) -> Duration {
        Duration::from_millis(500)
    }

    /// Whether jobs run in containers, which have neither the folders of the user who submits them nor, unless the job
    /// names them, the user's variables.
    fn runs_containers(&self) -> bool {
        false
    }

    /// Takes a job in. The same key by the same user is the same job, so asking again does no harm.
    fn submit(&self, job: &Job, key: &str) -> Result<Submitted, DriverError>;

    /// Jobs in the order of their submission; with ended ones, the newest first.
    fn jobs(&self, query: &JobQuery) -> Result<Vec<JobSummary>, DriverError>;

    fn job(&self, id: &JobId) -> Result<JobDetail, DriverError>;

    /// Every cluster cancels; [`JobOrder::needs`] says what the other orders take.
    fn order(&self, id: &JobId, order: JobOrder) -> Result<(), DriverError>;

    /// The nodes, in the order of the cluster.
    fn nodes(&self) -> Result<Vec<NodeSummary>, DriverError>;

    fn node(&self, id: &NodeId) -> Result<NodeDetail, DriverError>;

    /// What the cluster is: its name, network and sizes.
    fn cluster(&self) -> Result<ClusterView, DriverError>;

    /// Why a job waits; nothing when it does not.
    fn explain(&self, _id: &JobId) -> Result<Option<Explained>, DriverError> {
        Err(self.cannot(Capability::Explain))
    }

    /// Hands over what happens until `see` has seen enough or the cluster ends the stream.
    fn watch(&self, _watched: &Watched, _see: See<'_>) -> Result<(), DriverError> {
        Err(self.cannot(Capability::Watch))
    }

    /// Copies a log and returns where the next reading begins; with `follow` it goes on until the job ends.
    fn logs(&self, _id: &JobId, _query: &LogQuery, _to: &mut dyn Write) -> Result<u64, DriverError> {
        Err(self.cannot(Capability::Logs))
    }

    /// Where the ranks of a running job stand.
    fn ranks(&self, _id: &JobId) -> Result<Vec<RankPlace>, DriverError> {
        Err(self.cannot(Capability::Ranks))
    }

    /// Gives the node no new work; what runs there ends by itself.
    fn drain(&self, _node: &NodeId, _reason: &str) -> Result<(), DriverError> {
        Err(self.cannot(Capability::Drain))
    }

    fn resume(&self, _node: &NodeId) -> Result<(), DriverError> {
        Err(self.cannot(Capability::Drain))
    }
}

/// What may be wanted of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobOrder {
    Cancel,
    Hold,
    Release,
    Requeue,
}

impl JobOrder {
    /// What a cluster must be able to do for it.
    pub fn needs(self) -> Option<Capability> {
        match self {
            JobOrder::Cancel => None,
            JobOrder::Hold | JobOrder::Release => Some(Capability::Hold),
            JobOrder::Requeue => Some(Capability::Requeue),
        }
    }
}

/// Which jobs to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobQuery {
    pub user: Option<String>,
    pub account: Option<String>,
    pub name: Option<String>,
    /// Any of these; all when empty.
    pub states: Vec<JobState>,
    /// Jobs that have ended too.
    pub with_ended: bool,
    /// No limit when absent.
    pub limit: Option<usize>,
}

impl JobQuery {
    /// Whether a job is one of those asked for.
    pub(crate) fn takes(&self, job: &JobSummary) -> bool {
        let same = |wanted: &Option<String>, has: &str| wanted.as_deref().is_none_or(|wanted| wanted == has);
        same(&self.user, &job.user)
            && same(&self.account, &job.account)
            && same(&self.name, &job.name)
            && (self.states.is_empty() || self.states.contains(&job.life.state))
            && (self.with_ended || !job.life.state.is_final())
    }
}

/// Which part of which log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogQuery {
    pub rank: u32,
    pub stream: OutputStream,
    /// The newest run when absent.
    pub run: Option<u32>,
    pub offset: u64,
    pub follow: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OutputStream {
    #[default]
    Stdout,
    Stderr,
}

impl OutputStream {
    pub fn name(self) -> &'static str {
        match self {
            OutputStream::Stdout => "stdout",
            OutputStream::Stderr => "stderr",
        }
    }
}

/// What to watch: everything when both are absent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Watched {
    pub job: Option<JobId>,
    pub node: Option<NodeId>,
}
