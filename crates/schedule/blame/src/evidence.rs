//! Failures of jobs on nodes, for as long as they count.

use std::collections::BTreeSet;

use bedplate_gangs::counted::{CountedMap, CountedSet};
use bedplate_gangs::{JobId, Time, UserId};
use bedplate_topology::NodeId;

/// What a job runs. Tasks of an array, and jobs that run the same command, are one program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Program(pub u64);

impl Program {
    /// The program that is written like this.
    pub fn of(text: &str) -> Self {
        Self(text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        }))
    }
}

/// A job failed on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobFault {
    pub job: JobId,
    pub user: UserId,
    pub program: Program,
    /// What it has of the node.
    pub gpus: u32,
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
    /// The ranks on this node held up the others, by a diagnosis that rests on what the job says of itself.
    HeldUp,
}

impl FaultKind {
    pub const ALL: [FaultKind; 10] = [
        FaultKind::Probe,
        FaultKind::Prolog,
        FaultKind::Epilog,
        FaultKind::Unready,
        FaultKind::Overdue,
        FaultKind::Stalled,
        FaultKind::Device,
        FaultKind::ReportedDevice,
        FaultKind::Crashed,
        FaultKind::HeldUp,
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
            FaultKind::HeldUp => "held-up",
        }
    }
}

/// Failures of one job that are kept; more than any verdict needs.
const MOST_OF_A_JOB: usize = 64;
/// Programs of one user that are kept against one node: a user is one witness, whatever fails.
const MOST_PROGRAMS: usize = 4;
/// Accusations that are looked at for one verdict.
const MOST_HEARD: usize = 64;

/// Those whose word counts against a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Witnesses {
    /// Jobs that failed there and nowhere else.
    pub(crate) jobs: usize,
    /// Users of different programs.
    pub(crate) users: usize,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct FaultEvidence {
    of_jobs: CountedMap<JobId, Vec<Fault>>,
    against: CountedMap<(NodeId, UserId, Program), Accusation>,
    /// Where programs failed, and when last.
    places: CountedMap<(UserId, Program, NodeId), Time>,
    /// What expires next.
    by_age: CountedSet<(Time, Expires)>,
}

#[derive(Debug, Clone, Copy)]
struct Fault {
    at: Time,
    node: NodeId,
    kind: FaultKind,
}

/// What jobs of one program of one user say about a node.
#[derive(Debug, Clone, Copy)]
struct Accusation {
    last_job: JobId,
    jobs: usize,
    gpus: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Expires {
    OfJob(JobId),
    Place(UserId, Program, NodeId),
}

impl FaultEvidence {
    pub(crate) fn add(&mut self, fault: JobFault, now: Time) {
        let JobFault { job, user, program, gpus, node, kind } = fault;
        let of_job = self.of_jobs.or_default(job);
        if of_job.len() == MOST_OF_A_JOB {
            of_job.remove(0);
        }
        of_job.push(Fault { at: now, node, kind });
        self.by_age.insert((now, Expires::OfJob(job)), ());
        let is_full = self.programs_against(node, user).count() >= MOST_PROGRAMS;
        if is_full && !self.against.contains_key(&(node, user, program)) {
            return;
        }
        if let Some(before) = self.places.insert((user, program, node), now) {
            self.by_age.remove(&(before, Expires::Place(user, program, node)));
        }
        self.by_age.insert((now, Expires::Place(user, program, node)), ());
        let said = self.against.get(&(node, user, program)).copied();
        let jobs = said.map_or(1, |said| said.jobs + usize::from(said.last_job != job));
        let gpus = said.map_or(gpus, |said| said.gpus.min(gpus));
        self.against.insert((node, user, program), Accusation { last_job: job, jobs, gpus });
    }

    fn programs_against(&self, node: NodeId, user: UserId) -> impl Iterator<Item = Program> {
        let all = (node, user, Program(0))..=(node, user, Program(u64::MAX));
        self.against.range(all).map(|((_, _, program), _)| *program)
    }

    pub(crate) fn forget_before(&mut self, oldest: Time) {
        while self.by_age.first().is_some_and(|((at, _), ())| *at < oldest) {
            match self.by_age.pop_first() {
                Some(((_, Expires::OfJob(job)), ())) => self.forget_of_job(job, oldest),
                Some(((_, Expires::Place(user, program, node)), ())) => {
                    self.places.remove(&(user, program, node));
                    self.against.remove(&(node, user, program));
                }
                None => return,
            }
        }
    }

    fn forget_of_job(&mut self, job: JobId, oldest: Time) {
        let Some(faults) = self.of_jobs.get_mut(&job) else { return };
        faults.retain(|fault| fault.at >= oldest);
        if faults.is_empty() {
            self.of_jobs.remove(&job);
        }
    }

    /// Nothing that was said against a node until now counts against it.
    pub(crate) fn forgive(&mut self, node: NodeId) {
        self.withdraw(node, |_| true);
    }

    /// A job has succeeded on a node with so many of its GPUs: those that failed with no more of them need not have failed
    /// because of the node.
    pub(crate) fn succeeded(&mut self, node: NodeId, gpus: u32) {
        self.withdraw(node, |said| said.gpus <= gpus);
    }

    fn withdraw(&mut self, node: NodeId, is_answered: impl Fn(&Accusation) -> bool) {
        let all = (node, UserId(0), Program(0))..=(node, UserId(u32::MAX), Program(u64::MAX));
        let answered = self.against.range(all).filter(|(_, said)| is_answered(said));
        let answered: Vec<(NodeId, UserId, Program)> = answered.map(|(key, _)| *key).collect();
        for key in answered {
            self.against.remove(&key);
        }
    }

    /// Different nodes on which a job failed. One that was slow has not failed.
    pub(crate) fn nodes_of(&self, job: JobId) -> usize {
        let failed = self.of(job).filter(|fault| fault.kind != FaultKind::HeldUp);
        let mut nodes: Vec<NodeId> = failed.map(|fault| fault.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes.len()
    }

    pub(crate) fn count(&self, job: JobId, node: NodeId) -> usize {
        self.of(job).filter(|fault| fault.node == node).count()
    }

    pub(crate) fn count_of_kind(&self, job: JobId, kind: FaultKind) -> usize {
        self.of(job).filter(|fault| fault.kind == kind).count()
    }

    /// Programs that failed on this node and on no other: one that fails everywhere accuses itself.
    pub(crate) fn witnesses_against(&self, node: NodeId) -> Witnesses {
        let all = (node, UserId(0), Program(0))..=(node, UserId(u32::MAX), Program(u64::MAX));
        let heard = self.against.range(all).take(MOST_HEARD);
        let credible = heard.filter(|((_, user, program), _)| self.failed_once(*user, *program));
        let (mut users, mut programs) = (BTreeSet::new(), BTreeSet::new());
        let mut jobs = 0;
        for ((_, user, program), said) in credible {
            users.insert(*user);
            programs.insert(*program);
            jobs += said.jobs;
        }
        // Two users of two programs are two witnesses, in whichever way they are paired.
        Witnesses { jobs, users: users.len().min(programs.len()) }
    }

    fn failed_once(&self, user: UserId, program: Program) -> bool {
        let places = self.places.range((user, program, NodeId(0))..=(user, program, NodeId(u32::MAX)));
        places.take(2).count() == 1
    }

    fn of(&self, job: JobId) -> impl Iterator<Item = &Fault> {
        self.of_jobs.get(&job).into_iter().flatten()
    }
}
