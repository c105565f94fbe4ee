//! The cheapest plan that holds: candidates by estimated cost, each verified by replay.

use std::cmp::Ordering;

use bedplate_replay::requests::seconds;

use crate::candidate::{Fitting, PlanCandidate, candidates, fitting};
use crate::estimate::LimitBound;
use crate::front::front;
use crate::launch::Duty;
use crate::outlook::outlook;
use crate::refuse;
use crate::tie::{Contender, Cost, Edge, choose, edge, formats, simplicity};
use crate::{
    DeployError, FrontPoint, Need, Plan, ReplayStage, Shown, Supply, Tried, TriedSubject, Verdict, Workers,
};

/// The result of a search.
#[derive(Debug, Clone)]
pub struct DeployAnswer {
    pub best: HeldPlan,
    /// Other plans that a replay showed to hold, cheapest first.
    pub others: Vec<Other>,
    pub front: Vec<FrontPoint>,
    /// Everything tried, with its verdict.
    pub tried: Vec<Tried>,
    pub replays: u32,
}

impl DeployAnswer {
    /// A near tie that costs less than the plan that was taken, and by which share.
    pub fn cheaper_tie(&self) -> Option<(&Other, f64)> {
        let best = self.best.dollars_per_hour?;
        let cheaper = self.others.iter().find(|other| other.edge != Edge::Cheaper)?;
        let less = 1.0 - cheaper.held.dollars_per_hour? / best;
        (less > 0.0).then_some((cheaper, less))
    }
}

/// A plan that a replay showed to hold.
#[derive(Debug, Clone)]
pub struct HeldPlan {
    /// Index of the supply.
    pub supply: usize,
    pub plan: Plan,
    pub shown: Shown,
    pub dollars_per_hour: Option<f64>,
    /// The confidence in its least certain limit, where errors of such predictions are known.
    pub confidence: Option<f64>,
}

/// A plan that holds and was not taken.
#[derive(Debug, Clone)]
pub struct Other {
    pub held: HeldPlan,
    /// What the chosen plan is ahead in.
    pub edge: Edge,
}

