//! The trait behind which a cluster is driven.
//!
//! It has what our own control plane, Slurm and Kubernetes can all honour; what only one of them can do is a method of
//! that one.

use std::io::Write;
use std::ops::ControlFlow;

use bedplate_control::record::JobState;
use bedplate_control::{JobView, NodeView};
use bedplate_job::Job;

use crate::{ClusterView, DriverError, Explained, JobDetail, NodeDetail, RankPlace, Seen, Submitted};

/// A cluster that takes jobs.
pub trait Driver {
    /// Takes a job in. The same key by the same user is the same job, so asking again does no harm.
    fn submit(&self, job: &Job, key: &str) -> Result<Submitted, DriverError>;

    /// Jobs by number, as many as the query wants.
    fn jobs(&self, query: &JobQuery) -> Result<Vec<JobView>, DriverError>;

    fn job(&self, label: &str) -> Result<JobDetail, DriverError>;

    fn order(&self, label: &str, order: JobOrder) -> Result<(), DriverError>;

    /// Why a job waits; nothing when it does not.
    fn explain(&self, label: &str) -> Result<Option<Explained>, DriverError>;

    /// Hands over what happens until `see` has seen enough or the cluster ends the stream.
    fn watch(
        &self,
        watched: &Watched,
        see: &mut dyn FnMut(Seen) -> ControlFlow<()>,
    ) -> Result<(), DriverError>;

    /// Copies a log and returns where the next reading begins; with `follow` it goes on until the job ends.
    fn logs(&self, label: &str, query: &LogQuery, to: &mut dyn Write) -> Result<u64, DriverError>;

    /// Where the ranks of a running job stand.
    fn ranks(&self, label: &str) -> Result<Vec<RankPlace>, DriverError>;

    /// The nodes, in the order of the cluster.
    fn nodes(&self) -> Result<Vec<NodeView>, DriverError>;

    fn node(&self, name: &str) -> Result<NodeDetail, DriverError>;

    /// Gives the node no new work; what runs there ends by itself.
    fn drain(&self, node: &str, reason: &str) -> Result<(), DriverError>;

    fn resume(&self, node: &str) -> Result<(), DriverError>;

    /// What the cluster is: its name, network and sizes.
    fn cluster(&self) -> Result<ClusterView, DriverError>;
}

/// What may be wanted of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobOrder {
    Cancel,
    Hold,
    Release,
    Requeue,
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
    /// The newest so many when absent.
    pub limit: Option<usize>,
}

/// Which part of which log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogQuery {
    pub rank: u32,
    pub stream: Stream,
    /// The newest run when absent.
    pub run: Option<u32>,
    pub offset: u64,
    pub follow: bool,
}

impl Default for LogQuery {
    fn default() -> Self {
        Self { rank: 0, stream: Stream::Stdout, run: None, offset: 0, follow: false }
    }
}

pub use bedplate_control::wire::Stream;

/// What to watch: everything when both are absent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Watched {
    pub job: Option<String>,
    pub node: Option<String>,
}
