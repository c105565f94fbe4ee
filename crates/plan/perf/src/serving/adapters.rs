//! Low-rank adapters (LoRA) beside the weights: what those that are loaded take, and what their products add to a step.
//!
//! Every projection of attention, dense MLPs and shared experts has an adapter; routers and routed experts have none. An adapter of a
//! matrix is a product with `rank` columns and one with `rank` rows, in bf16. Tensor ranks split the one that the matrix is split
//! along and keep the other whole, as engines do by default.

use bedplate_transformer::{Layer, Matrix, MatrixRole, ParameterPart};

use super::{Deployment, Engine, ServingConstants};

/// Adapters that are loaded at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadedAdapters {
    pub loaded: u32,
    pub rank: u32,
}

/// Ranks for which vLLM reserves memory.
const VLLM_RANKS: [u32; 8] = [8, 16, 32, 64, 128, 256, 320, 512];

impl LoadedAdapters {
    /// The largest rank that all engines take.
    pub const LARGEST_RANK: u32 = 512;

    /// The rank that an engine reserves memory for.
    pub fn reserved_rank(&self, engine: Engine) -> u32 {
        match engine {
            Engine::Vllm => VLLM_RANKS.into_iter().find(|rank| *rank >= self.rank).unwrap_or(self.rank),
            Engine::Sglang | Engine::TensorRtLlm | Engine::Bedplate => self.rank,
        }
    }

    /// Bytes on one GPU.
    pub(super) fn bytes_per_gpu(&self, deployment: &Deployment) -> f64 {
        let rank = f64::from(self.reserved_rank(deployment.engine));
        f64::from(self.loaded) * rank * BYTES * values_per_rank(deployment)
    }
}

const BYTES: f64 = 2.0;

/// What adapters add to a step, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct LowRank {
    loaded: f64,
    /// Attention data ranks, which serve different sequences.
    ranks: f64,
    read_each: f64,
    per_token: f64,
    /// Of kernels that wait for each other.
    pub(super) latency: f64,
}

impl LowRank {
    /// `read` is in bytes per second, `arithmetic` in FLOP per second.
    pub(super) fn new(
        deployment: &Deployment,
        constants: &ServingConstants,
        read: f64,
        arithmetic: f64,
    ) -> Option<Self> {
        let adapters = deployment.adapters?;
        // A pass crosses all stages.
        let values =
            f64::from(adapters.rank) * values_per_rank(deployment) * f64::from(deployment.parallel.pipeline);
        let kernels: u64 =
            deployment.model.transformer.runs.iter().map(|run| run.count * kernels(&run.layer)).sum();
        Some(Self {
            loaded: f64::from(adapters.loaded),
            ranks: f64::from(deployment.parallel.attention_data),
            read_each: BYTES * values / read,
            per_token: 2.0 * values / arithmetic,
            latency: kernels as f64 * constants.layer_latency / KERNELS_OF_A_LAYER,
        })
    }

    /// Reads of the adapters that the sequences of a step use, each as often as any other.
    pub(super) fn read(&self, sequences: f64) -> f64 {
        let missed = (1.0 - 1.0 / self.loaded).powf(sequences / self.ranks);
        self.loaded * (1.0 - missed) * self.read_each
    }

    pub(super) fn arithmetic(&self, tokens: f64) -> f64 {
        self.per_token * tokens / self.ranks
    }
}

/// Kernels of a dense layer that wait for each other: a norm, queries with keys and values, rotation, attention, output, a norm, gate
/// with up, activation, down.
const KERNELS_OF_A_LAYER: f64 = 9.0;

/// Values on one GPU for each unit of rank.
fn values_per_rank(deployment: &Deployment) -> f64 {
    let model = &deployment.model.transformer;
    let tensor = f64::from(deployment.parallel.tensor);
    let of = |layer: &Layer| -> f64 {
        let adapted = layer.matrices(model.hidden).into_iter().filter(has_adapter);
        adapted.map(|matrix| values(&matrix, tensor)).sum()
    };
    let all: f64 = model.runs.iter().map(|run| run.count as f64 * of(&run.layer)).sum();
    all / f64::from(deployment.parallel.pipeline)
}

fn has_adapter(matrix: &Matrix) -> bool {
    let is_adapted = matches!(
        matrix.part,
        ParameterPart::Attention | ParameterPart::DenseMlp | ParameterPart::SharedExperts
    );
    let is_steering = matches!(
        matrix.role,
        MatrixRole::IndexerQuery
            | MatrixRole::IndexerKey
            | MatrixRole::IndexerWeights
            | MatrixRole::SharedGate
    );
    is_adapted && !is_steering
}

fn values(matrix: &Matrix, tensor: f64) -> f64 {
    let (inputs, outputs) = (matrix.inputs as f64, matrix.outputs as f64);
    match matrix.role {
        MatrixRole::Output | MatrixRole::Down => inputs / tensor + outputs,
        MatrixRole::QueryDown | MatrixRole::KvDown => inputs + outputs,
        _ => inputs + outputs / tensor,
    }
}

/// Two for each product of a layer; products of the same input are one.
fn kernels(layer: &Layer) -> u64 {
    let is_first = |matrix: &Matrix| {
        !matches!(matrix.role, MatrixRole::Key | MatrixRole::Value | MatrixRole::Up | MatrixRole::KvDown)
    };
    // The width does not matter to their number.
    2 * layer.matrices(1).iter().filter(|matrix| has_adapter(matrix) && is_first(matrix)).count() as u64
}
