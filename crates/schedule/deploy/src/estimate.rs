//! The steady state of a replica in closed form: no queue, no events.
//!
//! With `b` sequences in flight, `b / output` prompts come with every step and share it, so a token waits for its own step
//! and for its share of prompts. That predicts the time between tokens within a few percent of a simulation and
//! takes a microsecond, so it ranks what to replay. A first token's wait is that of a queue with
//! independent arrivals and equal service times (M/D/1), which is rough; the replay decides.

use bedplate_breakdown::StepShape;
use bedplate_perf::serving::{PrefillStyle, Prefixes, Replica};
use bedplate_replay::requests::{Objectives, seconds};

use crate::OfferedLoad;
use crate::candidate::PREFILL_MAX_SEQS;

/// One replica at one number of sequences in flight. Times are in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    pub batch: u32,
    pub ttft: f64,
    pub itl: f64,
    /// Requests per second.
    pub rate: f64,
}

impl Estimate {
    pub fn end_to_end(&self, load: &OfferedLoad) -> f64 {
        self.ttft + self.itl * f64::from(load.output.saturating_sub(1))
    }
}

/// Limits in seconds; absent ones are infinite.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct TimeLimits {
    pub(crate) ttft: f64,
    pub(crate) itl: f64,
    pub(crate) end_to_end: f64,
}

impl TimeLimits {
    pub(crate) fn of(objectives: &Objectives) -> Self {
        let limit = |time: Option<u64>| time.map_or(f64::INFINITY, seconds);
        Self {
            ttft: limit(objectives.ttft),
            itl: limit(objectives.itl),
            end_to_end: limit(objectives.end_to_end),
        }
    }
}

/// A limit that is not met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitBound {
    Ttft,
    Itl,
    EndToEnd,
    /// Requests come faster than they are answered, whatever the other limits.
    Rate,
}

impl LimitBound {
    pub fn name(self) -> &'static str {
        match self {
            LimitBound::Ttft => "time to first token",
            LimitBound::Itl => "time between tokens",
            LimitBound::EndToEnd => "end-to-end time",
            LimitBound::Rate => "keeping up with the rate",
        }
    }
}

/// The limit that even an empty replica misses, and by how much.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Miss {
    pub bound: LimitBound,
    pub best: f64,
    pub limit: f64,
}

/// Standard deviations of a Poisson number of sequences to allow for, so that most requests meet a limit.
const DEVIATIONS: f64 = 1.0;
/// Most requests wait at most this many mean waits.
const WAITS: f64 = 3.0;
/// Above this utilisation a queue keeps growing in any replay of sensible length.
const BUSIEST: f64 = 0.95;
/// More sequences than any engine is run with.
const MOST_SEQUENCES: u32 = 4096;

/// A replica that computes prompts and decodes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Steady<'a> {
    pub(crate) replica: &'a Replica,
    pub(crate) load: OfferedLoad,
}

struct Prompt {
    /// From the beginning of its first chunk to its first token.
    alone: f64,
    /// By how much one prompt delays decoding sequences.
    stall: f64,
}

