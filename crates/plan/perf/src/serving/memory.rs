//! What fits: weights, cache per token and per sequence, and how many tokens the rest of a GPU holds.

use bedplate_transformer::{Attention, ParameterPart, Reach};
use bedplate_units::Bytes;

use super::{Deployment, ServingConstants};

/// Tokens of one KV block.
pub const BLOCK_TOKENS: u64 = 16;

/// Memory of a replica, per GPU and as room for tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ServingMemory {
    /// Weights of the fullest GPU.
    pub weights_per_gpu: Bytes,
    /// Adapters that are loaded beside them.
    pub adapters_per_gpu: Bytes,
    /// The vision encoder, where the model has one.
    pub encoder_per_gpu: Bytes,
    /// What the engine may use of a GPU.
    pub budget_per_gpu: Bytes,
    /// Cache of one more token of a sequence, over all GPUs that keep it.
    pub kv_per_token: Bytes,
    /// What a sequence keeps regardless of its length: full windows and states of linear attention.
    pub kv_per_sequence: Bytes,
    pub room: KvRoom,
}

/// What is left for the cache.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum KvRoom {
    Fits {
        /// Bytes over all GPUs of the replica.
        bytes: Bytes,
        /// Tokens that these hold, before the fixed part of each sequence.
        tokens: u64,
        /// The same in blocks of [`BLOCK_TOKENS`].
        blocks: u64,
    },
    /// Weights and workspace exceed a GPU's budget by this much.
    DoesNotFit { over_per_gpu: Bytes },
}

impl KvRoom {
    pub fn is_possible(&self) -> bool {
        matches!(self, KvRoom::Fits { tokens, .. } if *tokens > 0)
    }

    /// Tokens that fit; zero where the model does not.
    pub fn tokens(&self) -> u64 {
        match self {
            KvRoom::Fits { tokens, .. } => *tokens,
            KvRoom::DoesNotFit { .. } => 0,
        }
    }
}

impl ServingMemory {
    pub fn new(deployment: &Deployment, constants: &ServingConstants) -> Self {
        let weights = weights_per_gpu(deployment);
        let budget = deployment.hardware.memory * deployment.settings.memory_share;
        let adapters = deployment.adapters.map_or(0.0, |adapters| adapters.bytes_per_gpu(deployment));
        let encoder = super::images::encoder_bytes_per_gpu(deployment);
        let free = budget - weights - adapters - encoder - constants.workspace * 1e9;
        // One attention data rank keeps a sequence; its tensor ranks and stages share it.
        let replica = f64::from(deployment.parallel.gpus());
        let holders = f64::from(deployment.parallel.tensor) * f64::from(deployment.parallel.pipeline);
        let stages = f64::from(deployment.parallel.pipeline);
        let kept = Kept::new(deployment);
        let per_gpu_token = kept.per_token / stages;
        let room = if free <= 0.0 {
            KvRoom::DoesNotFit { over_per_gpu: Bytes::new(-free) }
        } else {
            let tokens = free / per_gpu_token.max(1e-9) * (replica / holders);
            let tokens = tokens.min(1e15) as u64;
            KvRoom::Fits { bytes: Bytes::new(free * replica), tokens, blocks: tokens / BLOCK_TOKENS }
        };
        Self {
            weights_per_gpu: Bytes::new(weights),
            adapters_per_gpu: Bytes::new(adapters),
            encoder_per_gpu: Bytes::new(encoder),
            budget_per_gpu: Bytes::new(budget),
            kv_per_token: Bytes::new(per_gpu_token * holders),
            kv_per_sequence: Bytes::new(kept.per_sequence / stages * holders),
            room,
        }
    }

    /// Tokens of cache that a sequence of `context` tokens takes, including its fixed part.
    pub fn tokens_of(&self, context: u64) -> u64 {
        let per_token = self.kv_per_token.get();
        let fixed = if per_token > 0.0 { self.kv_per_sequence.get() / per_token } else { 0.0 };
        context.saturating_add(fixed.ceil().min(1e15) as u64)
    }
}

/// Bytes of weights on one GPU of a replica.
fn weights_per_gpu(deployment: &Deployment) -> f64 {
    let model = &deployment.model;
    let tensor = f64::from(deployment.parallel.tensor);
    let stage = f64::from(deployment.parallel.stage_gpus());
    let stages = f64::from(deployment.parallel.pipeline);
    let more = model.linear.map_or(0, |linear| linear.layers * linear.more_parameters) as f64;
    let mixture = model.transformer.runs.iter().find_map(|run| run.layer.mlp.mixture());
    let copies = mixture.map_or(1.0, |mixture| {
        deployment.parallel.expert_places(mixture.experts) as f64 / mixture.experts as f64
    });
    let bytes = |(part, count): (ParameterPart, u64)| {
        let count = match part {
            ParameterPart::Attention => count as f64 + more,
            ParameterPart::Experts => count as f64 * copies,
            _ => count as f64,
        };
        let ranks = if part == ParameterPart::Experts { stage } else { tensor };
        count * deployment.weights.of(part).bytes_per_value() / ranks / stages
    };
    model.transformer.parameters().parts().map(bytes).sum()
}

/// Bytes of a sequence on one GPU that has all layers.
struct Kept {
    per_token: f64,
    per_sequence: f64,
}

impl Kept {
    fn new(deployment: &Deployment) -> Self {
        let model = &deployment.model;
        let mut kept = Self { per_token: 0.0, per_sequence: 0.0 };
        for run in &model.transformer.runs {
            let bytes = run.count as f64 * kv_bytes_of_layer(deployment, &run.layer.attention);
            match run.layer.reach {
                Reach::Full => kept.per_token += bytes,
                Reach::Window(size) | Reach::Chunk(size) => kept.per_sequence += bytes * size as f64,
            }
        }
        if let Some(linear) = model.linear {
            let tensor = f64::from(deployment.parallel.tensor);
            kept.per_sequence += linear.layers as f64 * linear.state_bytes / tensor;
        }
        kept
    }
}

/// Bytes of a token in one layer on one GPU. Heads are split over tensor ranks until each has one; a latent
/// is kept whole by every rank.
pub(crate) fn kv_bytes_of_layer(deployment: &Deployment, attention: &Attention) -> f64 {
    let bytes = attention.kv_values_per_token() as f64 * deployment.kv.bytes_per_value();
    match attention {
        Attention::GroupedQuery(grouped) => {
            bytes / f64::from(deployment.parallel.tensor).min(grouped.kv_heads as f64)
        }
        Attention::Latent(_) | Attention::Recurrent(_) | Attention::Absent => bytes,
    }
}
