//! A trace: jobs as recorded or generated, before any scheduler has seen them.

use std::collections::BTreeMap;

use bedplate_gangs::{Closeness, Elastic, Preemption, Rates, Span, Time};
use bedplate_topology::Cluster;

use super::workload::possible_work;

/// Jobs in the order of their submission.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Trace {
    pub jobs: Vec<TraceJob>,
    pub users: TraceNames,
    pub accounts: TraceNames,
    pub qos: TraceNames,
    pub partitions: TraceNames,
    /// Remarks on what is odd but not wrong.
    pub remarks: Vec<TraceRemark>,
}

/// One job. Users, accounts, QOS and partitions are indices into the trace's lists of names.
#[derive(Debug, Clone, PartialEq)]
pub struct TraceJob {
    pub name: String,
    /// After the first submission of the trace.
    pub submit: Time,
    /// Run time at the requested size, with nodes as close as possible and no failures.
    pub duration: Span,
    pub size: Size,
    pub cpus_per_node: u16,
    pub memory_mib_per_node: u32,
    /// Thousandths of its one GPU.
    pub gpu_share: Option<u16>,
    /// Names of acceptable GPUs; any when empty.
    pub accelerators: Vec<String>,
    pub is_exclusive: bool,
    /// As requested by the user; else assigned, see [`Estimates`](super::Estimates).
    pub time_limit: Option<Span>,
    /// Assigned by an earlier replay that saved the trace: schedulers plan with it, and a job that reaches it is submitted again.
    pub assigned_limit: Option<Span>,
    pub user: u32,
    pub account: u32,
    pub qos: u32,
    pub partition: u32,
    pub nice: i64,
    pub elastic: Option<Elastic>,
    pub closeness: Closeness,
    /// Share of a step spent waiting for messages between nodes.
    pub scale_out_share: f64,
    /// Share of a step that does not shrink with more nodes.
    pub fixed_share: f64,
    /// Throughput of an elastic job by its size; without it, size counts by `fixed_share`.
    pub rates: Option<Rates>,
    /// Work between checkpoints; without them losing a node loses all work.
    pub checkpoint_every: Option<Span>,
    pub preemption: Preemption,
    pub minimum_run_time: Span,
    pub ending: Ending,
}

/// How many GPUs a job requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// A number of GPUs, on as few nodes as possible.
    Gpus(u32),
    Nodes {
        nodes: u32,
        gpus_per_node: u16,
    },
}

/// How the job ended by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ending {
    Completed,
    Cancelled,
    Failed,
}

impl Ending {
    pub const ALL: [(&'static str, Ending); 3] =
        [("completed", Ending::Completed), ("cancelled", Ending::Cancelled), ("failed", Ending::Failed)];

    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].0
    }
}

/// An oddity of a trace, and in how many lines it occurs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceRemark {
    pub what: &'static str,
    pub count: usize,
}

impl TraceJob {
    /// A job without a user.
    pub fn new(submit: Time, duration: Span, size: Size) -> Self {
        Self {
            name: String::new(),
            submit,
            duration,
            size,
            cpus_per_node: 0,
            memory_mib_per_node: 0,
            gpu_share: None,
            accelerators: Vec::new(),
            is_exclusive: false,
            time_limit: None,
            assigned_limit: None,
            user: 0,
            account: 0,
            qos: 0,
            partition: 0,
            nice: 0,
            elastic: None,
            closeness: Closeness::Any,
            scale_out_share: 0.0,
            fixed_share: 0.0,
            rates: None,
            checkpoint_every: None,
            preemption: Preemption::Requeue,
            minimum_run_time: Span::ZERO,
            ending: Ending::Completed,
        }
    }

    /// Requested GPUs; a shared one counts by its share.
    pub fn gpus(&self) -> f64 {
        let whole = match self.size {
            Size::Gpus(gpus) => f64::from(gpus),
            Size::Nodes { nodes, gpus_per_node } => f64::from(nodes) * f64::from(gpus_per_node),
        };
        self.gpu_share.map_or(whole, |share| f64::from(share) / 1000.0)
    }

    /// GPU milliseconds of its work.
    pub fn gpu_time(&self) -> f64 {
        self.gpus() * self.duration.0 as f64
    }
}

impl Size {
    /// Nodes and GPUs on each, where nodes have `per_node` GPUs: as few nodes as possible, all alike,
    /// so 12 GPUs on nodes of 8 are two nodes with 6.
    pub fn shape(self, per_node: u16) -> (u32, u16) {
        match self {
            Size::Nodes { nodes, gpus_per_node } => (nodes, gpus_per_node),
            Size::Gpus(0) => (1, 0),
            Size::Gpus(gpus) => {
                let nodes = gpus.div_ceil(u32::from(per_node.max(1)));
                (nodes, gpus.div_ceil(nodes) as u16)
            }
        }
    }
}

