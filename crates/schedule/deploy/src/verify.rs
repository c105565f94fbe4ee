//! Requests replayed through a plan: whether it holds, and if not, which limit fails.

use bedplate_batching::{OptionsFlaw, RouterOptions};
use bedplate_perf::PerfError;
use bedplate_replay::requests::{
    Arrangement, Arrivals, Disaggregated, Fate, Fleet, GeneratedLoad, Objectives, Outcome, Pool,
    RequestRecord, Traffic, picoseconds, seconds, simulate,
};

use crate::engine::TimedReplica;
use crate::estimate::{LimitBound, Steady};
use crate::{Need, Plan, Supply, Workers};

/// Requests of a replay per request in flight. The first quarter fills the replicas and is not judged.
const LIFETIMES: f64 = 8.0;
const WARM_UP: usize = 4;
const FEWEST: f64 = 2_000.0;
const MOST: f64 = 100_000.0;
/// Seconds between the first and the last arrival; the clock of a replay ends at less than twice as many. Requests that would take
/// longer to arrive come faster, and are still too far apart to meet: 83 minutes.
const LONGEST: f64 = 1e7;

/// A replay of a plan and its result.
#[derive(Debug, Clone)]
pub struct Shown {
    pub outcome: Outcome,
    /// Share of the judged requests that met every objective.
    pub share: f64,
    /// The objective that most requests missed, if any did; otherwise the rate, if that was missed.
    pub missed: Option<LimitBound>,
    /// Whether requests were answered as fast as they arrived.
    pub keeps_up: bool,
}

/// The engines of a plan, ready to be replayed.
pub struct ReplayStage<'a> {
    need: &'a Need<'a>,
    supply: &'a Supply,
    plan: Plan,
    prefill: Option<TimedReplica>,
    decode: TimedReplica,
}

impl<'a> ReplayStage<'a> {
    pub fn new(need: &'a Need<'a>, supply: &'a Supply, plan: Plan) -> Result<Self, PerfError> {
        let timed = |workers: &Workers, gpus: &Supply| -> Result<TimedReplica, PerfError> {
            Ok(TimedReplica::new(workers.layout.replica(need, gpus)?, need.load.usual_context()))
        };
        let prefill = match &plan {
            Plan::Aggregated(_) => None,
            Plan::Disaggregated { prefill, .. } => Some(timed(prefill, supply.of_prompts())?),
        };
        Ok(Self { need, supply, plan, prefill, decode: timed(plan.decoders(), supply)? })
    }

