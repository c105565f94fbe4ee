//! How well a policy did, as metrics defined here.
//!
//! * *wait*: from submission to the first start.
//! * *bounded slowdown*: from submission to the end, over the job's own run time but at least ten
//!   seconds, and never below 1. Slow placements, restarts and small sizes count against it.
//! * *utilisation*: GPU time held in the window of submissions, over all GPUs for that window.
//! * *goodput*: GPU time held for work that was kept, over all GPU time held. What a slow placement, or a size
//!   above the requested one, takes beyond the time with close nodes at the requested size does not count.
//! * *delivered*: work that was kept, in GPU time at the requested size, at the rate at which GPU time was held
//!   in the window, over all GPUs. Slowing jobs down keeps more GPUs busy but does not raise this. An
//!   elastic gang that runs smaller delivers the same work for less GPU time, so this can exceed utilisation.
//! * *fairness*: Jain's index (Σx)²/(n Σx²) over the mean bounded slowdowns of users, or of accounts where
//!   the trace has no users: 1 when all are equal, 1/n when one bears it all.
//! * *fragmentation*: share of the free GPUs on nodes partly in use, on average over the window.

use std::collections::BTreeMap;

use bedplate_gangs::{Span, Time};

use super::simulate::End;
use super::{JobRecord, Outcome, Trace, TraceJob};

#[derive(Debug, Clone, PartialEq, Default)]
pub struct ReplaySummary {
    pub jobs: usize,
    /// Jobs that did all their work.
    pub ended: usize,
    pub timed_out: usize,
    pub given_up: usize,
    pub rejected: usize,
    /// Jobs that had not ended when the replay did.
    pub open: usize,
    /// Work of the jobs that the cluster can run, over what it can do in the window of submissions.
    pub load: f64,
    pub wait: Distribution,
    pub bounded_slowdown: f64,
    pub by_size: Vec<ClassSummary>,
    pub utilisation: f64,
    pub goodput: f64,
    pub delivered: f64,
    pub fragmentation: f64,
    /// None where the trace names neither users nor accounts.
    pub fairness: Option<f64>,
    pub gpu_time: GpuTime,
    pub preemptions: u64,
    pub swaps: u64,
    pub requeues: u64,
    pub resizes: u64,
    pub node_failures: u64,
    pub makespan: Span,
}

/// Mean and percentiles of spans of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Distribution {
    pub mean: Span,
    pub p50: Span,
    pub p90: Span,
    pub p99: Span,
    pub longest: Span,
}

/// GPU milliseconds, by outcome.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct GpuTime {
    pub held: f64,
    /// For work that was kept, at most what it takes with close nodes at the requested size.
    pub useful: f64,
    /// What the kept work takes at the requested size; an elastic gang that ran smaller held less.
    pub work: f64,
    /// Work done twice and restarts, after failures.
    pub lost_to_failures: f64,
    pub lost_to_preemption: f64,
    pub lost_to_resizing: f64,
}

impl GpuTime {
    /// What slow placements, large elastic sizes and the stopping of gangs cost.
    pub fn slowed(&self) -> f64 {
        let known = self.useful + self.lost_to_failures + self.lost_to_preemption + self.lost_to_resizing;
        self.held - known
    }
}

/// Jobs by requested GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobClass {
    pub name: &'static str,
    pub most_gpus: u32,
}

impl JobClass {
    pub const ALL: [JobClass; 6] = [
        JobClass { name: "no GPU", most_gpus: 0 },
        JobClass { name: "1", most_gpus: 1 },
        JobClass { name: "2-8", most_gpus: 8 },
        JobClass { name: "9-64", most_gpus: 64 },
        JobClass { name: "65-512", most_gpus: 512 },
        JobClass { name: ">512", most_gpus: u32::MAX },
    ];

    fn of(job: &TraceJob) -> usize {
        let gpus = job.gpus().ceil();
        Self::ALL.iter().position(|class| gpus <= f64::from(class.most_gpus)).unwrap_or(Self::ALL.len() - 1)
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct ClassSummary {
    pub class: JobClass,
    pub jobs: usize,
    pub wait: Distribution,
    pub bounded_slowdown: f64,
}

impl ReplaySummary {
    pub fn of(trace: &Trace, outcome: &Outcome) -> Self {
        let count = |end: End| outcome.records.iter().filter(|record| record.end == end).count();
        let judged = Judged::all(trace, outcome);
        let gpu_time = gpu_time(trace, &outcome.records);
        let capacity = f64::from(outcome.gpus.max(1)) * (outcome.window.0 as f64).max(1.0);
        let utilisation = outcome.held_in_window / capacity;
        let goodput = gpu_time.useful / gpu_time.held.max(1.0);
        Self {
            jobs: trace.jobs.len(),
            ended: count(End::Worked),
            timed_out: count(End::TimedOut),
            given_up: count(End::GivenUp),
            rejected: count(End::Rejected),
            open: count(End::Open),
            load: possible_work(trace, outcome) / capacity,
            wait: Distribution::of(waits(&judged)),
            bounded_slowdown: mean_slowdown(&judged),
            by_size: by_size(&judged),
            utilisation,
            goodput,
            delivered: utilisation * gpu_time.work / gpu_time.held.max(1.0),
            fragmentation: outcome.series.mean_fragmentation(),
            fairness: fairness(trace, &judged),
            gpu_time,
            preemptions: outcome.preemptions,
            swaps: outcome.swaps,
            requeues: outcome.requeues,
            resizes: outcome.resizes,
            node_failures: outcome.node_failures,
            makespan: outcome.makespan,
        }
    }
}

impl Outcome {
    /// Waits in ascending order, for a cumulative curve.
    pub fn sorted_waits(&self, trace: &Trace) -> Vec<Span> {
        let mut waits = waits(&Judged::all(trace, self));
        waits.sort_unstable();
        waits
    }
}

/// A job that started and left, with its metrics.
struct Judged<'a> {
    job: &'a TraceJob,
    wait: Span,
    slowdown: f64,
}

/// Jobs shorter than this count as long as this, so that they do not dominate the mean.
const SHORTEST: Span = Span::seconds(10);

impl<'a> Judged<'a> {
    fn all(trace: &'a Trace, outcome: &Outcome) -> Vec<Self> {
        trace.jobs.iter().zip(&outcome.records).filter_map(|(job, record)| Self::new(job, record)).collect()
    }

