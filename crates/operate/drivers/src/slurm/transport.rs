//! A transport to Slurm: its commands, or its REST server. Both give the same records.

use std::collections::BTreeMap;

use super::job::JobRecord;
use super::node::NodeRecord;
use super::site::{Partition, Qos, Share};
use crate::{DriverError, JobId, JobOrder};

/// What not every transport can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ability {
    Requeue,
    Drain,
    Topology,
    Shares,
}

/// A job as it is handed over.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Submission {
    pub(super) script: String,
    /// The options of the script's `#SBATCH` lines.
    pub(super) options: Vec<(String, Option<String>)>,
    /// Instead of the one in the options.
    pub(super) comment: String,
    pub(super) environment: BTreeMap<String, String>,
    pub(super) directory: String,
}

/// Which jobs of accounting.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct HistoryQuery {
    /// One job with every run of it; all when absent.
    pub(super) job: Option<JobId>,
    /// Seconds since 1970.
    pub(super) since_s: u64,
    pub(super) user: Option<String>,
    pub(super) account: Option<String>,
    pub(super) name: Option<String>,
}

pub(super) trait SlurmTransport: Send + Sync {
    /// As in "asked by …".
    fn name(&self) -> String;

    fn can(&self, ability: Ability) -> bool;

    /// `22.05.8`.
    fn version(&self) -> Result<String, DriverError>;

    /// Name of the cluster; empty where it is not told.
    fn cluster_name(&self) -> Result<String, DriverError>;

    /// The jobs that slurmctld remembers, ended ones among them.
    fn jobs(&self) -> Result<Vec<JobRecord>, DriverError>;

    /// A job, a task or all tasks of an array; nothing where slurmctld knows none of that number.
    fn job(&self, id: &JobId) -> Result<Vec<JobRecord>, DriverError>;

    /// Jobs of accounting, each run by itself. `None` where the site keeps no accounting.
    fn history(&self, query: &HistoryQuery) -> Result<Option<Vec<JobRecord>>, DriverError>;

    /// The number of the new job.
    fn submit(&self, submission: &Submission) -> Result<u64, DriverError>;

    fn order(&self, id: &JobId, order: JobOrder) -> Result<(), DriverError>;

    fn nodes(&self) -> Result<Vec<NodeRecord>, DriverError>;

    fn node(&self, name: &str) -> Result<Option<NodeRecord>, DriverError>;

    /// Drains a node for a reason, or resumes it without one.
    fn set_node(&self, name: &str, reason: Option<&str>) -> Result<(), DriverError>;

    fn partitions(&self) -> Result<Vec<Partition>, DriverError>;

    /// Lines of `topology.conf`; nothing where Slurm knows no switches.
    fn topology(&self) -> Result<Option<String>, DriverError>;

    /// `None` without accounting.
    fn qos(&self) -> Result<Option<Vec<Qos>>, DriverError>;

    /// `None` without accounting.
    fn shares(&self) -> Result<Option<Vec<Share>>, DriverError>;
}
