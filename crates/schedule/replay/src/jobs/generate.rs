//! A load typical of language model clusters, fitted to published summaries.
//!
//! Jobs are of four kinds: evaluation, debugging, fine-tuning and pre-training. Each kind has a share of the
//! jobs, a table of sizes, and log-normal run times truncated at 14 days. The parameters of [`Mixture::SEREN`]
//! were fitted by hand to the row *Seren* of AcmeTrace's `cluster_summary.csv` (InternLM, CC-BY-4.0; 663,813 GPU jobs):
//!
//! | | summary | mixture |
//! |---|---|---|
//! | mean / median run time | 1,414 s / 122 s | 1,400 s / 122 s |
//! | mean / median GPUs | 5.68 / 1 | 5.7 / 1 |
//! | largest job, longest run | 1,024 GPUs, 14 days | the same |
//! | GPU time per job | 32,400 s | 32,000 s |
//! | jobs completed / cancelled / failed | 49.7 / 7.5 / 42.9 % | 49.6 / 7.5 / 42.9 % |
//! | GPU time completed / cancelled / failed | 21.2 / 66.4 / 12.4 % | 21 / 66 / 13 % |
//!
//! A test compares a large sample with the summary. GPU time per job is four times the product of the means:
//! large jobs run long, which is why kinds are needed instead of one distribution. The summary says
//! nothing about the following, which are assumptions: arrivals follow working hours (most at 15:00,
//! a third of that at 03:00, 60 % on weekends); evaluations come in batches of about eight; 120 users
//! in 12 accounts submit with Zipf-distributed frequency; messages between nodes take 5 to 25 % of a step;
//! checkpoints come every 30 minutes (pre-training) or hour (fine-tuning); a third of the gangs of several nodes can
//! run with half or twice their nodes, at the throughput that [`strong_scaling`] gives. Pre-training has QOS `high`, evaluation and debugging `low`; those may be
//! preempted after two hours, as at Meta's research clusters.

use bedplate_gangs::{Elastic, Rates, Span, Time};

use super::{Ending, Size, Trace, TraceJob};
use bedplate_random::Random;

/// What a job is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum JobKind {
    Evaluation,
    Debugging,
    FineTuning,
    PreTraining,
}

/// The kinds of a load, with their parameters.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadMixture {
    kinds: [KindParameters; 4],
    elasticity: Elasticity,
}

/// Which gangs may change their size, and how far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Elasticity {
    /// A third of those of an even number of nodes, from half to twice that.
    Some,
    /// All, from a quarter to four times their nodes, but at least one.
    All,
}

#[derive(Debug, Clone, PartialEq)]
struct KindParameters {
    kind: JobKind,
    /// Share of the jobs.
    share: f64,
    /// GPUs with their weights.
    sizes: &'static [(u32, f64)],
    /// Of the run time, in seconds.
    median: f64,
    /// Standard deviation of the logarithm of the run time.
    spread: f64,
    /// Shares completed, cancelled and failed.
    endings: [f64; 3],
}

const LONGEST: f64 = 14.0 * 86_400.0;

impl LoadMixture {
    /// Fitted to the cluster Seren of Shanghai AI Laboratory.
    pub const SEREN: LoadMixture = LoadMixture {
        kinds: [EVALUATION, DEBUGGING, FINE_TUNING, PRE_TRAINING],
        elasticity: Elasticity::Some,
    };

    /// The fine-tuning and pre-training of [`Mixture::SEREN`] alone, all of it elastic and of one QOS: the kind of load on which
    /// schedulers with elastic sizes are compared (Pollux, Sia).
    pub const TRAINING: LoadMixture = LoadMixture {
        kinds: [
            KindParameters { share: 0.0, ..EVALUATION },
            KindParameters { share: 0.0, ..DEBUGGING },
            FINE_TUNING,
            PRE_TRAINING,
        ],
        elasticity: Elasticity::All,
    };
}

const EVALUATION: KindParameters = KindParameters {
    kind: JobKind::Evaluation,
    share: 0.62,
    sizes: &[(1, 0.85), (2, 0.06), (4, 0.04), (8, 0.05)],
    median: 100.0,
    spread: 1.75,
    endings: [0.504, 0.05, 0.446],
};
const DEBUGGING: KindParameters = KindParameters {
    kind: JobKind::Debugging,
    share: 0.30,
    sizes: &[(1, 0.6), (2, 0.1), (4, 0.08), (8, 0.17), (16, 0.05)],
    median: 110.0,
    spread: 2.52,
    endings: [0.504, 0.05, 0.446],
};
const FINE_TUNING: KindParameters = KindParameters {
    kind: JobKind::FineTuning,
    share: 0.0675,
    sizes: &[(8, 0.55), (16, 0.25), (32, 0.15), (64, 0.05)],
    median: 900.0,
    spread: 1.7,
    endings: [0.45, 0.30, 0.25],
};
const PRE_TRAINING: KindParameters = KindParameters {
    kind: JobKind::PreTraining,
    share: 0.0125,
    sizes: &[(64, 0.35), (128, 0.30), (256, 0.20), (512, 0.10), (1024, 0.05)],
    median: 2_600.0,
    spread: 1.6,
    endings: [0.145, 0.77, 0.085],
};

