//! What one GPU must hold at the worst moment of a step.
//!
//! Weights in bf16, gradients and master state by stack and optimizer, split as the layout says.
//! Activations by schedule position: the first stage of 1F1B holds `min(pp, m)` micro-batches in flight,
//! an interleaved one `1 + (pp-1)/(pp vpp)` times as many (Narayanan et al., arXiv:2104.04473); the last
//! stage holds fewer, and the logits. Where layers do not divide, the second stage may have one more than the first. The
//! heaviest of the three counts.

use bedplate_layout::{ComputePrecision, Recompute, Schedule, Sharding};
use bedplate_units::Bytes;

use crate::problem::{Grid, Problem};
use crate::{LayerCosts, Offload, Task};

/// Bytes of one GPU by what they hold. [`MemoryUse::total`] is their sum.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MemoryUse {
    pub weights: Bytes,
    pub gradients: Bytes,
    pub optimizer: Bytes,
    pub activations: Bytes,
    pub logits: Bytes,
    /// Gathered weights and buffers of collectives.
    pub communication: Bytes,
    /// Context, libraries, and what an allocator loses.
    pub workspace: Bytes,
    /// Of the state of another rank, and of its own as it was, where ranks survive each other.
    pub copies: Bytes,
}

impl MemoryUse {
    pub fn total(&self) -> Bytes {
        self.parts().into_iter().map(|(_, bytes)| bytes).sum()
    }

    /// All that every run has, and copies where there are any.
    pub fn parts(&self) -> Vec<(&'static str, Bytes)> {
        let copies = ("copies", self.copies);
        let mut parts = vec![
            ("weights", self.weights),
            ("gradients", self.gradients),
            ("optimizer", self.optimizer),
            ("activations", self.activations),
            ("logits", self.logits),
            ("communication", self.communication),
            ("workspace", self.workspace),
        ];
        parts.extend((!self.copies.is_zero()).then_some(copies));
        parts
    }
}

/// Whether a step fits, and by how much.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fit {
    Fits {
        spare: Bytes,
    },
    /// It is predicted to fit, but the margin is within the model's error.
    Tight {
        spare: Bytes,
    },
    DoesNotFit {
        over: Bytes,
    },
}

impl Fit {
    pub fn name(self) -> &'static str {
        match self {
            Fit::Fits { .. } => "fits",
            Fit::Tight { .. } => "tight",
            Fit::DoesNotFit { .. } => "does not fit",
        }
    }

    /// Compares `needed` with `available`.
    pub fn new(needed: Bytes, available: Bytes) -> Self {
        let spare = available - needed;
        if spare < Bytes::ZERO {
            Fit::DoesNotFit { over: needed - available }
        } else if spare < available * TIGHT {
            Fit::Tight { spare }
        } else {
            Fit::Fits { spare }
        }
    }

    pub fn is_possible(self) -> bool {
        !matches!(self, Fit::DoesNotFit { .. })
    }
}

/// Below this spare share a layout is called tight, and up to this share over a near miss: between the median
/// errors of predicted memory with and without the scored source in the fit.
pub(crate) const TIGHT: f64 = 0.1;

const GIB: f64 = 1024.0 * 1024.0 * 1024.0;

/// A count for everything but routed experts, and one for routed experts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Split {
    pub(crate) dense: f64,
    pub(crate) expert: f64,
}

impl Problem {
    /// Ranks that hold the same weights, and ranks that hold the same experts.
    pub(crate) fn replicas(&self, costs: &LayerCosts, grid: &Grid) -> Split {
        let key = &costs.key;
        let dense = f64::from(grid.data) * f64::from(key.context);
        let expert = dense * f64::from(key.tensor) / (f64::from(key.expert) * f64::from(key.expert_tensor));
        Split { dense, expert: expert.max(1.0) }
    }

    /// Ranks over which sharded state of a layout is spread.
    pub(crate) fn shards(&self, costs: &LayerCosts, grid: &Grid) -> Split {
        let replicas = self.replicas(costs, grid);
        match grid.sharding {
            Sharding::None => Split { dense: 1.0, expert: 1.0 },
            Sharding::WeightsWithin(group) => {
                Split { dense: f64::from(group), expert: f64::from(group).min(replicas.expert) }
            }
            _ => replicas,
        }
    }

