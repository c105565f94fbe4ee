//! How long an engine step takes: all that a replay needs to know about hardware and model.
//!
//! Times are whole picoseconds, so that a stretch of steps can be added up exactly. A performance model's
//! figures are rounded once, when they become picoseconds; from there on nothing is rounded until a result is
//! shown.

use bedplate_batching::StepShape;

/// Time on the virtual clock, and durations. 64 bits last 213 days.
pub type Picoseconds = u64;

/// Picoseconds of a nanosecond; the schedulers count in those.
pub(crate) const PER_NANOSECOND: u64 = 1000;
const PER_SECOND: f64 = 1e12;

/// Seconds as whole picoseconds, rounded; negative numbers and NaN become 0.
pub fn picoseconds(seconds: f64) -> Picoseconds {
    (seconds * PER_SECOND).round() as u64
}

pub fn seconds(time: Picoseconds) -> f64 {
    time as f64 / PER_SECOND
}

/// The time of a decode-only step at a fixed number of decodes: `base + slope * context`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DecodeTime {
    pub base: Picoseconds,
    /// Per token in the KV of the decodes.
    pub slope: Picoseconds,
}

/// A performance model for a replay.
pub trait StepTime {
    /// The time of a step that computes at least one prompt token.
    fn prefill(&self, shape: &StepShape) -> Picoseconds;

    /// The time of a step with this many decodes and nothing else, by context. Asked once per number.
    fn decode(&self, decodes: u32) -> DecodeTime;
}

/// An engine whose step time is a sum of linear terms, as given by the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinearEngine {
    /// Every step.
    pub step: Picoseconds,
    /// Each prompt token computed.
    pub prefill_token: Picoseconds,
    /// Each thousand pairs of a prompt token and a key it attends to.
    pub thousand_pairs: Picoseconds,
    /// Each sequence that decodes.
    pub decode: Picoseconds,
    /// Each token in the KV of a decode.
    pub context_token: Picoseconds,
}

impl Default for LinearEngine {
    /// An engine for experiments: 8 ms per step, 25 us per prompt token, 20 us per decode, 20 ns per token of
    /// context. It describes no real hardware.
    fn default() -> Self {
        Self {
            step: 8_000_000_000,
            prefill_token: 25_000_000,
            thousand_pairs: 500_000,
            decode: 20_000_000,
            context_token: 20_000,
        }
    }
}

impl StepTime for LinearEngine {
    fn prefill(&self, shape: &StepShape) -> Picoseconds {
        let DecodeTime { base, slope } = self.decode(shape.decodes);
        let pairs = u128::from(shape.prefill_pairs) * u128::from(self.thousand_pairs) / 1000;
        let total = u128::from(base)
            + u128::from(slope) * u128::from(shape.decode_context)
            + u128::from(self.prefill_token) * u128::from(shape.prefill_tokens)
            + pairs;
        u64::try_from(total).unwrap_or(u64::MAX)
    }

    fn decode(&self, decodes: u32) -> DecodeTime {
        DecodeTime {
            base: self.step.saturating_add(self.decode.saturating_mul(decodes.into())),
            slope: self.context_token,
        }
    }
}

/// Decode times by number of decodes, asked once each.
#[derive(Debug, Clone, Default)]
pub(crate) struct DecodeTimes {
    known: Vec<Option<DecodeTime>>,
}

impl DecodeTimes {
    pub(crate) fn get(&mut self, engine: &dyn StepTime, decodes: u32) -> DecodeTime {
        let at = decodes as usize;
        if self.known.len() <= at {
            self.known.resize(at + 1, None);
        }
        *self.known[at].get_or_insert_with(|| engine.decode(decodes))
    }
}
