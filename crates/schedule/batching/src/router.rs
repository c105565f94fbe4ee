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
pub struct Candidate {
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
    /// By candidate: what it may cost at least. Kept for its memory.
    possible: Vec<u64>,
}

impl Router {
    pub fn new(options: RouterOptions) -> Self {
        Self { options, decisions: 0, possible: Vec::new() }
    }

    /// Whether decisions depend on cached prefixes.
    pub fn needs_prefixes(&self) -> bool {
        self.options.policy == RoutingPolicy::Prefix
    }

    /// Asks how much of a prompt is cached, only of those candidates that might be chosen for it: not of one that would cost more than
    /// another does even if it had the `most` tokens that it can have. The choice is the same; its reason knows only those that were
    /// asked.
    pub fn survey(
        &mut self,
        prompt_tokens: u32,
        candidates: &mut [Candidate],
        most: impl Fn(usize) -> u32,
        mut cached: impl FnMut(usize) -> u32,
    ) {
        let cost = |work: u64, cached: u32| u64::from(prompt_tokens.saturating_sub(cached)) + work;
        let open = candidates.iter().filter(|candidate| candidate.is_open);
        let Some(least) = open.map(|candidate| self.work(candidate)).min() else { return };
        let mut possible = std::mem::take(&mut self.possible);
        possible.clear();
        possible.extend(candidates.iter().enumerate().map(|(at, candidate)| {
            let work = self.work(candidate);
            let may_be_chosen = candidate.is_open && !self.is_overloaded(work, least);
            if may_be_chosen { cost(work, most(at)) } else { u64::MAX }
        }));
        // From the best that is possible to what is worse than the best found.
        let mut best = u64::MAX;
        while let Some((at, least)) = possible.iter().copied().enumerate().min_by_key(|(_, cost)| *cost)
            && least <= best
            && least < u64::MAX
        {
            candidates[at].cached_tokens = cached(at);
            best = best.min(cost(self.work(&candidates[at]), candidates[at].cached_tokens));
            possible[at] = u64::MAX;
        }
        self.possible = possible;
    }

    /// Chooses among the open candidates; `None` without one.
    pub fn route(&mut self, prompt_tokens: u32, candidates: &[Candidate]) -> Option<Route> {
        let open = candidates.iter().filter(|candidate| candidate.is_open);
        let least = open.map(|candidate| self.work(candidate)).min()?;
        self.decisions += 1;
        match self.options.policy {
            RoutingPolicy::RoundRobin => {
                let open = candidates.iter().filter(|candidate| candidate.is_open).count() as u64;
                let turn = (self.decisions - 1) % open;
                let replica = nth(candidates, turn, |candidate| candidate.is_open)?;
                Some(Route { replica, reason: RouteReason::Turn })
            }
            RoutingPolicy::LeastWork => {
                let replica = self.pick(candidates, |candidate| self.work(candidate))?;
                Some(Route { replica, reason: RouteReason::LeastWork { work: least } })
            }
            RoutingPolicy::Prefix => self.by_prefix(prompt_tokens, candidates, least),
        }
    }

    fn by_prefix(&self, prompt_tokens: u32, candidates: &[Candidate], least: u64) -> Option<Route> {
        let cost = |candidate: &Candidate| {
            let work = self.work(candidate);
            if self.is_overloaded(work, least) {
                return u64::MAX;
            }
            u64::from(prompt_tokens.saturating_sub(candidate.cached_tokens)) + work
        };
        let replica = self.pick(candidates, cost)?;
        Some(Route { replica, reason: self.reason(candidates, replica, least) })
    }

    fn reason(&self, candidates: &[Candidate], chosen: usize, least: u64) -> RouteReason {
        let cached_tokens = candidates[chosen].cached_tokens;
        let open = candidates.iter().enumerate().filter(|(_, candidate)| candidate.is_open);
        let better = open.filter(|(_, candidate)| candidate.cached_tokens > cached_tokens);
        let holder = better.max_by_key(|(_, candidate)| candidate.cached_tokens);
        let Some((holder, candidate)) = holder else {
            return match cached_tokens {
                0 => RouteReason::LeastWork { work: self.work(&candidates[chosen]) },
                _ => RouteReason::Prefix { cached_tokens },
            };
        };
        let (work, cached_tokens) = (self.work(candidate), candidate.cached_tokens);
        if self.is_overloaded(work, least) {
            RouteReason::HolderOverloaded { holder, cached_tokens, work, least }
        } else {
            RouteReason::PrefixOutweighed { holder, cached_tokens, work, least }
        }
    }

    /// The load of a replica, in tokens.
    fn work(&self, candidate: &Candidate) -> u64 {
        let Load { pending_tokens, held_tokens, sequences, .. } = candidate.load;
        pending_tokens
            + held_tokens * u64::from(self.options.held_percent) / 100
            + u64::from(sequences) * u64::from(self.options.sequence_tokens)
    }

    fn is_overloaded(&self, work: u64, least: u64) -> bool {
        let by_margin = work > least.saturating_add(self.options.overload_margin);
        by_margin && work > least.saturating_mul(u64::from(self.options.overload_percent)) / 100
    }

    /// The open candidate of least cost; ties are broken by the seed and the number of the decision.
    fn pick(&self, candidates: &[Candidate], cost: impl Fn(&Candidate) -> u64) -> Option<usize> {
        let open = candidates.iter().filter(|candidate| candidate.is_open);
        let (mut least, mut equals) = (u64::MAX, 0);
        for cost in open.map(&cost) {
            if cost < least {
                (least, equals) = (cost, 0);
            }
            equals += u64::from(cost == least);
        }
        let turn = mix(self.options.seed ^ mix(self.decisions)).checked_rem(equals)?;
        nth(candidates, turn, |candidate| candidate.is_open && cost(candidate) == least)
    }
}

/// The index of the `turn`-th candidate that has a property.
fn nth(candidates: &[Candidate], turn: u64, has: impl Fn(&Candidate) -> bool) -> Option<usize> {
    let matching = candidates.iter().enumerate().filter(|(_, candidate)| has(candidate));
    matching.map(|(index, _)| index).nth(turn as usize)
}