impl Steady<'_> {
    /// Sequences whose KV fits, at most the engine's limit.
    pub(crate) fn most_sequences(&self) -> u32 {
        let memory = self.replica.memory();
        let prefixes = self.prefixes();
        let cached = prefixes.cached(self.load.input);
        let each = memory.tokens_of(self.load.usual_context().saturating_sub(cached.into())).max(1);
        let room = memory.room.tokens().saturating_sub(prefixes.kept);
        let deployment = self.replica.deployment();
        let engine = deployment.settings.max_sequences.saturating_mul(deployment.parallel.attention_data);
        let fitting = u32::try_from(room / each).unwrap_or(u32::MAX);
        fitting.min(engine).min(MOST_SEQUENCES)
    }

    /// What its cache makes of prefixes: each of them is kept once by every attention data rank, whoever uses it, in at most half of
    /// the room; of more than that, as many hit as fit.
    pub(crate) fn prefixes(&self) -> Prefixes {
        let ranks = f64::from(self.replica.deployment().parallel.attention_data);
        let wanted = self.load.shared_tokens() * ranks;
        let room = self.replica.memory().room.tokens() as f64 / 2.0;
        let hits = if wanted > room { room / wanted } else { 1.0 };
        Prefixes { cached_share: self.load.shared_share() * hits, kept: (wanted * hits) as u64 }
    }

    /// Seconds of a decode-only step.
    pub(crate) fn decode(&self, decodes: f64) -> f64 {
        let (low, share) = (decodes.floor(), decodes.fract());
        let at = |decodes: f64| {
            let context = decodes as u64 * self.load.usual_context();
            self.replica.timer().seconds(&StepShape::decode(decodes as u32, context))
        };
        let low_seconds = at(low.max(1.0));
        if share == 0.0 { low_seconds } else { low_seconds + share * (at(low + 1.0) - low_seconds) }
    }

    /// The same per token of a sequence, including drafts.
    pub(crate) fn decode_per_token(&self, decodes: f64) -> f64 {
        self.decode(decodes) / self.replica.deployment().tokens_per_step()
    }

    /// Prompt tokens that one step may hold, and whether decodes pause meanwhile.
    fn budget(&self, decodes: u32) -> (u64, bool) {
        let deployment = self.replica.deployment();
        let chunk = u64::from(deployment.settings.chunk) * self.side_by_side();
        match deployment.settings.prefill {
            PrefillStyle::Separate => (chunk, true),
            PrefillStyle::Chunked => (chunk.saturating_sub(decodes.into()).max(1), false),
            PrefillStyle::Whole => {
                let cached = self.prefixes().cached(self.load.input);
                (chunk.max((self.load.input - cached).into()), false)
            }
        }
    }

    /// One prompt with `decodes` decoding sequences, where a step holds `expected` prompts on average: as many as that go together
    /// if the budget has room, with attention data ranks and stages at least one for each of them.
    fn prompt(&self, decodes: u32, expected: f64) -> Prompt {
        let (budget, _) = self.budget(decodes);
        let computed = self.load.input - self.prefixes().cached(self.load.input);
        let fitting = budget / u64::from(computed).max(1);
        let together = expected.max(self.side_by_side() as f64).min(fitting as f64).max(1.0);
        let (low, share) = (together as u64, together.fract());
        let mut found = self.prompts(decodes, low);
        if share > 0.0 {
            let high = self.prompts(decodes, low + 1);
            found.alone += share * (high.alone - found.alone);
            found.stall += share * (high.stall - found.stall);
        }
        Prompt { stall: found.stall / together, ..found }
    }

    /// Prompts that go together, and the stall of all of them.
    fn prompts(&self, decodes: u32, together: u64) -> Prompt {
        let (budget, stands_still) = self.budget(decodes);
        let (input, cached) =
            (u64::from(self.load.input), u64::from(self.prefixes().cached(self.load.input)));
        // Tokens of each prompt in a step: a chunk, or its share when several go together.
        let each = (budget / if together > 1 { together } else { self.side_by_side() }).max(1);
        let base = match stands_still {
            true => StepShape::default(),
            false => StepShape::decode(decodes, u64::from(decodes) * self.load.usual_context()),
        };
        let without = self.replica.timer().seconds(&base);
        let (mut done, mut alone, mut stall) = (cached, 0.0, 0.0);
        while done < input {
            let tokens = (input - done).min(each);
            let mut shape = base;
            for _ in 0..together {
                shape.add_prefill(done, tokens);
            }
            let step = self.replica.timer().seconds_in_sequence(&shape);
            alone += step;
            stall += step - without;
            done += tokens;
        }
        Prompt { alone, stall }
    }

    /// Attention data ranks and stages, which compute different prompts.
    fn side_by_side(&self) -> u64 {
        let parallel = self.replica.deployment().parallel;
        u64::from(parallel.attention_data) * u64::from(parallel.pipeline)
    }

    fn way(&self, step: f64, decodes: f64) -> f64 {
        let arrival = self.replica.arrival();
        arrival.sent(self.load.input) + arrival.first_token + arrival.steps(decodes) * step
    }

    /// Means with `batch` sequences in flight.
    pub(crate) fn at(&self, batch: u32) -> Estimate {
        let (itl, prompt, way) = self.parts(f64::from(batch));
        self.estimate(batch, itl, prompt.alone, way, prompt.stall, 1.0)
    }

    fn parts(&self, batch: f64) -> (f64, Prompt, f64) {
        let tokens_per_step = self.replica.deployment().tokens_per_step();
        let prompts_per_token = batch / f64::from(self.load.output.max(1));
        let prompt = self.prompt(batch as u32, prompts_per_token * tokens_per_step);
        let step = self.decode(batch);
        let itl = step / tokens_per_step + prompts_per_token * prompt.stall;
        (itl, prompt, self.way(step, batch))
    }

    fn estimate(&self, batch: u32, itl: f64, alone: f64, way: f64, stall: f64, waits: f64) -> Estimate {
        let tokens = f64::from(self.load.output.saturating_sub(1));
        let unqueued = way + alone + itl * tokens;
        let rate = f64::from(batch) / unqueued;
        let busy = (rate * stall).min(BUSIEST);
        let ttft = way + alone + waits * busy / (2.0 * (1.0 - busy)) * alone;
        Estimate { batch, ttft, itl, rate: f64::from(batch) / (ttft + itl * tokens) }
    }

    /// What most requests see with `batch` in flight on average.
    fn usual_worst(&self, batch: u32) -> Estimate {
        let mean = f64::from(batch);
        let (itl, ..) = self.parts(mean + DEVIATIONS * mean.sqrt());
        let (_, prompt, way) = self.parts(mean);
        self.estimate(batch, itl, prompt.alone, way, prompt.stall, WAITS)
    }

    /// The most sequences in flight at which most requests are within the limits.
    pub(crate) fn largest(&self, limits: &TimeLimits) -> Result<Estimate, Miss> {
        let miss = |estimate: &Estimate| first_miss(estimate, &self.load, limits);
        if let Some(miss) = miss(&self.at(1)) {
            return Err(miss);
        }
        let batch = last_that(self.most_sequences(), |batch| miss(&self.usual_worst(batch)).is_none());
        Ok(self.at(batch))
    }

    /// The most sequences at which the time between tokens is within its limit, including all prompts.
    pub(crate) fn max_seqs(&self, limits: &TimeLimits) -> u32 {
        last_that(self.most_sequences(), |batch| self.at(batch).itl <= limits.itl)
    }
}