    /// The plan as input of a replay.
    pub fn fleet(&self) -> Fleet<'_> {
        let decode = self.pool(&self.decode, self.plan.decoders(), self.supply);
        let mut way = self.decode.way(self.need.load.input, self.usual_step());
        let arrangement = match (&self.plan, &self.prefill) {
            (Plan::Disaggregated { prefill, .. }, Some(timed)) => {
                way += picoseconds(self.need.constants.hand_off);
                Arrangement::Disaggregated(Box::new(Disaggregated {
                    prefill: self.pool(timed, prefill, self.supply.of_prompts()),
                    transfer: timed.transfer(&self.decode, self.plan.link(self.supply)),
                    decode: decode.clone(),
                }))
            }
            _ => Arrangement::Aggregated(decode.clone()),
        };
        Fleet { arrangement, way, objectives: self.need.objectives, ..Fleet::aggregated(decode) }
    }

    fn pool<'s>(&'s self, timed: &'s TimedReplica, workers: &Workers, gpus: &Supply) -> Pool<'s> {
        Pool {
            scheduler: timed.scheduler(workers.max_seqs, self.need.load.longest_prompt()),
            dollars_per_hour: self.dollars_per_replica(workers, gpus).unwrap_or(0.0),
            router: RouterOptions { seed: self.need.options.seed, ..RouterOptions::default() },
            ..Pool::new(workers.replicas, timed)
        }
    }

    /// What each replica bears of the price of its machines, whose idle GPUs are paid for too.
    fn dollars_per_replica(&self, workers: &Workers, gpus: &Supply) -> Option<f64> {
        let (dollars, sharing) = match self.supply.prompts {
            Some(_) => (gpus.dollars_of(&Plan::Aggregated(*workers)), workers.gpus()),
            None => (gpus.dollars_of(&self.plan), self.plan.gpus()),
        };
        Some(dollars? / f64::from(sharing.max(1)) * f64::from(workers.layout.gpus()))
    }

    /// A decode step at the load that each replica gets.
    fn usual_step(&self) -> f64 {
        let steady = Steady { replica: self.decode.replica(), load: self.need.load };
        let workers = self.plan.decoders();
        let share = self.need.load.per_second / f64::from(workers.replicas.max(1));
        let tokens = f64::from(self.need.load.output);
        let in_flight = |step: f64| (share * tokens * step).clamp(1.0, f64::from(workers.max_seqs.max(1)));
        steady.decode(in_flight(steady.decode(in_flight(steady.decode(1.0)))))
    }

    /// Simulates the load for a few request lifetimes of `end_to_end` seconds each.
    pub fn play(&self, end_to_end: f64, seed: u64) -> Result<Shown, OptionsFlaw> {
        let load = &self.need.load;
        let requests = (LIFETIMES * load.per_second * end_to_end).clamp(FEWEST, MOST) as u32;
        let per_second = load.per_second.max(f64::from(requests) / LONGEST);
        let traffic = match self.need.traced {
            Some(traced) => Traffic::Trace(traced.drawn(requests, per_second, seed)),
            None => Traffic::Generated(self.generated(requests, per_second, seed)),
        };
        let outcome = simulate(traffic, &self.fleet())?;
        Ok(Shown::judge(outcome, &self.need.objectives, end_to_end))
    }

    fn generated(&self, requests: u32, per_second: f64, seed: u64) -> GeneratedLoad {
        let load = &self.need.load;
        let (prompt, output) = load.lengths();
        GeneratedLoad {
            requests,
            arrivals: Arrivals::Poisson { per_second },
            prompt,
            output,
            shared: load.shared,
            seed,
            ..GeneratedLoad::default()
        }
    }
}

impl Shown {
    fn judge(outcome: Outcome, objectives: &Objectives, end_to_end: f64) -> Self {
        let keeps_up = keeps_up(&outcome, end_to_end);
        let judged = &outcome.records[outcome.records.len() / WARM_UP..];
        let share = |objectives: Objectives| {
            let good = judged.iter().filter(|record| record.is_good(&objectives)).count();
            good as f64 / judged.len().max(1) as f64
        };
        let none = Objectives::default();
        let single = [
            (LimitBound::Ttft, Objectives { ttft: objectives.ttft, ..none }),
            (LimitBound::Itl, Objectives { itl: objectives.itl, ..none }),
            (LimitBound::EndToEnd, Objectives { end_to_end: objectives.end_to_end, ..none }),
        ];
        let shares = single.map(|(bound, only)| (bound, share(only)));
        let worst = shares.into_iter().min_by(|a, b| a.1.total_cmp(&b.1));
        let missed = worst.filter(|(_, share)| *share < 1.0).map(|(bound, _)| bound);
        let missed = missed.or((!keeps_up).then_some(LimitBound::Rate));
        Self { share: share(*objectives), missed, keeps_up, outcome }
    }

    /// Whether enough requests met the objectives and the queue did not keep growing.
    pub fn holds(&self, share: f64) -> bool {
        self.keeps_up && self.share >= share
    }

    /// Requests after the replicas had filled.
    pub fn judged(&self) -> impl Iterator<Item = &RequestRecord> {
        let skipped = self.outcome.records.len() / WARM_UP;
        self.outcome.records.iter().skip(skipped).filter(|record| record.fate == Fate::Finished)
    }
}

/// After the last arrival a fleet that keeps up is done within about two lifetimes; one that does not has a queue
/// as long as it fell behind.
fn keeps_up(outcome: &Outcome, end_to_end: f64) -> bool {
    const SLACK: f64 = 1.05;
    let arrived = |record: Option<&RequestRecord>| record.map_or(0, |record| record.arrived);
    let span = arrived(outcome.records.last()) - arrived(outcome.records.first());
    seconds(outcome.duration) <= SLACK * seconds(span) + 2.0 * end_to_end
}