    fn new(job: &'a TraceJob, record: &JobRecord) -> Option<Self> {
        let (start, end): (Time, Time) = (record.first_start?, record.ended?);
        let turnaround = end.since(job.submit).as_seconds();
        let slowdown = (turnaround / job.duration.max(SHORTEST).as_seconds()).max(1.0);
        Some(Self { job, wait: start.since(job.submit), slowdown })
    }
}

fn waits(judged: &[Judged<'_>]) -> Vec<Span> {
    judged.iter().map(|each| each.wait).collect()
}

fn mean_slowdown<'a>(judged: impl IntoIterator<Item = &'a Judged<'a>>) -> f64 {
    let (mut sum, mut count) = (0.0, 0.0f64);
    for each in judged {
        sum += each.slowdown;
        count += 1.0;
    }
    sum / count.max(1.0)
}

impl Distribution {
    pub fn of(mut spans: Vec<Span>) -> Self {
        if spans.is_empty() {
            return Self::default();
        }
        spans.sort_unstable();
        // The nearest rank: the smallest value that the given share does not exceed.
        let rank = |percent: usize| spans[(spans.len() * percent).div_ceil(100).max(1) - 1];
        let sum: u128 = spans.iter().map(|span| u128::from(span.0)).sum();
        Self {
            mean: Span((sum / spans.len() as u128) as u64),
            p50: rank(50),
            p90: rank(90),
            p99: rank(99),
            longest: rank(100),
        }
    }
}

fn by_size(judged: &[Judged<'_>]) -> Vec<ClassSummary> {
    let mut classes = Vec::new();
    for (place, class) in JobClass::ALL.into_iter().enumerate() {
        let of_class = || judged.iter().filter(move |each| JobClass::of(each.job) == place);
        let spans: Vec<Span> = of_class().map(|each| each.wait).collect();
        if !spans.is_empty() {
            classes.push(ClassSummary {
                class,
                jobs: spans.len(),
                wait: Distribution::of(spans),
                bounded_slowdown: mean_slowdown(of_class()),
            });
        }
    }
    classes
}

fn possible_work(trace: &Trace, outcome: &Outcome) -> f64 {
    let jobs = trace.jobs.iter().zip(&outcome.records).filter(|(_, record)| record.end != End::Rejected);
    jobs.fold(0.0, |sum, (job, _)| sum + job.gpu_time())
}

fn gpu_time(trace: &Trace, records: &[JobRecord]) -> GpuTime {
    let mut sum = GpuTime::default();
    for (job, record) in trace.jobs.iter().zip(records) {
        sum.held += record.held;
        sum.useful += record.useful;
        sum.work += record.done * job.gpus();
        sum.lost_to_failures += record.lost_to_failures;
        sum.lost_to_preemption += record.lost_to_preemption;
        sum.lost_to_resizing += record.lost_to_resizing;
    }
    sum
}

fn fairness(trace: &Trace, judged: &[Judged<'_>]) -> Option<f64> {
    let has_users = trace.users.iter().len() > 1;
    if !has_users && trace.accounts.iter().len() <= 1 {
        return None;
    }
    let owner = |job: &TraceJob| if has_users { job.user } else { job.account };
    let mut owners: BTreeMap<u32, (f64, f64)> = BTreeMap::new();
    for each in judged {
        let (sum, count) = owners.entry(owner(each.job)).or_default();
        *sum += each.slowdown;
        *count += 1.0;
    }
    Some(jain(&owners.values().map(|(sum, count)| sum / count).collect::<Vec<_>>()))
}

/// Jain, Chiu and Hawe 1984.
fn jain(values: &[f64]) -> f64 {
    let sum: f64 = values.iter().sum();
    let squares: f64 = values.iter().map(|value| value * value).sum();
    if squares == 0.0 { 1.0 } else { sum * sum / (values.len() as f64 * squares) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_ranks() {
        let spans = (1..=200).rev().map(Span).collect();
        let found = Distribution::of(spans);
        let expected = Distribution {
            mean: Span(100),
            p50: Span(100),
            p90: Span(180),
            p99: Span(198),
            longest: Span(200),
        };
        assert_eq!(found, expected);
        assert_eq!(Distribution::of(vec![Span(7)]).p50, Span(7));
        assert_eq!(Distribution::of(Vec::new()), Distribution::default());
    }

    #[test]
    fn fairness_is_one_when_all_fare_alike_and_a_share_when_one_bears_it_all() {
        assert!((jain(&[3.0, 3.0, 3.0]) - 1.0).abs() < 1e-12);
        assert!((jain(&[1.0, 0.0, 0.0, 0.0]) - 0.25).abs() < 1e-12);
        assert!((jain(&[1.0, 3.0]) - 16.0 / 20.0).abs() < 1e-12);
    }
}