    /// Micro-batches of one step.
    pub(crate) fn micro_batches(&self, costs: &LayerCosts, grid: &Grid) -> f64 {
        let at_once = f64::from(grid.data) * f64::from(costs.key.micro_batch);
        (self.workload.global_batch as f64 / at_once).max(1.0)
    }

    /// Memory of the heavier of the first and the last stage. About fifty flops.
    pub fn memory(&self, costs: &LayerCosts, grid: &Grid) -> MemoryUse {
        if let Some(host) = &self.host {
            return host.memory(&costs.key, grid, self.micro_batches(costs, grid));
        }
        let whole = self.memory_without_offload(costs, grid);
        if self.workload.offload != Offload::Activations {
            return whole;
        }
        let moved = whole.activations * self.offloaded_share(&whole);
        MemoryUse { activations: whole.activations - moved, ..whole }
    }

    fn memory_without_offload(&self, costs: &LayerCosts, grid: &Grid) -> MemoryUse {
        let split = self.stage_layers(costs, grid);
        let leading = if grid.pipeline == 1 { self.leading } else { self.leading_of_first(grid, &split) };
        let first = self.stage_memory(costs, grid, Stage::First, split.first as f64, leading);
        if grid.pipeline == 1 {
            return first;
        }
        let heavier = |a: MemoryUse, b: MemoryUse| if b.total() > a.total() { b } else { a };
        let last = self.stage_memory(costs, grid, Stage::Last, split.last as f64, 0.0);
        let ends = heavier(first, last);
        if grid.pipeline == 2 || split.longest <= split.first && leading == 0.0 {
            return ends;
        }
        heavier(ends, self.stage_memory(costs, grid, Stage::Second, split.longest as f64, 0.0))
    }

    /// The share of the activations that leaves for the host: what does not fit with room to spare.
    fn offloaded_share(&self, whole: &MemoryUse) -> f64 {
        let over = whole.total().get() - (1.0 - TIGHT) * self.hardware.memory;
        (over / whole.activations.get().max(1.0)).clamp(0.0, MOST_OFFLOADED)
    }

    /// Bytes of one micro-batch that travel to the host and back, over all layers of a stage.
    pub(crate) fn offloaded_bytes(&self, costs: &LayerCosts, grid: &Grid, layers: f64) -> f64 {
        let share = self.offloaded_share(&self.memory_without_offload(costs, grid));
        2.0 * share * layers * costs.kept_bytes
    }

    pub fn fit(&self, memory: &MemoryUse) -> Fit {
        Fit::new(memory.total(), Bytes::new(self.hardware.memory))
    }

    fn stage_memory(
        &self,
        costs: &LayerCosts,
        grid: &Grid,
        stage: Stage,
        stage_layers: f64,
        leading: f64,
    ) -> MemoryUse {
        // DualPipe gives every rank a stage of each direction.
        let (layers, tables) = match grid.schedule {
            Schedule::DualPipe => (2.0 * stage_layers, self.table_parameters(costs)),
            _ => (stage_layers, self.tables(costs, grid, stage)),
        };
        let part = costs.of_stage(layers, leading);
        let shards = self.shards(costs, grid);
        let splits_weights = matches!(grid.sharding, Sharding::Weights | Sharding::WeightsWithin(_));
        let splits_gradients = splits_weights || grid.sharding == Sharding::Gradients;
        let per_rank = |held: Split, is_split: bool| {
            if is_split {
                held.dense / shards.dense + held.expert / shards.expert
            } else {
                held.dense + held.expert
            }
        };
        let held = Split { dense: part.dense + tables, expert: part.expert };
        let is_frozen = matches!(self.workload.task, Task::Lora { .. });
        let trained = Split {
            dense: part.trained_dense + if is_frozen { 0.0 } else { tables },
            expert: part.trained_expert,
        };
        let optimizer = match self.workload.offload {
            Offload::Nothing | Offload::Activations => {
                per_rank(trained, true) * self.optimizer_bytes(splits_weights)
            }
            Offload::Optimizer => 0.0,
        };
        // Both of DualPipe's stages take their turns with the same micro-batches in flight.
        let kept = if layers > stage_layers { 0.5 * part.kept } else { part.kept };
        let activations = self.activations(costs, grid, stage, kept);
        let logits = if has_head(grid, stage) { costs.logits_bytes } else { 0.0 };
        let layer = costs.dense_parameters + costs.expert_parameters;
        let workspace = self.profile.workspace * GIB + self.constants.fragmentation * (activations + logits);
        MemoryUse {
            weights: Bytes::new(per_rank(held, splits_weights) * WEIGHT_BYTES),
            gradients: Bytes::new(per_rank(trained, splits_gradients) * self.gradient_bytes(costs)),
            optimizer: Bytes::new(optimizer),
            activations: Bytes::new(activations),
            logits: Bytes::new(logits),
            // The current layer and the next one, both gathered in full.
            communication: Bytes::new(if splits_weights { 2.0 * layer * WEIGHT_BYTES } else { 0.0 }),
            workspace: Bytes::new(workspace),
            copies: Bytes::ZERO,
        }
    }