/// What to generate.
#[derive(Debug, Clone)]
pub struct Generator {
    pub mixture: LoadMixture,
    pub jobs: usize,
    /// Of the window of submissions; `None` keeps run times as fitted and derives the window from
    /// jobs and load. A given window scales run times to meet the load.
    pub days: Option<f64>,
    /// Work over capacity in the window of submissions.
    pub load: f64,
    /// Of the cluster that the load is for: GPUs in total, and per node.
    pub gpus: u32,
    pub gpus_per_node: u16,
    pub seed: u64,
}

/// No job is larger than this share of the cluster.
const LARGEST_SHARE: u32 = 4;
/// Share of a step that neither shrinks with more nodes nor depends on where they are.
const FIXED_BESIDE_MESSAGES: f64 = 0.02;
const USERS: usize = 120;
const ACCOUNTS: usize = 12;
const MEAN_BATCH: f64 = 8.0;
/// Separates these draws from others of the same seed.
const STREAM: u64 = 0x6765_6e65_7261_7465;

impl Generator {
    pub fn generate(&self) -> Trace {
        let mut random = Random::stream(self.seed ^ STREAM, 0);
        let mut trace = Trace::default();
        let people = People::new(&mut trace);
        let mut jobs = Vec::with_capacity(self.jobs);
        let mut batches = Vec::new();
        while jobs.len() < self.jobs {
            batches.push(self.batch(&mut random, &people, &mut trace, &mut jobs));
        }
        let work: f64 = jobs.iter().map(TraceJob::gpu_time).sum();
        let capacity_per_ms = f64::from(self.gpus.max(1)) * self.load.max(1e-6);
        let window = self.days.map_or(work / capacity_per_ms, |days| days * Span::days(1).0 as f64);
        if self.days.is_some() {
            let factor = window * capacity_per_ms / work.max(1.0);
            jobs.iter_mut().for_each(|job| job.duration = job.duration.times(factor).max(Span::seconds(1)));
        }
        let mut arrived = jobs.iter_mut();
        for (members, at) in batches.iter().zip(arrivals(batches.len(), window, &mut random)) {
            arrived.by_ref().take(*members).for_each(|job| job.submit = at);
        }
        trace.jobs = jobs;
        for (index, job) in trace.jobs.iter_mut().enumerate() {
            job.name = index.to_string();
        }
        trace.finish()
    }

    /// One job, or for evaluation several identical ones, of one user at one time; returns their number.
    fn batch(
        &self,
        random: &mut Random,
        people: &People,
        trace: &mut Trace,
        jobs: &mut Vec<TraceJob>,
    ) -> usize {
        // A batch brings several jobs, so its kind is drawn that much less often.
        let weights: Vec<(usize, f64)> = self.mixture.kinds.iter().enumerate().map(weight).collect();
        let parameters = &self.mixture.kinds[random.choose(&weights)];
        let (user, account) = people.choose(random);
        let qos = trace.qos.place(match (parameters.kind, self.mixture.elasticity) {
            (JobKind::PreTraining, Elasticity::Some) => "high",
            (JobKind::FineTuning | JobKind::PreTraining, _) => "normal",
            (JobKind::Evaluation | JobKind::Debugging, _) => "low",
        });
        let members = match parameters.kind {
            JobKind::Evaluation => random.exponential(MEAN_BATCH).ceil() as usize,
            _ => 1,
        };
        let members = members.clamp(1, self.jobs - jobs.len());
        for _ in 0..members {
            jobs.push(TraceJob { user, account, qos, ..self.job(parameters, random) });
        }
        members
    }