/// Searches the supplies for the cheapest plan that holds the objectives at the rate.
pub fn search(need: &Need<'_>, supplies: &[Supply]) -> Result<DeployAnswer, DeployError> {
    refuse::check(need, supplies)?;
    let mut tried = Vec::new();
    let fitting = fitting(need, supplies, &mut tried);
    let has = |at: usize, duty: Duty| fitting.iter().any(|it| it.supply == at && it.duty == duty);
    let is_whole = |at: usize| has(at, Duty::Both) || (has(at, Duty::Prefill) && has(at, Duty::Decode));
    if !(0..supplies.len()).any(is_whole) {
        return Err(refuse::does_not_fit(need, supplies));
    }
    if !fitting.iter().any(|it| it.has_partner(&fitting)) {
        return Err(refuse::no_common_format(need, supplies));
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

impl PlanCandidate {
    fn cost(&self, supplies: &[Supply]) -> Cost {
        Cost::of(&self.plan, &supplies[self.supply])
    }
}

/// Which of equally cheap candidates is replayed first: wide formats, then simple ones.
fn preference(plan: &Plan) -> ((u8, u8), (u8, usize, u32)) {
    (formats(plan), simplicity(plan))
}

struct Hunt<'a> {
    need: &'a Need<'a>,
    supplies: &'a [Supply],
    held: Vec<HeldPlan>,
    tried: Vec<Tried>,
    replays: u32,
}

/// The result of two replays.
enum Showing {
    Holds,
    /// With the limit that most requests missed.
    Misses(Option<LimitBound>),
}

/// How often a plan is changed by one replica before the search gives up.
const MOST_CHANGES: u32 = 4;

impl Hunt<'_> {
    fn consider(&mut self, candidate: &PlanCandidate) {
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
    fn is_hopeless(&self, candidate: &PlanCandidate) -> Option<Verdict> {
        let supply = &self.supplies[candidate.supply];
        if self.replays >= self.need.options.most_replays {
            return Some(Verdict::NotReplayed);
        }
        let (best, cheapest) = (self.best()?, self.cheapest()?);
        let least = smaller(&candidate.plan).pop().unwrap_or(candidate.plan);
        let gpus = candidate.plan.gpus();
        let near = self.need.options.near;
        if Cost::of(&least, supply).exceeds(&cheapest, near) {
            return Some(Verdict::Costlier { gpus, dollars_per_hour: supply.dollars_of(&candidate.plan) });
        }
        let cost = candidate.cost(self.supplies);
        // One replica less would have to hold to be cheaper; the estimate is rarely that far off.
        let may_win = cost.order(&cheapest) == Ordering::Less || self.is_promising(candidate, best);
        (!may_win).then_some(Verdict::NotPreferred)
    }

    /// Whether a candidate would be taken instead of the best so far if it is a near tie, perhaps with a replica less.
    fn is_promising(&self, candidate: &PlanCandidate, best: &HeldPlan) -> bool {
        let near = 1.0 + self.need.options.near;
        let latency = seconds(best.shown.outcome.end_to_end.mean);
        match formats(&candidate.plan).cmp(&formats(&best.plan)) {
            Ordering::Less => true,
            Ordering::Greater => false,
            Ordering::Equal if simplicity(&candidate.plan) < simplicity(&best.plan) => {
                candidate.latency <= latency * near
            }
            Ordering::Equal => candidate.latency * near < latency,
        }
    }

    fn best(&self) -> Option<&HeldPlan> {
        Some(&self.held[choose(&self.contenders(), self.need.options.near)?])
    }

    fn contenders(&self) -> Vec<Contender> {
        self.held.iter().map(|held| Contender::of(held, self.supplies)).collect()
    }

    fn cheapest(&self) -> Option<Cost> {
        self.held.iter().map(|held| Cost::of(&held.plan, &self.supplies[held.supply])).min_by(Cost::order)
    }

    fn note(&mut self, supply: usize, plan: Plan, verdict: Verdict) {
        self.tried.push(Tried { supply, what: TriedSubject::Plan(plan), verdict });
    }

    /// Replays a plan with two seeds.
    fn show(&mut self, candidate: &PlanCandidate, plan: Plan) -> Showing {
        let supply = &self.supplies[candidate.supply];
        let stage = ReplayStage::new(self.need, supply, plan).expect("a candidate's layouts are legal");
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
        let dollars_per_hour = supply.dollars_of(&plan);
        let outlook = self.need.errors.and_then(|errors| outlook(self.need, supply, &plan, &shown, errors));
        let confidence = outlook.map(|outlook| outlook.least_confidence());
        self.held.push(HeldPlan { supply: candidate.supply, plan, shown, dollars_per_hour, confidence });
        Showing::Holds
    }

    /// Removes replicas, of either pool, as long as the plan holds.
    fn shrink(&mut self, candidate: &PlanCandidate, mut plan: Plan) {
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
    fn grow(&mut self, candidate: &PlanCandidate, mut missed: Option<LimitBound>) {
        let supply = &self.supplies[candidate.supply];
        let mut plan = candidate.plan;
        for _ in 0..MOST_CHANGES {
            plan = larger(&plan, missed);
            let is_costlier = self
                .cheapest()
                .is_some_and(|cheapest| Cost::of(&plan, supply).order(&cheapest) != Ordering::Less);
            if !supply.holds(&plan) || is_costlier {
                return;
            }
            match self.show(candidate, plan) {
                Showing::Holds => return self.shrink(candidate, plan),
                Showing::Misses(bound) => missed = bound,
            }
        }
    }

    /// The plan with the replicas that its machines have room for, which cost nothing more; as it was where that does not hold.
    fn filled(&mut self, best: HeldPlan) -> HeldPlan {
        let supply = &self.supplies[best.supply];
        let plan = supply.filled(best.plan);
        if plan == best.plan {
            return best;
        }
        let end_to_end = seconds(best.shown.outcome.end_to_end.mean);
        let candidate = PlanCandidate { supply: best.supply, plan, end_to_end, latency: end_to_end };
        match self.show(&candidate, plan) {
            Showing::Holds => self.held.pop().unwrap_or(best),
            Showing::Misses(_) => best,
        }
    }

    fn into_answer(
        mut self,
        fitting: &[Fitting],
        candidates: &[PlanCandidate],
    ) -> Result<DeployAnswer, DeployError> {
        let (Some(best), Some(cheapest)) = (self.best().cloned(), self.cheapest()) else {
            return Err(refuse::none_holds(self.need, self.supplies, fitting, candidates, &self.tried));
        };
        self.held.retain(|held| (held.supply, held.plan) != (best.supply, best.plan));
        let best = self.filled(best);
        let chosen = Contender::of(&best, self.supplies);
        let mut others: Vec<Other> = Vec::new();
        for held in std::mem::take(&mut self.held) {
            let contender = Contender::of(&held, self.supplies);
            let edge = edge(&chosen, &contender, &cheapest, self.need.options.near);
            let verdict = Verdict::Holds {
                share: held.shown.share,
                gpus: held.plan.gpus(),
                dollars_per_hour: held.dollars_per_hour,
                edge,
            };
            self.note(held.supply, held.plan, verdict);
            others.push(Other { held, edge });
        }
        let contender = |other: &Other| Contender::of(&other.held, self.supplies);
        others.sort_by(|a, b| contender(a).order(&contender(b)));
        self.note(best.supply, best.plan, Verdict::Chosen { share: best.shown.share });
        Ok(DeployAnswer {
            best,
            others,
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
pub(crate) fn larger(plan: &Plan, missed: Option<LimitBound>) -> Plan {
    let more =
        |workers: &Workers| Workers { replicas: workers.replicas + workers.replicas.div_ceil(8), ..*workers };
    match plan {
        Plan::Aggregated(workers) => Plan::Aggregated(more(workers)),
        Plan::Disaggregated { prefill, decode } if missed == Some(LimitBound::Rate) => {
            Plan::Disaggregated { prefill: more(prefill), decode: more(decode) }
        }
        Plan::Disaggregated { prefill, decode } if missed == Some(LimitBound::Ttft) => {
            Plan::Disaggregated { prefill: more(prefill), decode: *decode }
        }
        Plan::Disaggregated { prefill, decode } => {
            Plan::Disaggregated { prefill: *prefill, decode: more(decode) }
        }
    }
}