    /// Parameters of the embedding and the head over all stages; tied ones only once.
    pub(crate) fn table_parameters(&self, costs: &LayerCosts) -> f64 {
        let head = if self.has_tied_embeddings { 0.0 } else { costs.head_parameters };
        costs.embedding_parameters + head
    }

    /// The trainable ones among them; adapters do not touch them.
    pub(crate) fn trained_tables(&self, costs: &LayerCosts) -> f64 {
        let is_frozen = matches!(self.workload.task, Task::Lora { .. });
        if is_frozen { 0.0 } else { self.table_parameters(costs) }
    }

    /// Parameters of the embedding and the head that a stage holds; tied ones only once.
    fn tables(&self, costs: &LayerCosts, grid: &Grid, stage: Stage) -> f64 {
        let has_head = has_head(grid, stage);
        let has_embedding = grid.pipeline == 1 || stage == Stage::First;
        match (has_embedding, has_head) {
            (true, true) if self.has_tied_embeddings => costs.embedding_parameters,
            (true, true) => costs.embedding_parameters + costs.head_parameters,
            (true, false) => costs.embedding_parameters,
            (false, true) => costs.head_parameters,
            (false, false) => 0.0,
        }
    }

    /// Moments and master weights of one parameter. Sharded weights are kept in fp32 and gathered in bf16,
    /// so there the master copy counts only for its excess over the weight.
    fn optimizer_bytes(&self, splits_weights: bool) -> f64 {
        let master = if splits_weights { 2.0 } else { 4.0 };
        self.workload.optimizer.bytes_per_parameter() + master + self.profile.extra_state
    }

    fn gradient_bytes(&self, costs: &LayerCosts) -> f64 {
        match costs.key.precision {
            ComputePrecision::Fp16 => self.profile.gradient_memory_fp16,
            _ => self.profile.gradient_memory,
        }
    }

    /// What a stage keeps between forward and backward passes, and one layer's working memory where it is recomputed.
    fn activations(&self, costs: &LayerCosts, grid: &Grid, stage: Stage, kept: f64) -> f64 {
        let in_flight = in_flight(grid, stage, self.micro_batches(costs, grid));
        let working = if costs.key.recompute == Recompute::Full { costs.working_bytes } else { 0.0 };
        (kept * in_flight + working) * self.profile.activation_memory
    }
}

/// Layers at work, and those that arrive and leave, stay.
const MOST_OFFLOADED: f64 = 0.95;

/// bf16 or fp16; master copies in fp32 belong to the optimizer.
const WEIGHT_BYTES: f64 = 2.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    First,
    /// The first one without the embedding, which may have more layers.
    Second,
    Last,
}

fn has_head(grid: &Grid, stage: Stage) -> bool {
    grid.pipeline == 1 || stage == Stage::Last
}

/// Micro-batches whose activations a stage holds at once. An interleaved schedule has `(v-1)p + 1` chunks in
/// flight on the last stage and `2(p-1)` more on the first, each a `v`-th of the stage. DualPipe has `p + 1` everywhere.
fn in_flight(grid: &Grid, stage: Stage, micro_batches: f64) -> f64 {
    let (p, v) = (f64::from(grid.pipeline), f64::from(grid.virtual_stages));
    if grid.schedule == Schedule::DualPipe {
        return (p + 1.0).min(micro_batches);
    }
    let behind = match stage {
        Stage::First => p - 1.0,
        Stage::Second => p - 2.0,
        Stage::Last => 0.0,
    };
    let chunks = (v - 1.0) * p + 1.0 + if v > 1.0 { 2.0 * behind } else { behind };
    (chunks / v).min(micro_batches)
}
