//! Which replica a request goes to: cached prefixes weighed against each replica's load.
//!
//! The cost of a replica is the prompt tokens it would have to compute plus its current load, both in
//! tokens. A replica is *overloaded* when its work exceeds the least by a margin and by a factor, both: a factor
//! alone calls one request against three an imbalance, a margin alone never lets large replicas differ.
//! Overloaded replicas are left out, and the others still compete by prefix, so an imbalance does not cost all
//! locality. Ties are broken by a seed; nothing prefers replica 0, and how much a replica has cached of other
//! prompts does not matter.

use std::fmt;

use bedplate_random::mix;

use crate::scheduler::Load;

/// How replicas are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RoutingPolicy {
    /// Least cost, including prefixes.
    #[default]
    Prefix,
    /// Least work, prefixes ignored.
    LeastWork,
    /// One after the other.
    RoundRobin,
}

/// The settings of a router.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouterOptions {
    pub policy: RoutingPolicy,
    /// Tokens of work that each sequence counts for.
    pub sequence_tokens: u32,
    /// Share of the prompt tokens held by a replica that counts as work, in percent: they are read again for
    /// every token generated.
    pub held_percent: u32,
    /// A replica is overloaded when it has this many tokens of work more than the least …
    pub overload_margin: u64,
    /// … and this many percent of the least.
    pub overload_percent: u32,
    pub seed: u64,
}

impl Default for RouterOptions {
    fn default() -> Self {
        Self {
            policy: RoutingPolicy::Prefix,
            sequence_tokens: 32,
            held_percent: 12,
            overload_margin: 16_384,
            overload_percent: 150,
            seed: 0,
        }
    }
}

/// What the router knows of one replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplicaCandidate {
    pub load: Load,
    /// Tokens of this prompt that the replica has, exactly or by a `PrefixMirror`.
    pub cached_tokens: u32,
    /// Whether it takes new requests; one that drains or starts does not.
    pub is_open: bool,
}

/// Why a replica was chosen. Work is in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteReason {
    /// No replica has any of the prompt; this one has the least work.
    LeastWork { work: u64 },
    /// No replica has more of the prompt.
    Prefix { cached_tokens: u32 },
    /// Another one has more of the prompt, but enough more work that this one costs less.
    PrefixOutweighed { holder: usize, cached_tokens: u32, work: u64, least: u64 },
    /// Another one has more of the prompt but is overloaded.
    HolderOverloaded { holder: usize, cached_tokens: u32, work: u64, least: u64 },
    /// It was its turn.
    Turn,
}

impl fmt::Display for RouteReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RouteReason::LeastWork { work } => {
                write!(f, "no replica has any of the prompt; this one has the least work, {work} tokens")
            }
            RouteReason::Prefix { cached_tokens } => write!(f, "it has {cached_tokens} tokens of the prompt"),
            RouteReason::PrefixOutweighed { holder, cached_tokens, work, least } => write!(
                f,
                "replica {holder} has {cached_tokens} tokens of the prompt but {work} tokens of work against {least}"
            ),
            RouteReason::HolderOverloaded { holder, cached_tokens, work, least } => write!(
                f,
                "replica {holder} has {cached_tokens} tokens of the prompt but is overloaded: {work} tokens of work against {least}"
            ),
            RouteReason::Turn => f.write_str("it was its turn"),
        }
    }
}

/// A decision of the router.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// Index among the candidates.
    pub replica: usize,
    pub reason: RouteReason,
}

/// The router over the replicas of one pool.
#[derive(Debug, Clone)]
pub struct Router {
    options: RouterOptions,
    decisions: u64,
    /// By candidate, kept for their memory: its work, and what it costs.
    works: Vec<u64>,
    costs: Vec<u64>,
    /// Candidates that were asked, and what they have of the prompt.
    asked: Vec<(usize, u32)>,
}

/// The work and the cost of a candidate that cannot be chosen.
const CLOSED: u64 = u64::MAX;

impl Router {
    pub fn new(options: RouterOptions) -> Self {
        Self { options, decisions: 0, works: Vec::new(), costs: Vec::new(), asked: Vec::new() }
    }

    /// Chooses among the open candidates; `None` without one.
    pub fn route(&mut self, prompt_tokens: u32, candidates: &[ReplicaCandidate]) -> Option<Route> {
        let least = self.weigh(candidates)?;
        self.decisions += 1;
        match self.options.policy {
            RoutingPolicy::RoundRobin => {
                let open = self.works.iter().filter(|work| **work != CLOSED).count() as u64;
                let replica = nth(&self.works, (self.decisions - 1) % open, |work| work != CLOSED)?;
                Some(Route { replica, reason: RouteReason::Turn })
            }
            RoutingPolicy::LeastWork => {
                let replica = self.pick(&self.works, least)?;
                Some(Route { replica, reason: RouteReason::LeastWork { work: least } })
            }
            RoutingPolicy::Prefix => {
                self.price(prompt_tokens, least, |at| candidates[at].cached_tokens);
                let replica = self.pick(&self.costs, least_of(&self.costs))?;
                let cached = candidates.iter().map(|candidate| candidate.cached_tokens).enumerate();
                Some(Route { replica, reason: self.reason(cached, replica, least) })
            }
        }
    }