    fn job(&self, parameters: &KindParameters, random: &mut Random) -> TraceJob {
        let most = (self.gpus / LARGEST_SHARE).max(1);
        let gpus = random.choose(parameters.sizes).min(most);
        let (nodes, per_node) = Size::Gpus(gpus).shape(self.gpus_per_node);
        let seconds = (parameters.median * (parameters.spread * random.normal()).exp()).min(LONGEST);
        let size = Size::Nodes { nodes, gpus_per_node: per_node };
        let mut job = TraceJob::new(Time::ZERO, Span((seconds.max(1.0) * 1000.0) as u64), size);
        let [completed, cancelled, failed] = parameters.endings;
        job.ending = random.choose(&[
            (Ending::Completed, completed),
            (Ending::Cancelled, cancelled),
            (Ending::Failed, failed),
        ]);
        if nodes > 1 {
            job.scale_out_share = random.between(0.05, 0.25);
            job.fixed_share = job.scale_out_share + FIXED_BESIDE_MESSAGES;
        }
        job.elastic = self.elastic(nodes, random);
        if let Some(elastic) = job.elastic {
            // A gang of one node that may have more has messages only then.
            let share = if nodes > 1 { job.fixed_share } else { random.between(0.05, 0.25) };
            job.rates = Some(strong_scaling(elastic, nodes, share));
        }
        match parameters.kind {
            JobKind::PreTraining => job.checkpoint_every = Some(Span::minutes(30)),
            JobKind::FineTuning => job.checkpoint_every = Some(Span::hours(1)),
            JobKind::Evaluation | JobKind::Debugging => job.minimum_run_time = Span::hours(2),
        }
        job
    }

    fn elastic(&self, nodes: u32, random: &mut Random) -> Option<Elastic> {
        match self.mixture.elasticity {
            Elasticity::Some => {
                let can_halve = nodes > 1 && nodes.is_multiple_of(2) && random.unit() < 1.0 / 3.0;
                can_halve.then_some(Elastic { min: nodes / 2, max: nodes * 2, step: nodes / 2 })
            }
            Elasticity::All => {
                let step = (nodes / 4).max(1);
                let min = if nodes.is_multiple_of(step) { step } else { nodes % step };
                Some(Elastic { min, max: nodes * 4, step })
            }
        }
    }
}

/// Throughput by size with an unchanged global batch: a step takes `c/n + m(n)`, where the computation `c` is shared by the
/// `n` nodes and messages between nodes take `m(n)`, in proportion to `(1 - 1/n)(1 + 0.1 log2 n)`. The first factor is what each node of
/// a ring sends and receives in an all-reduce of the gradients, whose size does not depend on `n`; the second stands for stragglers, latency and
/// shared uplinks, a tenth for each doubling (an assumption). Messages are `share` of a step at the requested size, or with two nodes where one is
/// requested. So their share grows with every node, and nodes bring less and less.
fn strong_scaling(elastic: Elastic, asked: u32, share: f64) -> Rates {
    let messages = |nodes: f64| (1.0 - 1.0 / nodes) * (1.0 + 0.1 * nodes.log2());
    let known = f64::from(asked.max(2));
    let step = |nodes: f64| (1.0 - share) * known / nodes + share * messages(nodes) / messages(known);
    let rate = |nodes: u32| (nodes, step(f64::from(asked)) / step(f64::from(nodes)));
    Rates::new(elastic.sizes().map(rate).collect()).expect("sizes ascend and steps take time")
}

fn weight((place, parameters): (usize, &KindParameters)) -> (usize, f64) {
    // The mean of an exponential rounded up: 1/(1 - e^(-1/m)).
    let members = match parameters.kind {
        JobKind::Evaluation => 1.0 / (1.0 - (-1.0 / MEAN_BATCH).exp()),
        _ => 1.0,
    };
    (place, parameters.share / members)
}

/// Sorted times in a window, denser in working hours. The first is zero, the last the end.
fn arrivals(count: usize, window: f64, random: &mut Random) -> Vec<Time> {
    let hour = Span::hours(1).0 as f64;
    let mut reached = vec![0.0];
    let hours = (window / hour).ceil().max(1.0) as usize;
    for index in 0..hours {
        let length = (window - index as f64 * hour).min(hour);
        reached.push(reached[index] + zeal(index) * length);
    }
    let total = reached[hours];
    let mut times: Vec<Time> = (0..count)
        .map(|_| {
            let wanted = random.unit() * total;
            let index = reached.partition_point(|mass| *mass < wanted).clamp(1, hours) - 1;
            let within = (wanted - reached[index]) / zeal(index);
            Time((index as f64 * hour + within).min(window) as u64)
        })
        .collect();
    times.sort_unstable();
    if let [first, .., last] = &mut times[..] {
        (*first, *last) = (Time::ZERO, Time(window as u64));
    }
    times
}

/// Arrival rate in an hour, counted from Monday midnight, relative to the mean.
fn zeal(hour: usize) -> f64 {
    let of_day = 1.0 + 0.5 * (std::f64::consts::TAU * ((hour % 24) as f64 + 0.5 - 9.0) / 24.0).sin();
    let is_weekend = (hour / 24) % 7 >= 5;
    if is_weekend { of_day * 0.6 } else { of_day }
}

/// Users with their accounts, and how often each submits.
struct People {
    weighted: Vec<((u32, u32), f64)>,
}

