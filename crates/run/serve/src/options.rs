//! How a model is served.

use bedplate_batching::{PreemptionMode, SchedulerOptions};
use bedplate_kernels::{Device, DeviceChoice, KvFormat, WeightFormat};

/// The settings of an engine.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineOptions {
    /// What computes.
    pub device: DeviceChoice,
    /// Threads of the processor; 0 is all of them.
    pub threads: usize,
    pub activations: Activations,
    /// The format of matrices in memory; without one, that of the files.
    pub weights: Option<WeightFormat>,
    /// Makes weights from this seed on the device instead of reading files, for measurements.
    pub random_weights: Option<u64>,
    /// Most tokens of prompt and answer together; at most what the model was made for.
    pub context_limit: u32,
    pub block_tokens: u32,
    /// How keys and values lie in memory.
    pub kv: KvFormat,
    /// Bytes for keys and values.
    pub kv_bytes: u64,
    /// Most bytes for them on a GPU, which takes what is free beside the weights; without it, `kv_bytes`.
    pub kv_bytes_on_gpu: Option<u64>,
    /// Most tokens of a step.
    pub token_budget: u32,
    /// Most tokens of one prompt in a step.
    pub chunk_tokens: u32,
    /// The same two on a GPU, where they differ there.
    pub token_budget_on_gpu: Option<u32>,
    pub chunk_tokens_on_gpu: Option<u32>,
    /// Most sequences that run at once.
    pub max_seqs: u32,
    /// The most on a GPU, where its memory decides: as many as have room for [`TOKENS_OF_A_SEQUENCE`] tokens each.
    pub max_seqs_on_gpu: Option<u32>,
    /// Most requests that wait before others are refused.
    pub waiting_limit: u32,
    pub keeps_prefixes: bool,
    pub preemption: PreemptionMode,
    /// Bytes of host memory for sequences that are swapped out, and for prefixes that fell out of the pool.
    pub swap_bytes: u64,
    pub spill_bytes: u64,
    /// A folder for prefixes that fell out of host memory, and how many bytes may be there.
    pub spill_folder: Option<(std::path::PathBuf, u64)>,
    /// Speculative tokens from what the text has already; 0 is none.
    pub draft_tokens: u32,
    pub seed: u64,
}

/// What a sequence is expected to be long, prompt and answer together, where its number decides how many run at once. Those that are longer than
/// memory allows are preempted.
const TOKENS_OF_A_SEQUENCE: u64 = 1024;
/// As few as run at once on a GPU whose memory is nearly used up by weights.
const LEAST_SEQUENCES_ON_GPU: u32 = 16;

/// The format of activations, and of keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activations {
    F32,
    Bf16,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            device: DeviceChoice::Cpu,
            threads: 0,
            activations: Activations::Bf16,
            weights: None,
            random_weights: None,
            context_limit: u32::MAX,
            block_tokens: 16,
            kv: KvFormat::Stored,
            kv_bytes: 1 << 30,
            kv_bytes_on_gpu: None,
            token_budget: 512,
            chunk_tokens: 512,
            token_budget_on_gpu: None,
            chunk_tokens_on_gpu: None,
            max_seqs: 64,
            max_seqs_on_gpu: None,
            waiting_limit: 4096,
            keeps_prefixes: true,
            preemption: PreemptionMode::Recompute,
            swap_bytes: 0,
            spill_bytes: 0,
            spill_folder: None,
            draft_tokens: 0,
            seed: 0,
        }
    }
}

impl EngineOptions {
    /// Bytes that a token's keys and values take.
    pub fn kv_bytes_per_token(&self, model: &crate::Model) -> u64 {
        // In fp8 a key and a value of a head have a byte more, for their scales.
        let (size, more) = match (self.kv, self.activations) {
            (KvFormat::Fp8, _) => (1, 1),
            (_, Activations::F32) => (4, 0),
            (_, Activations::Bf16) => (2, 0),
        };
        let attention = |layer: &bedplate_transformer::Layer| match layer.attention {
            bedplate_transformer::Attention::GroupedQuery(attention) => {
                2 * attention.kv_heads * (attention.head_dim + more)
            }
            other => other.kv_values_per_token(),
        };
        model.architecture.transformer.layers().map(attention).sum::<u64>() * size
    }

    /// What is said of a GPU holds where one computes; `kv_bytes` is what keys and values get, `block_bytes` what a block of them takes.
    pub(crate) fn on(&self, device: &Device, kv_bytes: u64, block_bytes: u64) -> Self {
        let on_gpu = |usual: u32, there: Option<u32>| there.filter(|_| !device.is_cpu()).unwrap_or(usual);
        Self {
            kv_bytes,
            max_seqs: on_gpu(
                self.max_seqs,
                self.max_seqs_on_gpu.map(|most| {
                    let tokens = kv_bytes / block_bytes.max(1) * u64::from(self.block_tokens);
                    sequences_of(tokens, most)
                }),
            ),
            token_budget: on_gpu(self.token_budget, self.token_budget_on_gpu),
            chunk_tokens: on_gpu(self.chunk_tokens, self.chunk_tokens_on_gpu),
            ..self.clone()
        }
    }

    /// The scheduler's settings, given the blocks that there are.
    pub(crate) fn scheduler(&self, blocks: u32, host_blocks: u32, context_limit: u32) -> SchedulerOptions {
        SchedulerOptions {
            block_tokens: self.block_tokens,
            blocks,
            token_budget: self.token_budget,
            chunk_tokens: self.chunk_tokens,
            max_seqs: self.max_seqs,
            context_limit,
            preemption: self.preemption,
            host_blocks,
            watermark_blocks: (blocks / 100).min(160),
            keeps_prefixes: self.keeps_prefixes,
            ..SchedulerOptions::default()
        }
    }
}

/// How many sequences run at once on a GPU with room for the keys and values of so many tokens.
fn sequences_of(tokens: u64, most: u32) -> u32 {
    let fitting = u32::try_from(tokens / TOKENS_OF_A_SEQUENCE).unwrap_or(u32::MAX);
    fitting.clamp(LEAST_SEQUENCES_ON_GPU.min(most), most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_sequences_run_as_memory_has_room_for() {
        // A small card, one that the weights leave 20 GB of, one with more than enough; a limit below the least.
        let sequences = [0, 20_000, 160_000, 800_000].map(|tokens| sequences_of(tokens, 256));
        assert_eq!(sequences, [16, 19, 156, 256]);
        assert_eq!(sequences_of(1 << 40, 8), 8);
    }
}
