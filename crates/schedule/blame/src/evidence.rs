//! Failures of jobs on nodes, for as long as they count.

use std::collections::BTreeSet;

use bedplate_gangs::{JobId, Time, UserId};
use bedplate_topology::NodeId;

/// A job failed on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobFault {
    pub job: JobId,
    pub user: UserId,
    pub node: NodeId,
    pub kind: FaultKind,
}

/// What failed. All of these can be the job's own doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// The job's own probe of its nodes.
    Probe,
    Prolog,
    Epilog,
    /// The node did not make the run ready in time.
    Unready,
    /// The node did not get rid of the run in time.
    Overdue,
    /// The ranks on this node fell behind those of the others and made no progress.
    Stalled,
    /// A device reported a fault that an application can cause.
    Device,
    /// A rank said that a GPU failed it. This is the job's word; what the node finds itself is no fault of a job.
    ReportedDevice,
    /// A rank on this node was the first to end with an error.
    Crashed,
}

impl FaultKind {
    pub const ALL: [FaultKind; 9] = [
        FaultKind::Probe,
        FaultKind::Prolog,
        FaultKind::Epilog,
        FaultKind::Unready,
        FaultKind::Overdue,
        FaultKind::Stalled,
        FaultKind::Device,
        FaultKind::ReportedDevice,
        FaultKind::Crashed,
    ];

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    pub const fn name(self) -> &'static str {
        match self {
            FaultKind::Probe => "probe",
            FaultKind::Prolog => "prolog",
            FaultKind::Epilog => "epilog",
            FaultKind::Unready => "unready",
            FaultKind::Overdue => "overdue",
            FaultKind::Stalled => "stalled",
            FaultKind::Device => "device",
            FaultKind::ReportedDevice => "reported-device",
            FaultKind::Crashed => "crashed",
        }
    }
}

/// Those whose word counts against a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Witnesses {
    pub(crate) jobs: usize,
    pub(crate) users: usize,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct FaultEvidence(Vec<Entry>);

#[derive(Debug, Clone, Copy)]
struct Entry {
    at: Time,
    fault: JobFault,
    /// An operator trusts the node again. It still counts against the job.
    is_forgiven: bool,
}

impl FaultEvidence {
    pub(crate) fn add(&mut self, fault: JobFault, now: Time) {
        self.0.push(Entry { at: now, fault, is_forgiven: false });
    }

    pub(crate) fn forget_before(&mut self, oldest: Time) {
        self.0.retain(|entry| entry.at >= oldest);
    }

    pub(crate) fn forgive(&mut self, node: NodeId) {
        let against = self.0.iter_mut().filter(|entry| entry.fault.node == node);
        against.for_each(|entry| entry.is_forgiven = true);
    }

    /// Different nodes on which a job failed.
    pub(crate) fn nodes_of(&self, job: JobId) -> usize {
        let nodes: BTreeSet<NodeId> = self.of(job).map(|fault| fault.node).collect();
        nodes.len()
    }

    pub(crate) fn count(&self, job: JobId, node: NodeId) -> usize {
        self.of(job).filter(|fault| fault.node == node).count()
    }

    pub(crate) fn count_of_kind(&self, job: JobId, kind: FaultKind) -> usize {
        self.of(job).filter(|fault| fault.kind == kind).count()
    }

    /// Jobs that failed on this node and on no other: a job that fails everywhere accuses itself.
    pub(crate) fn witnesses_against(&self, node: NodeId) -> Witnesses {
        let here = self.0.iter().filter(|entry| !entry.is_forgiven && entry.fault.node == node);
        let here = here.map(|entry| &entry.fault);
        let credible: BTreeSet<(JobId, UserId)> =
            here.filter(|fault| self.nodes_of(fault.job) == 1).map(|fault| (fault.job, fault.user)).collect();
        let users: BTreeSet<UserId> = credible.iter().map(|(_, user)| *user).collect();
        Witnesses { jobs: credible.len(), users: users.len() }
    }

    fn of(&self, job: JobId) -> impl Iterator<Item = &JobFault> {
        self.0.iter().map(|entry| &entry.fault).filter(move |fault| fault.job == job)
    }
}
