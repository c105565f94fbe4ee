//! The cheapest plan that holds: candidates by estimated cost, each verified by replay.

use std::cmp::Ordering;

use bedplate_perf::serving::WeightFormat;
use bedplate_transformer::Precision;

use crate::candidate::{Candidate, Fitting, candidates, fitting};
use crate::estimate::Bound;
use crate::front::front;
use crate::refuse;
use crate::{DeployError, FrontPoint, Need, Plan, Shown, Stage, Subject, Supply, Tried, Verdict, Workers};

/// The result of a search.
#[derive(Debug, Clone)]
pub struct Answer {
    pub best: Held,
    /// Other plans that a replay showed to hold, cheapest first.
    pub others: Vec<Held>,
    pub front: Vec<FrontPoint>,
    /// Everything tried, with its verdict.
    pub tried: Vec<Tried>,
    pub replays: u32,
}

/// A plan that a replay showed to hold.
#[derive(Debug, Clone)]
pub struct Held {
    /// Index of the supply.
    pub supply: usize,
    pub plan: Plan,
    pub shown: Shown,
    pub dollars_per_hour: Option<f64>,
}

/// Searches the supplies for the cheapest plan that holds the objectives at the rate.
pub fn search(need: &Need<'_>, supplies: &[Supply]) -> Result<Answer, DeployError> {
    refuse::check(need, supplies)?;
    let mut tried = Vec::new();
    let fitting = fitting(need, supplies, &mut tried);
    if fitting.is_empty() {
        return Err(refuse::does_not_fit(need, supplies, &tried));
    }
    let mut candidates = candidates(need, supplies, &fitting, &mut tried);
    candidates.sort_by(|a, b| {
        a.cost(supplies).order(&b.cost(supplies)).then(preference(&a.plan).cmp(&preference(&b.plan)))
    });
    let mut hunt = Hunt { need, supplies, held: Vec::new(), tried, replays: 0 };
    for candidate in &candidates {
        hunt.consider(candidate);
    }
    hunt.into_answer(&fitting, &candidates)
}

/// What a plan costs: dollars, or GPUs where no price is known. Plans with a price come first.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Cost {
    is_unpriced: bool,
    amount: f64,
}

impl Cost {
    fn of(plan: &Plan, supply: &Supply) -> Self {
        let dollars = supply.dollars_per_hour(plan.gpus());
        Self { is_unpriced: dollars.is_none(), amount: dollars.unwrap_or(f64::from(plan.gpus())) }
    }

    fn order(&self, other: &Self) -> Ordering {
        self.is_unpriced.cmp(&other.is_unpriced).then(self.amount.total_cmp(&other.amount))
    }
}

impl Held {
    /// Cheaper first, then wider formats, then shorter requests.
    fn order(&self, other: &Self, supplies: &[Supply]) -> Ordering {
        let cost = |held: &Self| Cost::of(&held.plan, &supplies[held.supply]);
        let formats = |held: &Self| {
            let (weights, kv, ..) = preference(&held.plan);
            (weights, kv)
        };
        let length = |held: &Self| held.shown.outcome.end_to_end.mean;
        cost(self)
            .order(&cost(other))
            .then_with(|| formats(self).cmp(&formats(other)))
            .then_with(|| length(self).cmp(&length(other)))
    }
}

impl Candidate {
    fn cost(&self, supplies: &[Supply]) -> Cost {
        Cost::of(&self.plan, &supplies[self.supply])
    }
}

/// Among equals in cost: wide weights first, then wide KV, then one pool, then few GPUs per replica.
fn preference(plan: &Plan) -> (u8, u8, u8, u32) {
    let cut = plan.decoders().cut;
    let weights = match cut.weights {
        WeightFormat::Bf16 => 0,
        WeightFormat::Fp8 => 1,
        WeightFormat::Fp4 => 2,
        WeightFormat::Int4 => 3,
    };
    let pools = u8::from(matches!(plan, Plan::Disaggregated { .. }));
    (weights, u8::from(cut.kv != Precision::Bf16), pools, cut.gpus())
}

struct Hunt<'a> {
    need: &'a Need<'a>,
    supplies: &'a [Supply],
    held: Vec<Held>,
    tried: Vec<Tried>,
    replays: u32,
}

/// The result of two replays.
enum Showing {
    Holds,
    /// With the limit that most requests missed.
    Misses(Option<Bound>),
}

/// How often a plan is changed by one replica before the search gives up.
const MOST_CHANGES: u32 = 4;