fn first_miss(estimate: &Estimate, load: &OfferedLoad, limits: &TimeLimits) -> Option<Miss> {
    let checks = [
        (LimitBound::Itl, estimate.itl, limits.itl),
        (LimitBound::Ttft, estimate.ttft, limits.ttft),
        (LimitBound::EndToEnd, estimate.end_to_end(load), limits.end_to_end),
    ];
    let missed = checks.into_iter().find(|(_, value, limit)| value > limit);
    missed.map(|(bound, best, limit)| Miss { bound, best, limit })
}

/// The largest of 1 to `most` for which a monotone condition holds; 1 if it never does.
fn last_that(most: u32, holds: impl Fn(u32) -> bool) -> u32 {
    let (mut low, mut high) = (1, most.max(1));
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if holds(middle) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}

/// A replica that computes prompts only: requests per second at which most first tokens are in time.
pub(crate) fn prefill_rate(steady: &Steady<'_>, limits: &TimeLimits, way: f64) -> Result<Estimate, Miss> {
    let best = way + steady.prompt(0, 1.0).alone;
    if best > limits.ttft {
        return Err(Miss { bound: LimitBound::Ttft, best, limit: limits.ttft });
    }
    let rate = |prompt: Prompt| {
        // The utilisation at which WAITS mean waits use up what the limit leaves.
        let waits = ((limits.ttft - way - prompt.alone) / (WAITS * prompt.alone)).max(0.0);
        let busy = if waits.is_finite() { 2.0 * waits / (1.0 + 2.0 * waits) } else { BUSIEST };
        busy.min(BUSIEST) / prompt.stall.max(1e-12)
    };
    // Prompts that queue share steps, which pays where they hardly lengthen them.
    let together = std::iter::successors(Some(1), |prompts| Some(2 * prompts));
    let together = together.take_while(|prompts| *prompts <= PREFILL_MAX_SEQS);
    let rate = together.map(|prompts| rate(steady.prompt(0, prompts.into()))).fold(0.0, f64::max);
    Ok(Estimate { batch: 1, ttft: best, itl: 0.0, rate })
}

/// A replica that decodes only, after KV arrived in `transfer` seconds.
pub(crate) fn decode_rate(steady: &Steady<'_>, limits: &TimeLimits, transfer: f64) -> Result<Estimate, Miss> {
    let tokens = f64::from(steady.load.output.saturating_sub(1).max(1));
    let itl = |batch: f64| steady.decode_per_token(batch) + transfer / tokens;
    if itl(1.0) > limits.itl {
        return Err(Miss { bound: LimitBound::Itl, best: itl(1.0), limit: limits.itl });
    }
    let holds = |batch: u32| {
        let mean = f64::from(batch);
        itl(mean + DEVIATIONS * mean.sqrt()) <= limits.itl
    };
    let batch = last_that(steady.most_sequences(), holds);
    Ok(decoding(steady, batch, transfer))
}

/// The most sequences at which a decode-only replica keeps the time between tokens.
pub(crate) fn decode_max_seqs(steady: &Steady<'_>, limits: &TimeLimits, transfer: f64) -> u32 {
    last_that(steady.most_sequences(), |batch| decoding(steady, batch, transfer).itl <= limits.itl)
}

/// A decode-only replica with `batch` sequences in flight.
pub(crate) fn decoding(steady: &Steady<'_>, batch: u32, transfer: f64) -> Estimate {
    let tokens = f64::from(steady.load.output.saturating_sub(1).max(1));
    let itl = steady.decode_per_token(f64::from(batch)) + transfer / tokens;
    Estimate { batch, ttft: 0.0, itl, rate: f64::from(batch) / (itl * tokens) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_last_that_holds_is_found(most in 1u32..5000, bound in 0u32..6000) {
            let found = last_that(most, |number| number <= bound);
            prop_assert_eq!(found, bound.clamp(1, most));
        }
    }
}
