//! A replica of the performance model as a replay sees it: the time of its steps, its limits, its transfers.

use bedplate_batching::{PrefillMode, SchedulerOptions, StepShape};
use bedplate_perf::serving::{BLOCK_TOKENS, KvLink, KvReserve, PrefillStyle, Replica};
use bedplate_replay::requests::{DecodeTime, Picoseconds, StepTime, Transfer, picoseconds};

/// A [`Replica`] whose steps a replay can time.
///
/// A replay needs one line per number of decodes. Layers with a window bend that line where the window fills;
/// the line of the side of the bend that contains `usual_context` is used. Drafts yield several tokens per
/// step; a replay gives one, so a decode-only step takes the share of one token, and a step with prompts
/// is charged in full. Prompts pass stages one after the other.
#[derive(Debug, Clone)]
pub struct TimedReplica {
    replica: Replica,
    usual_context: u64,
}

impl TimedReplica {
    /// `usual_context` is the mean of a decoding sequence's tokens.
    pub fn new(replica: Replica, usual_context: u64) -> Self {
        Self { replica, usual_context }
    }

    pub fn replica(&self) -> &Replica {
        &self.replica
    }

    /// The limits of a scheduler that fills this replica's memory and runs at most `max_seqs` sequences.
    pub fn scheduler(&self, max_seqs: u32, longest_prompt: u32) -> SchedulerOptions {
        let deployment = self.replica.deployment();
        let settings = &deployment.settings;
        let (ranks, stages) = (deployment.parallel.attention_data, deployment.parallel.pipeline);
        let memory = self.replica.memory();
        // The fixed part of a sequence is not in blocks, so it is reserved for every sequence slot.
        let kept = memory.tokens_of(0).saturating_mul(max_seqs.into());
        let blocks = memory.room.tokens().saturating_sub(kept) / BLOCK_TOKENS;
        let chunk = settings.chunk.saturating_mul(ranks).max(1);
        let chunk = match settings.prefill {
            PrefillStyle::Whole => chunk.max(longest_prompt),
            PrefillStyle::Chunked | PrefillStyle::Separate => chunk,
        };
        let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
        SchedulerOptions {
            block_tokens: BLOCK_TOKENS as u32,
            blocks: blocks.max(1),
            token_budget: chunk.saturating_mul(stages).max(max_seqs),
            chunk_tokens: chunk,
            max_seqs: max_seqs.max(1),
            context_limit: u32::try_from(deployment.model.transformer.max_context).unwrap_or(u32::MAX),
            prefill: match settings.prefill {
                PrefillStyle::Separate => PrefillMode::Separate,
                PrefillStyle::Chunked | PrefillStyle::Whole => PrefillMode::Mixed,
            },
            reserve_percent: match settings.reserve {
                KvReserve::HalfAnswer => 50,
                KvReserve::WholeAnswer => 100,
            },
            watermark_blocks: blocks / 100,
            ..SchedulerOptions::default()
        }
    }

    /// The time of a request of `prompt` tokens outside engine steps; `step` is a usual step, and an engine lets some of them pass
    /// before it sees a request. Prompts of a replay do not wait for each other.
    pub fn way(&self, prompt: u32, step: f64) -> Picoseconds {
        let arrival = self.replica.arrival();
        // A replay polls its queue at every step, which is half a step on average.
        let unseen = (arrival.visible_after - 0.5).max(0.0) * step;
        picoseconds(arrival.sent(prompt) + arrival.first_token + unseen)
    }

    /// How the KV of a prompt moves to another replica, as latency and time per token.
    pub fn transfer(&self, to: &TimedReplica, link: KvLink) -> Transfer {
        const NEAR: u64 = 1_000;
        const FAR: u64 = 10_000;
        let at = |tokens| self.replica.kv_transfer_to(&to.replica, tokens, link).get();
        let per_token = (at(FAR) - at(NEAR)) / (FAR - NEAR) as f64;
        Transfer {
            latency: picoseconds(at(NEAR) - per_token * NEAR as f64),
            per_token: picoseconds(per_token),
        }
    }
}

impl StepTime for TimedReplica {
    fn prefill(&self, shape: &StepShape) -> Picoseconds {
        picoseconds(self.replica.timer().seconds_in_sequence(shape))
    }

    fn decode(&self, decodes: u32) -> DecodeTime {
        let context = self.usual_context.saturating_mul(decodes.into());
        let line = self.replica.timer().decode_line(decodes, context);
        let tokens = self.replica.deployment().tokens_per_step();
        DecodeTime { base: picoseconds(line.base / tokens), slope: picoseconds(line.slope / tokens) }
    }
}