    /// Chooses by prefix as `route` does, and asks how much of a prompt is cached only of those candidates that might be chosen for it: not of one
    /// that would cost more than another does even if it had the `most` tokens that it can have, which `cached` is told. The reason knows only
    /// those that were asked.
    pub fn route_asking(
        &mut self,
        prompt_tokens: u32,
        candidates: &[ReplicaCandidate],
        most: impl Fn(usize) -> u32,
        mut cached: impl FnMut(usize, u32) -> u32,
    ) -> Option<Route> {
        let least = self.weigh(candidates)?;
        self.decisions += 1;
        self.price(prompt_tokens, least, &most);
        self.asked.clear();
        // From the best that is possible to what is worse than the best found.
        let mut best = CLOSED;
        while let Some((at, possible)) = self.costs.iter().copied().enumerate().min_by_key(|(_, cost)| *cost)
            && possible <= best
            && possible != CLOSED
        {
            let cached = cached(at, most(at));
            best = best.min(cost(self.works[at], prompt_tokens, cached));
            self.asked.push((at, cached));
            self.costs[at] = CLOSED;
        }
        for (at, cached) in &self.asked {
            self.costs[*at] = cost(self.works[*at], prompt_tokens, *cached);
        }
        let replica = self.pick(&self.costs, best)?;
        Some(Route { replica, reason: self.reason(self.asked.iter().copied(), replica, least) })
    }

    /// Lists the candidates' work, and returns the least where one is open.
    fn weigh(&mut self, candidates: &[ReplicaCandidate]) -> Option<u64> {
        let RouterOptions { held_percent, sequence_tokens, .. } = self.options;
        self.works.clear();
        self.works.extend(candidates.iter().map(|candidate| {
            let Load { pending_tokens, held_tokens, sequences, .. } = candidate.load;
            let work = pending_tokens
                + held_tokens * u64::from(held_percent) / 100
                + u64::from(sequences) * u64::from(sequence_tokens);
            if candidate.is_open { work } else { CLOSED }
        }));
        Some(least_of(&self.works)).filter(|least| *least != CLOSED)
    }

    /// Lists what the candidates cost, by how much of the prompt each has.
    fn price(&mut self, prompt_tokens: u32, least: u64, cached: impl Fn(usize) -> u32) {
        let most_work = self.most_work(least);
        self.costs.clear();
        self.costs.extend(self.works.iter().enumerate().map(|(at, work)| match *work <= most_work {
            true => cost(*work, prompt_tokens, cached(at)),
            false => CLOSED,
        }));
    }

    /// Why a candidate was chosen, by what is cached where.
    fn reason(&self, cached: impl Iterator<Item = (usize, u32)>, chosen: usize, least: u64) -> RouteReason {
        let open = cached.filter(|(at, _)| self.works[*at] != CLOSED);
        let (mut of_chosen, mut holder, mut cached_tokens) = (0, chosen, 0);
        for (at, cached) in open {
            if at == chosen {
                of_chosen = cached;
            }
            if cached >= cached_tokens {
                (holder, cached_tokens) = (at, cached);
            }
        }
        let work = self.works[holder];
        match of_chosen {
            0 if cached_tokens == 0 => RouteReason::LeastWork { work: self.works[chosen] },
            cached if cached == cached_tokens => RouteReason::Prefix { cached_tokens },
            _ if work > self.most_work(least) => {
                RouteReason::HolderOverloaded { holder, cached_tokens, work, least }
            }
            _ => RouteReason::PrefixOutweighed { holder, cached_tokens, work, least },
        }
    }

    /// The most work of a candidate that is not overloaded.
    fn most_work(&self, least: u64) -> u64 {
        let by_margin = least.saturating_add(self.options.overload_margin);
        let by_factor = least.saturating_mul(u64::from(self.options.overload_percent)) / 100;
        by_margin.max(by_factor).min(CLOSED - 1)
    }

    /// The candidate of least cost; ties are broken by the seed and the number of the decision.
    fn pick(&self, costs: &[u64], least: u64) -> Option<usize> {
        let equals = costs.iter().filter(|cost| **cost == least).count() as u64;
        let turn = mix(self.options.seed ^ mix(self.decisions)).checked_rem(equals)?;
        nth(costs, turn, |cost| cost == least)
    }
}

fn cost(work: u64, prompt_tokens: u32, cached_tokens: u32) -> u64 {
    u64::from(prompt_tokens.saturating_sub(cached_tokens)) + work
}

fn least_of(costs: &[u64]) -> u64 {
    costs.iter().copied().min().unwrap_or(CLOSED)
}

/// The index of the `turn`-th of the numbers that have a property.
fn nth(numbers: &[u64], turn: u64, has: impl Fn(u64) -> bool) -> Option<usize> {
    let matching = numbers.iter().enumerate().filter(|(_, number)| has(**number));
    matching.map(|(index, _)| index).nth(turn as usize)
}