impl Hunt<'_> {
    fn consider(&mut self, candidate: &Candidate) {
        if let Some(verdict) = self.is_hopeless(candidate) {
            self.note(candidate.supply, candidate.plan, verdict);
            return;
        }
        match self.show(candidate, candidate.plan) {
            Showing::Holds => self.shrink(candidate, candidate.plan),
            Showing::Misses(bound) => self.grow(candidate, bound),
        }
    }

    /// Why a candidate need not be replayed.
    fn is_hopeless(&self, candidate: &Candidate) -> Option<Verdict> {
        let supply = &self.supplies[candidate.supply];
        if self.replays >= self.need.options.most_replays {
            return Some(Verdict::NotReplayed);
        }
        let best = self.best()?;
        let known = Cost::of(&best.plan, &self.supplies[best.supply]);
        let least = smaller(&candidate.plan).pop().unwrap_or(candidate.plan);
        let gpus = candidate.plan.gpus();
        match Cost::of(&least, supply).order(&known) {
            Ordering::Greater => {
                Some(Verdict::Costlier { gpus, dollars_per_hour: supply.dollars_per_hour(gpus) })
            }
            _ if preference(&candidate.plan) < preference(&best.plan) => None,
            // One replica less would have to hold to be cheaper; the estimate is rarely that far off.
            _ if candidate.cost(self.supplies).order(&known) == Ordering::Less => None,
            _ => Some(Verdict::NotPreferred),
        }
    }

    fn best(&self) -> Option<&Held> {
        self.held.iter().min_by(|a, b| a.order(b, self.supplies))
    }

    fn note(&mut self, supply: usize, plan: Plan, verdict: Verdict) {
        self.tried.push(Tried { supply, what: Subject::Plan(plan), verdict });
    }

    /// Replays a plan with two seeds.
    fn show(&mut self, candidate: &Candidate, plan: Plan) -> Showing {
        let supply = &self.supplies[candidate.supply];
        let stage = Stage::new(self.need, supply, plan).expect("a candidate's cuts are legal");
        let seed = self.need.options.seed;
        let mut kept: Option<Shown> = None;
        for seed in [seed, seed.wrapping_add(1)] {
            self.replays += 1;
            let shown = stage.play(candidate.end_to_end, seed).expect("a candidate's settings are sound");
            if !shown.holds(self.need.options.share) {
                let (share, bound) = (shown.share, shown.missed);
                self.note(candidate.supply, plan, Verdict::Missed { share, bound });
                return Showing::Misses(bound);
            }
            kept = kept.or(Some(shown));
        }
        let shown = kept.expect("two seeds were played");
        let dollars_per_hour = supply.dollars_per_hour(plan.gpus());
        self.held.push(Held { supply: candidate.supply, plan, shown, dollars_per_hour });
        Showing::Holds
    }

    /// Removes replicas, of either pool, as long as the plan holds.
    fn shrink(&mut self, candidate: &Candidate, mut plan: Plan) {
        let mut changes = 0;
        let mut ways = smaller(&plan);
        while let Some(next) = ways.pop() {
            changes += 1;
            if changes > MOST_CHANGES {
                return;
            }
            if let Showing::Holds = self.show(candidate, next) {
                plan = next;
                ways = smaller(&plan);
            }
        }
    }

    /// Adds replicas where it fails, while that may pay off.
    fn grow(&mut self, candidate: &Candidate, mut missed: Option<Bound>) {
        let supply = &self.supplies[candidate.supply];
        let mut plan = candidate.plan;
        for _ in 0..MOST_CHANGES {
            plan = larger(&plan, missed);
            let is_costlier = self.best().is_some_and(|best| {
                let known = Cost::of(&best.plan, &self.supplies[best.supply]);
                Cost::of(&plan, supply).order(&known) != Ordering::Less
            });
            if plan.gpus() > supply.gpus() || is_costlier {
                return;
            }
            match self.show(candidate, plan) {
                Showing::Holds => return self.shrink(candidate, plan),
                Showing::Misses(bound) => missed = bound,
            }
        }
    }

    fn into_answer(mut self, fitting: &[Fitting], candidates: &[Candidate]) -> Result<Answer, DeployError> {
        let Some(best) = self.best().cloned() else {
            return Err(refuse::none_holds(self.need, self.supplies, fitting, candidates, &self.tried));
        };
        self.held.retain(|held| (held.supply, held.plan) != (best.supply, best.plan));
        self.held.sort_by(|a, b| a.order(b, self.supplies));
        let verdict = |held: &Held| Verdict::Holds {
            share: held.shown.share,
            gpus: held.plan.gpus(),
            dollars_per_hour: held.dollars_per_hour,
        };
        let holds: Vec<_> = self.held.iter().map(|held| (held.supply, held.plan, verdict(held))).collect();
        for (supply, plan, verdict) in holds {
            self.note(supply, plan, verdict);
        }
        self.note(best.supply, best.plan, Verdict::Chosen { share: best.shown.share });
        Ok(Answer {
            best,
            others: self.held,
            front: front(self.need, self.supplies, fitting),
            tried: self.tried,
            replays: self.replays,
        })
    }
}

/// One replica fewer, of each pool that has more than one; the option that saves most GPUs comes last.
fn smaller(plan: &Plan) -> Vec<Plan> {
    let less = |workers: &Workers| {
        (workers.replicas > 1).then(|| Workers { replicas: workers.replicas - 1, ..*workers })
    };
    match plan {
        Plan::Aggregated(workers) => less(workers).map(Plan::Aggregated).into_iter().collect(),
        Plan::Disaggregated { prefill, decode } => {
            let fewer_prompts = less(prefill).map(|prefill| Plan::Disaggregated { prefill, decode: *decode });
            let fewer_decodes = less(decode).map(|decode| Plan::Disaggregated { prefill: *prefill, decode });
            let mut ways: Vec<Plan> = fewer_prompts.into_iter().chain(fewer_decodes).collect();
            ways.sort_by_key(|plan| std::cmp::Reverse(plan.gpus()));
            ways
        }
    }
}

/// An eighth more replicas, at least one, in the pool that the missed limit points to.
pub(crate) fn larger(plan: &Plan, missed: Option<Bound>) -> Plan {
    let more =
        |workers: &Workers| Workers { replicas: workers.replicas + workers.replicas.div_ceil(8), ..*workers };
    match plan {
        Plan::Aggregated(workers) => Plan::Aggregated(more(workers)),
        Plan::Disaggregated { prefill, decode } if missed == Some(Bound::Rate) => {
            Plan::Disaggregated { prefill: more(prefill), decode: more(decode) }
        }
        Plan::Disaggregated { prefill, decode } if missed == Some(Bound::Ttft) => {
            Plan::Disaggregated { prefill: more(prefill), decode: *decode }
        }
        Plan::Disaggregated { prefill, decode } => {
            Plan::Disaggregated { prefill: *prefill, decode: more(decode) }
        }
    }
}
