//! What befalls a simulated gang, and what a diagnosis should say of it.

use bedplate_diagnose::{Cause, ProblemKind};
use bedplate_random::Random;

/// A way in which a gang becomes slow or stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fault {
    Healthy,
    /// One rank computes more slowly: clocks, throttling, a neighbour on its cores.
    SlowRank,
    /// The same, and its node says why.
    ThrottledGpu,
    /// All of a gang's communication takes longer.
    SlowNetwork,
    /// The same, and a node counts errors on its link.
    FaultyLink,
    /// Reading takes longer on every rank.
    SlowStorage,
    /// Reading takes longer on one rank.
    SlowMount,
    /// The loader of every rank is too slow for its model.
    SlowLoader,
    /// Every rank computes more: longer sequences, recomputation.
    MoreWork,
    /// In each step another rank has the longest sequences.
    SkewedLengths,
    /// No rank reports any more.
    Frozen,
    /// The loss is no number.
    NotANumber,
}

impl Fault {
    pub(super) const ALL: [Fault; 12] = [
        Fault::Healthy,
        Fault::SlowRank,
        Fault::ThrottledGpu,
        Fault::SlowNetwork,
        Fault::FaultyLink,
        Fault::SlowStorage,
        Fault::SlowMount,
        Fault::SlowLoader,
        Fault::MoreWork,
        Fault::SkewedLengths,
        Fault::Frozen,
        Fault::NotANumber,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Fault::Healthy => "healthy",
            Fault::SlowRank => "one rank computes slowly",
            Fault::ThrottledGpu => "a GPU throttles, its node says so",
            Fault::SlowNetwork => "communication is slow",
            Fault::FaultyLink => "a link with errors, its node says so",
            Fault::SlowStorage => "reading is slow everywhere",
            Fault::SlowMount => "reading is slow on one rank",
            Fault::SlowLoader => "the loader is too slow",
            Fault::MoreWork => "every rank computes more",
            Fault::SkewedLengths => "another rank is longest each step",
            Fault::Frozen => "no rank goes on",
            Fault::NotANumber => "the loss is no number",
        }
    }

    /// What is to be found; a stall without further observations has no cause.
    pub(super) fn truth(self) -> Option<(ProblemKind, Cause)> {
        match self {
            Fault::Healthy => None,
            Fault::SlowRank | Fault::ThrottledGpu => Some((ProblemKind::SlowSince, Cause::Hardware)),
            Fault::SlowNetwork | Fault::FaultyLink => Some((ProblemKind::SlowSince, Cause::Network)),
            Fault::SlowStorage | Fault::SlowMount => Some((ProblemKind::SlowSince, Cause::Storage)),
            Fault::SlowLoader | Fault::MoreWork | Fault::SkewedLengths => {
                Some((ProblemKind::SlowSince, Cause::Application))
            }
            Fault::Frozen => Some((ProblemKind::Stall, Cause::Unknown)),
            Fault::NotANumber => Some((ProblemKind::Diverging, Cause::Application)),
        }
    }

    /// Whether one rank is to blame.
    pub(super) fn has_culprit(self) -> bool {
        matches!(self, Fault::SlowRank | Fault::ThrottledGpu | Fault::SlowMount)
    }
}

/// What a step of a rank takes, in seconds, before others are waited for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Parts {
    pub(super) compute: f64,
    pub(super) memory: f64,
    pub(super) storage: f64,
    pub(super) host: f64,
    pub(super) network: f64,
}

/// A gang and what befalls it.
pub(super) struct World {
    pub(super) fault: Fault,
    pub(super) ranks: u32,
    pub(super) ranks_per_node: u32,
    usual: Parts,
    /// Spread of single steps of a rank, and of all of them together.
    noise: f64,
    common_noise: f64,
    pub(super) onset: u64,
    pub(super) steps: u64,
    culprit: u32,
    /// A step's time with the fault over that without.
    pub(super) factor: f64,
    pub(super) evaluates_every: u64,
    pub(super) saves_every: u64,
    random: Random,
}

impl World {
    pub(super) fn of_seed(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let fault = random.pick(&Fault::ALL);
        // Small gangs and large ones, steps of 50 ms and of 8 s.
        let ranks = 1 << random.whole(1, 6);
        let step = (random.between((0.05_f64).ln(), (8.0_f64).ln())).exp();
        let share = |random: &mut Random, low: f64, high: f64| step * random.between(low, high);
        let usual = Parts {
            compute: share(&mut random, 0.5, 0.75),
            memory: share(&mut random, 0.05, 0.1),
            storage: share(&mut random, 0.002, 0.03),
            host: share(&mut random, 0.01, 0.06),
            network: share(&mut random, 0.05, 0.25),
        };
        Self {
            fault,
            ranks,
            ranks_per_node: ranks.min(1 << random.whole(0, 3)),
            usual,
            noise: random.between(0.002, 0.03),
            common_noise: random.between(0.001, 0.02),
            onset: u64::from(random.whole(80, 200)),
            steps: u64::from(random.whole(320, 400)),
            culprit: random.below(ranks as usize) as u32,
            factor: random.between(1.1, 1.6),
            evaluates_every: u64::from(random.whole(40, 90)),
            saves_every: u64::from(random.whole(60, 120)),
            random,
        }
    }

    pub(super) fn culprit(&self) -> Option<u32> {
        self.fault.has_culprit().then_some(self.culprit)
    }

    pub(super) fn node(&self, rank: u32) -> String {
        format!("n{}", rank / self.ranks_per_node)
    }

    pub(super) fn culprits_node(&self) -> String {
        self.node(self.culprit)
    }

    /// What each rank's work takes in this step, and how long communication takes once all are there.
    pub(super) fn step(&mut self, step: u64) -> Vec<Parts> {
        let is_faulty = step >= self.onset && self.fault != Fault::Healthy;
        let usual = self.usual;
        let whole = usual.compute + usual.memory + usual.storage + usual.host + usual.network;
        let more = (self.factor - 1.0) * whole;
        let common = 1.0 + self.common_noise * self.random.normal();
        let longest = self.random.below(self.ranks as usize) as u32;
        let mut all = Vec::with_capacity(self.ranks as usize);
        for rank in 0..self.ranks {
            let mut noisy = |seconds: f64| {
                // Now and then something else takes a moment.
                let outlier = if self.random.chance(1) { 1.0 + self.random.exponential(0.1) } else { 1.0 };
                (seconds * common * outlier * (1.0 + self.noise * self.random.normal())).max(0.1 * seconds)
            };
            let mut parts = Parts {
                compute: noisy(usual.compute),
                memory: noisy(usual.memory),
                storage: noisy(usual.storage),
                host: noisy(usual.host),
                network: noisy(usual.network),
            };
            if is_faulty {
                match self.fault {
                    Fault::SlowRank | Fault::ThrottledGpu if rank == self.culprit => parts.compute += more,
                    Fault::SlowNetwork | Fault::FaultyLink => parts.network += more,
                    Fault::SlowStorage => parts.storage += noisy(more),
                    Fault::SlowMount if rank == self.culprit => parts.storage += noisy(more),
                    Fault::SlowLoader => parts.host += noisy(more),
                    Fault::MoreWork => parts.compute += noisy(more),
                    Fault::SkewedLengths if rank == longest => parts.compute += noisy(more),
                    _ => {}
                }
            }
            all.push(parts);
        }
        all
    }
}
