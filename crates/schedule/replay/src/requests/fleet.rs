//! The deployment to replay on: replicas in one pool or two, their router, transfers, scaling and price.

use bedplate_batching::{
    CountedBlocks, OptionsFlaw, RouterOptions, RoutingPolicy, Scheduler, SchedulerOptions,
};

use super::engine::{Picoseconds, StepTime};

/// Replicas of one kind.
#[derive(Clone)]
pub struct Pool<'a> {
    pub replicas: u32,
    pub scheduler: SchedulerOptions,
    pub engine: &'a dyn StepTime,
    pub router: RouterOptions,
    /// Dollars per hour of one replica.
    pub dollars_per_hour: f64,
    pub scaling: Option<Scaling>,
}

/// When replicas are added and removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scaling {
    pub least: u32,
    pub most: u32,
    /// Target number of sequences per replica, waiting or running.
    pub sequences: u32,
    /// How often scaling is decided.
    pub interval: Picoseconds,
    /// From the decision until a new replica takes requests: machine, weights, warm-up.
    pub cold_start: Picoseconds,
}

/// How KV moves from the replica that computed a prompt to the one that decodes. Transfers from one replica
/// are sequential.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Transfer {
    pub latency: Picoseconds,
    pub per_token: Picoseconds,
}

impl Transfer {
    pub(crate) fn time(&self, tokens: u64) -> Picoseconds {
        self.latency.saturating_add(self.per_token.saturating_mul(tokens))
    }
}

/// How prompts and decodes are spread over replicas.
#[derive(Clone)]
pub enum Arrangement<'a> {
    /// Every replica does both.
    Aggregated(Pool<'a>),
    /// One pool computes prompts and the first token, another one decodes.
    Disaggregated(Box<Disaggregated<'a>>),
}

/// Two pools and the link between them.
#[derive(Clone)]
pub struct Disaggregated<'a> {
    pub prefill: Pool<'a>,
    pub decode: Pool<'a>,
    pub transfer: Transfer,
}

/// A deployment to be replayed.
#[derive(Clone)]
pub struct Fleet<'a> {
    pub arrangement: Arrangement<'a>,
    /// How KV moves to host memory and back when sequences are swapped.
    pub swap: Transfer,
    pub objectives: Objectives,
    /// Overhead of every request outside engine steps: HTTP, tokenising, streaming the first piece. It counts
    /// towards the first token and the total, and occupies no replica.
    pub way: Picoseconds,
    /// The most decode-only steps simulated as one; 1 simulates step by step. The results are the same.
    pub horizon: u32,
}

impl<'a> Fleet<'a> {
    pub fn aggregated(pool: Pool<'a>) -> Self {
        Self {
            arrangement: Arrangement::Aggregated(pool),
            swap: Transfer::default(),
            objectives: Objectives::default(),
            way: 0,
            horizon: 512,
        }
    }

    pub(crate) fn pools(&self) -> Vec<&Pool<'a>> {
        match &self.arrangement {
            Arrangement::Aggregated(pool) => vec![pool],
            Arrangement::Disaggregated(split) => vec![&split.prefill, &split.decode],
        }
    }
}

impl<'a> Pool<'a> {
    /// Whether its router chooses among replicas by what they have cached, and so needs a prefix index.
    pub(crate) fn has_prefix_index(&self) -> bool {
        let asks = self.router.policy == RoutingPolicy::Prefix && self.scheduler.keeps_prefixes;
        asks && self.replicas.max(self.scaling.map_or(0, |scaling| scaling.desired(u32::MAX))) > 1
    }

    /// The scheduler of a new replica, which counts for the router's prefix index.
    pub(crate) fn new_scheduler(&self) -> Result<Scheduler<CountedBlocks>, OptionsFlaw> {
        let mut scheduler = Scheduler::counting(self.scheduler.clone())?;
        if self.has_prefix_index() {
            scheduler.watch_reach();
        }
        Ok(scheduler)
    }

    pub fn new(replicas: u32, engine: &'a dyn StepTime) -> Self {
        Self {
            replicas,
            scheduler: SchedulerOptions::default(),
            engine,
            router: RouterOptions::default(),
            dollars_per_hour: 0.0,
            scaling: None,
        }
    }
}

/// What a request must meet to count as good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Objectives {
    /// Time to the first token.
    pub ttft: Option<Picoseconds>,
    /// Mean time between a request's tokens.
    pub itl: Option<Picoseconds>,
    /// From arrival to the last token.
    pub end_to_end: Option<Picoseconds>,
}