impl Trace {
    /// Puts jobs in the order of submission, counted from the first, and remarks on what was odd.
    pub(crate) fn finish(mut self) -> Self {
        let unsorted = self.jobs.windows(2).filter(|pair| pair[1].submit < pair[0].submit).count();
        self.remark("rows are not in the order of submission; they were sorted", unsorted);
        let instant = self.jobs.iter().filter(|job| job.duration == Span::ZERO).count();
        self.remark("jobs run for no time; they count one second", instant);
        self.jobs.sort_by_key(|job| job.submit);
        let first = self.jobs.first().map_or(Time::ZERO, |job| job.submit);
        for job in &mut self.jobs {
            job.submit = Time::ZERO + job.submit.since(first);
            job.duration = job.duration.max(Span::seconds(1));
        }
        self
    }

    pub(crate) fn remark(&mut self, what: &'static str, count: usize) {
        if count > 0 {
            self.remarks.push(TraceRemark { what, count });
        }
    }

    /// From the first submission to the last.
    pub fn window(&self) -> Span {
        self.jobs.last().map_or(Span::ZERO, |job| job.submit.since(Time::ZERO))
    }

    /// GPU milliseconds of all work.
    pub fn gpu_time(&self) -> f64 {
        self.jobs.iter().map(TraceJob::gpu_time).sum()
    }

    /// Work over capacity, in the window of submissions.
    pub fn load(&self, gpus: u32) -> f64 {
        self.load_of(self.gpu_time(), gpus)
    }

    fn load_of(&self, gpu_time: f64, gpus: u32) -> f64 {
        gpu_time / (f64::from(gpus.max(1)) * (self.window().0 as f64).max(1.0))
    }

    /// Moves submissions closer together or further apart so that the work of all jobs is `load` times what `gpus` GPUs
    /// can do in the window. Run times stay.
    pub fn scaled_to_load(self, load: f64, gpus: u32) -> Self {
        let now = self.load(gpus);
        self.scaled_by(now / load.max(1e-6))
    }

    /// Likewise for a cluster, where only the work counts that it can run.
    pub fn scaled_to_load_of(self, load: f64, cluster: &Cluster) -> Self {
        let possible = possible_work(&self, cluster);
        let now = self.load_of(possible, cluster.gpu_count());
        if possible > 0.0 { self.scaled_by(now / load.max(1e-6)) } else { self }
    }

    fn scaled_by(mut self, factor: f64) -> Self {
        for job in &mut self.jobs {
            job.submit = Time((job.submit.0 as f64 * factor) as u64);
        }
        self
    }
}

/// Distinct names by index. Index 0 is the empty name: unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceNames {
    names: Vec<String>,
    places: BTreeMap<String, u32>,
}

impl Default for TraceNames {
    fn default() -> Self {
        Self { names: vec![String::new()], places: BTreeMap::from([(String::new(), 0)]) }
    }
}

impl TraceNames {
    pub fn place(&mut self, name: &str) -> u32 {
        if let Some(place) = self.places.get(name) {
            return *place;
        }
        let place = self.names.len() as u32;
        self.names.push(name.to_owned());
        self.places.insert(name.to_owned(), place);
        place
    }

    pub fn name(&self, place: u32) -> &str {
        &self.names[place as usize]
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_spread_evenly_over_as_few_nodes_as_hold_them() {
        let shapes: Vec<(u32, u16)> =
            [0, 1, 8, 9, 12, 16, 17, 128].into_iter().map(|gpus| Size::Gpus(gpus).shape(8)).collect();
        assert_eq!(shapes, [(1, 0), (1, 1), (1, 8), (2, 5), (2, 6), (2, 8), (3, 6), (16, 8)]);
        assert_eq!(Size::Gpus(3).shape(1), (3, 1));
    }

    #[test]
    fn jobs_are_sorted_and_counted_from_the_first() {
        let job = |at, seconds| TraceJob::new(Time::seconds(at), Span::seconds(seconds), Size::Gpus(1));
        let trace = Trace { jobs: vec![job(30, 0), job(10, 5)], ..Trace::default() }.finish();
        let submits: Vec<Time> = trace.jobs.iter().map(|job| job.submit).collect();
        assert_eq!(submits, [Time::ZERO, Time::seconds(20)]);
        assert_eq!(trace.remarks.iter().map(|remark| remark.count).collect::<Vec<_>>(), [1, 1]);
    }

    #[test]
    fn scaling_changes_when_jobs_come_and_not_how_long_they_run() {
        let job = |at| TraceJob::new(Time::seconds(at), Span::seconds(100), Size::Gpus(2));
        let trace = Trace { jobs: vec![job(0), job(500), job(1000)], ..Trace::default() };
        assert!((trace.load(2) - 0.3).abs() < 1e-9);
        let scaled = trace.scaled_to_load(0.6, 2);
        assert!((scaled.load(2) - 0.6).abs() < 1e-3);
        assert_eq!(scaled.jobs[1].duration, Span::seconds(100));
    }
}