impl People {
    fn new(trace: &mut Trace) -> Self {
        let mut weighted = Vec::with_capacity(USERS);
        for user in 0..USERS {
            let account = trace.accounts.place(&format!("team{:02}", user % ACCOUNTS + 1));
            let user_place = trace.users.place(&format!("user{:03}", user + 1));
            weighted.push(((user_place, account), 1.0 / (user + 1) as f64));
        }
        Self { weighted }
    }

    fn choose(&self, random: &mut Random) -> (u32, u32) {
        random.choose(&self.weighted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generator(jobs: usize) -> Generator {
        let (gpus, gpus_per_node, seed) = (80_000, 8, 1);
        Generator { mixture: LoadMixture::SEREN, jobs, days: None, load: 0.85, gpus, gpus_per_node, seed }
    }

    /// Row Seren of AcmeTrace's cluster_summary.csv.
    #[test]
    fn a_large_sample_looks_like_the_published_summary() {
        let trace = generator(400_000).generate();
        let count = trace.jobs.len() as f64;
        let check = |what: &str, found: f64, published: f64, tolerance: f64| {
            let ratio = found / published;
            assert!((ratio - 1.0).abs() < tolerance, "{what}: {found} against {published}");
        };
        let mut runs: Vec<f64> = trace.jobs.iter().map(|job| job.duration.as_seconds()).collect();
        runs.sort_by(f64::total_cmp);
        check("mean run time", runs.iter().sum::<f64>() / count, 1414.3, 0.10);
        check("median run time", runs[runs.len() / 2], 122.0, 0.05);
        let mut gpus: Vec<f64> = trace.jobs.iter().map(TraceJob::gpus).collect();
        gpus.sort_by(f64::total_cmp);
        check("mean GPUs", gpus.iter().sum::<f64>() / count, 5.68, 0.05);
        assert_eq!((gpus[gpus.len() / 2], gpus[gpus.len() - 1]), (1.0, 1024.0));
        check("GPU time per job", trace.gpu_time() / 1000.0 / count, 32_405.0, 0.10);
        for (ending, of_jobs, of_time) in [
            (Ending::Completed, 0.497, 0.212),
            (Ending::Cancelled, 0.075, 0.664),
            (Ending::Failed, 0.429, 0.124),
        ] {
            let own = || trace.jobs.iter().filter(|job| job.ending == ending);
            check(ending.name(), own().count() as f64 / count, of_jobs, 0.05);
            check(
                ending.name(),
                own().map(TraceJob::gpu_time).sum::<f64>() / trace.gpu_time(),
                of_time,
                0.10,
            );
        }
    }

    #[test]
    fn the_load_is_met_with_and_without_a_window() {
        for days in [None, Some(3.0)] {
            let trace = Generator { days, ..generator(20_000) }.generate();
            assert!((trace.load(80_000) - 0.85).abs() < 0.01, "{}", trace.load(80_000));
        }
        let week = Generator { days: Some(7.0), ..generator(20_000) }.generate();
        assert_eq!(week.window(), Span::days(7));
        let at_night = |job: &&TraceJob| (job.submit.0 / Span::hours(1).0) % 24 < 6;
        let nights = week.jobs.iter().filter(at_night).count();
        assert!((2000..4000).contains(&nights), "a quarter of the hours, less of the jobs: {nights}");
    }

    #[test]
    fn every_node_brings_less_than_the_one_before_it() {
        let trace = Generator { mixture: LoadMixture::TRAINING, ..generator(2_000) }.generate();
        for job in &trace.jobs {
            let (elastic, rates) = (job.elastic.expect("all are"), job.rates.as_ref().expect("all have"));
            let Size::Nodes { nodes, .. } = job.size else { panic!("sizes are in nodes") };
            assert!(elastic.allows(nodes) && (rates.at(nodes) - 1.0).abs() < 1e-12);
            let per_node: Vec<f64> = elastic.sizes().map(|size| rates.at(size) / f64::from(size)).collect();
            assert!(per_node.windows(2).all(|pair| pair[1] < pair[0]), "{elastic:?} {per_node:?}");
            let gains: Vec<f64> = rates.points().windows(2).map(|pair| pair[1].1 - pair[0].1).collect();
            assert!(gains.windows(2).all(|pair| pair[1] < pair[0] + 1e-12), "{elastic:?} {gains:?}");
            assert!(rates.at(nodes * 2) < 1.9, "the double is not twice as fast");
        }
        assert!(trace.jobs.iter().all(|job| trace.qos.name(job.qos) == "normal"));
    }

    #[test]
    fn equal_seeds_give_equal_loads_and_others_do_not() {
        let of = |seed| Generator { seed, ..generator(500) }.generate();
        assert_eq!(of(5), of(5));
        assert_ne!(of(5), of(6));
        assert_eq!(of(5).jobs.len(), 500);
    }
}
