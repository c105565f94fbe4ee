//! The cost of one mean layer and of the head, for one micro-batch on one rank.
//!
//! [`LayerCosts`] depends on how a layer is cut (tensor, context, expert degrees, micro-batch, precision,
//! recompute) and not on how many stages or data ranks there are, so a search computes it once for
//! thousands of layouts. Everything is a mean over the model's layers, weighted by the number of layers of
//! each kind; where the first layers differ from all others, as in DeepSeek, stages have their own mix of the two.

use bedplate_layout::{ComputePrecision, Layout, Recompute, Schedule};
use bedplate_transformer::Layer;

use crate::block::{LayerSplit, Sum};
use crate::exchange::Exchanges;
use crate::kernel::{AttentionKernel, Passes, Product, rounded_max};
use crate::problem::Problem;
use crate::{ExpertOverlap, Generation, Stack, Task};

/// The parts of a layout that decide the cost of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LayerKey {
    pub tensor: u32,
    pub is_sequence_parallel: bool,
    pub context: u32,
    pub expert: u32,
    pub expert_tensor: u32,
    pub micro_batch: u32,
    pub precision: ComputePrecision,
    pub recompute: Recompute,
    /// The schedule hides exchanges of experts behind the work of another micro-batch.
    pub hides_experts: bool,
}

impl LayerKey {
    pub fn of(layout: &Layout) -> Self {
        Self {
            tensor: layout.tensor,
            is_sequence_parallel: layout.is_sequence_parallel,
            context: layout.context,
            expert: layout.expert,
            expert_tensor: layout.expert_tensor,
            micro_batch: layout.micro_batch,
            precision: layout.precision,
            recompute: layout.recompute,
            hides_experts: layout.schedule == Schedule::DualPipe,
        }
    }
}

/// Seconds and bytes of one micro-batch on one rank: a mean layer, the embedding and the head.
///
/// Build it with [`Problem::layer_costs`], combine it with [`Problem::combine`].
#[derive(Debug, Clone, Copy)]
pub struct LayerCosts {
    pub(crate) key: LayerKey,
    /// Per layer: arithmetic, with recomputation in the backward pass.
    pub(crate) compute: Passes,
    /// Per layer: work bound by memory.
    pub(crate) memory: Passes,
    /// Per layer: waiting for the host.
    pub(crate) host: f64,
    pub(crate) exchanges: Exchanges,
    /// Per layer, all of the above: what a layer takes, forward and backward.
    pub(crate) layer_seconds: f64,
    pub(crate) head_compute: f64,
    pub(crate) head_memory: f64,
    pub(crate) stage_send: f64,
    /// Parameters of this rank per layer: everything but routed experts, and routed experts.
    pub(crate) dense_parameters: f64,
    pub(crate) expert_parameters: f64,
    /// Parameters of this rank outside layers.
    pub(crate) embedding_parameters: f64,
    pub(crate) head_parameters: f64,
    /// Trainable parameters of this rank per layer.
    pub(crate) trained_dense: f64,
    pub(crate) trained_expert: f64,
    /// Bytes kept per layer and micro-batch between forward and backward.
    pub(crate) kept_bytes: f64,
    /// Working memory of one layer.
    pub(crate) working_bytes: f64,
    pub(crate) logits_bytes: f64,
    /// Where the first layers differ from the others: one of each.
    pub(crate) kinds: Option<Kinds>,
}

/// A layer of the first ones and a mean layer of the others.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kinds {
    pub(crate) leading: LayerPart,
    pub(crate) others: LayerPart,
}

/// What layers of a stage take and hold.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LayerPart {
    pub(crate) seconds: f64,
    pub(crate) dense: f64,
    pub(crate) expert: f64,
    pub(crate) trained_dense: f64,
    pub(crate) trained_expert: f64,
    pub(crate) kept: f64,
}

impl std::ops::Add for LayerPart {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            seconds: self.seconds + other.seconds,
            dense: self.dense + other.dense,
            expert: self.expert + other.expert,
            trained_dense: self.trained_dense + other.trained_dense,
            trained_expert: self.trained_expert + other.trained_expert,
            kept: self.kept + other.kept,
        }
    }
}

impl std::ops::Mul<f64> for LayerPart {
    type Output = Self;
    fn mul(self, factor: f64) -> Self {
        Self {
            seconds: self.seconds * factor,
            dense: self.dense * factor,
            expert: self.expert * factor,
            trained_dense: self.trained_dense * factor,
            trained_expert: self.trained_expert * factor,
            kept: self.kept * factor,
        }
    }
}

impl LayerCosts {
    /// A mean layer.
    fn part(&self) -> LayerPart {
        LayerPart {
            seconds: self.layer_seconds,
            dense: self.dense_parameters,
            expert: self.expert_parameters,
            trained_dense: self.trained_dense,
            trained_expert: self.trained_expert,
            kept: self.kept_bytes,
        }
    }

    /// `layers` layers of a stage, `leading` of them of the first kind.
    pub(crate) fn of_stage(&self, layers: f64, leading: f64) -> LayerPart {
        match &self.kinds {
            None => self.part() * layers,
            Some(kinds) => kinds.leading * leading + kinds.others * (layers - leading),
        }
    }

    /// A layer that costs nothing.
    pub(crate) fn empty(key: LayerKey) -> Self {
        Self {
            key,
            compute: Passes::default(),
            memory: Passes::default(),
            host: 0.0,
            exchanges: Exchanges::default(),
            layer_seconds: 0.0,
            head_compute: 0.0,
            head_memory: 0.0,
            stage_send: 0.0,
            dense_parameters: 0.0,
            expert_parameters: 0.0,
            embedding_parameters: 0.0,
            head_parameters: 0.0,
            trained_dense: 0.0,
            trained_expert: 0.0,
            kept_bytes: 0.0,
            working_bytes: 0.0,
            logits_bytes: 0.0,
            kinds: None,
        }
    }
}

impl Problem {
    /// Prices one way to cut a layer. Takes a few microseconds; allocates nothing.
    pub fn layer_costs(&self, key: LayerKey) -> LayerCosts {
        if let Some(host) = &self.host {
            return host.layer_costs(key);
        }
        let split = self.layer_split(&key);
        let mut sum = Sum::default();
        for (layer, share) in &self.kinds {
            self.add_layer(&mut sum, layer, *share, &split);
        }
        LayerCosts { kinds: self.layer_kinds(key, &split), ..self.finish(key, &split, sum) }
    }

    fn layer_kinds(&self, key: LayerKey, split: &LayerSplit) -> Option<Kinds> {
        let ((first, share), others) = self.kinds.split_first().filter(|_| self.leading > 0.0)?;
        let mut leading = Sum::default();
        self.add_layer(&mut leading, first, 1.0, split);
        let mut later = Sum::default();
        for (layer, other) in others {
            self.add_layer(&mut later, layer, other / (1.0 - share), split);
        }
        let part = |sum: Sum| self.finish(key, split, sum).part();
        Some(Kinds { leading: part(leading), others: part(later) })
    }

    fn layer_split(&self, key: &LayerKey) -> LayerSplit {
        let tensor = f64::from(key.tensor);
        LayerSplit {
            tokens: f64::from(key.micro_batch) * self.workload.sequence as f64 / f64::from(key.context),
            tensor,
            sequence_split: if key.is_sequence_parallel { tensor } else { 1.0 },
            context: f64::from(key.context),
            expert: f64::from(key.expert),
            expert_tensor: f64::from(key.expert_tensor),
            precision: key.precision,
            is_frozen: matches!(self.workload.task, Task::Lora { .. }),
        }
    }

    fn finish(&self, key: LayerKey, split: &LayerSplit, sum: Sum) -> LayerCosts {
        let repeats = self.repeats(key.recompute);
        let attention = with_repeat(sum.attention, repeats.attention);
        let compute = with_repeat(sum.products, repeats.products) + attention;
        let mut memory = with_repeat(sum.memory, repeats.memory);
        memory.backward += repeats.cheap * sum.again;
        let trained = self.trained(sum.dense_parameters, sum.adapter_parameters);
        let trained_expert = if split.is_frozen { 0.0 } else { sum.expert_parameters };
        memory.backward += self.kernels.stream((trained + trained_expert) * self.profile.accumulation);
        let work = compute.both() + memory.both();
        let overlap =
            if key.hides_experts { ExpertOverlap::Overlapped } else { self.workload.expert_overlap };
        let exchanges = self.exchanges(&sum, split, work, attention.both(), repeats.exchanges, overlap);
        let busy = work + exchanges.exposed();
        let routing = waiting_for_host(sum.host_routing * repeats.launches, busy, overlap);
        let host = sum.host * repeats.launches + routing;
        let head = self.head(split);
        LayerCosts {
            key,
            compute,
            memory,
            host,
            exchanges,
            layer_seconds: busy + host,
            head_compute: head.compute,
            head_memory: head.memory,
            stage_send: split.tokens * self.hidden * 2.0 / split.sequence_split,
            dense_parameters: sum.dense_parameters,
            expert_parameters: sum.expert_parameters,
            embedding_parameters: self.vocab * self.hidden / split.tensor,
            head_parameters: self.vocab * self.hidden / split.tensor,
            trained_dense: trained,
            trained_expert,
            kept_bytes: self.kept(&key, split, &sum),
            working_bytes: sum.kept,
            logits_bytes: split.tokens * self.vocab / split.tensor * self.profile.logit_memory,
            kinds: None,
        }
    }

    /// How much of the forward pass recomputation repeats.
    fn repeats(&self, recompute: Recompute) -> Repeats {
        let none =
            Repeats { products: 0.0, attention: 0.0, memory: 0.0, cheap: 0.0, exchanges: 1.0, launches: 1.0 };
        match recompute {
            Recompute::None => none,
            Recompute::Full => {
                let (exchanges, launches) = (1.5, 4.0 / 3.0);
                Repeats { products: 1.0, attention: 1.0, memory: 1.0, cheap: 0.0, exchanges, launches }
            }
            Recompute::Selective if self.profile.attention == AttentionKernel::Unfused => {
                Repeats { attention: 1.0, ..none }
            }
            // Fused attention recomputes its core anyway.
            Recompute::Selective => match self.profile.selective {
                Some(selective) => Repeats { products: selective.products, memory: 1.0, ..none },
                None => Repeats { cheap: 1.0, ..none },
            },
        }
    }

    /// Trainable parameters: all, or the adapters of each matrix.
    fn trained(&self, parameters: f64, adapters_per_rank: f64) -> f64 {
        match self.workload.task {
            Task::Lora { rank } => adapters_per_rank * f64::from(rank),
            Task::Pretrain | Task::FineTune => parameters,
        }
    }

    fn kept(&self, key: &LayerKey, split: &LayerSplit, sum: &Sum) -> f64 {
        match key.recompute {
            Recompute::Full => split.tokens * 2.0 * self.hidden / split.sequence_split,
            Recompute::Selective if self.profile.attention == AttentionKernel::Unfused => {
                let heads = self.heads / split.tensor;
                sum.kept - split.tokens * 5.0 * heads * self.workload.sequence as f64
            }
            Recompute::Selective => match self.profile.selective {
                Some(selective) => sum.kept * selective.kept,
                None => sum.kept - sum.cheap,
            },
            Recompute::None => sum.kept,
        }
    }

    /// Software since Megatron Core 26.06 runs MoE layers faster on Blackwell: products of gated experts, activation and casts are
    /// one kernel, and the host does not wait for routing.
    pub(crate) fn maturity(&self, layer: &Layer) -> f64 {
        let is_blackwell =
            matches!(self.hardware.generation, Generation::Blackwell | Generation::BlackwellUltra);
        let has_experts = layer.mlp.mixture().is_some_and(|mixture| mixture.expert.is_gated);
        let applies = has_experts && is_blackwell && self.workload.stack == Stack::Megatron;
        if applies { self.profile.expert_maturity } else { 1.0 }
    }

    /// The output projection in bf16, softmax and loss, once per prediction.
    fn head(&self, split: &LayerSplit) -> Head {
        let product = Product::new(split.tokens, self.vocab / split.tensor, self.hidden);
        let passes = self.kernels.matrix(product, ComputePrecision::Bf16, split.is_frozen);
        let bytes = split.tokens * self.vocab / split.tensor * self.constants.logit_bytes;
        Head {
            compute: passes.both() * self.predictions,
            memory: self.kernels.stream(bytes) * self.predictions,
        }
    }
}

/// What the routing of experts by the host adds to a layer that keeps the GPU `busy`.
///
/// The host runs ahead of the GPU until routing makes it wait for a result, so each hides a part of the other; with two
/// micro-batches interleaved the host works for one while the GPU works for the other, and nearly all of the shorter is hidden.
fn waiting_for_host(routing: f64, busy: f64, overlap: ExpertOverlap) -> f64 {
    match overlap {
        ExpertOverlap::Serial => busy.hypot(routing) - busy,
        ExpertOverlap::Overlapped => rounded_max(busy, routing) - busy,
    }
}

/// Shares of the forward pass that run again, and factors on exchanges and launches of both passes.
struct Repeats {
    products: f64,
    attention: f64,
    memory: f64,
    /// Of what makes cheap activations.
    cheap: f64,
    exchanges: f64,
    launches: f64,
}

/// Seconds of the head for one micro-batch, forward and backward.
struct Head {
    compute: f64,
    memory: f64,
}

/// The backward pass preceded by a repeated share of the forward pass.
fn with_repeat(passes: Passes, share: f64) -> Passes {
    Passes { backward: passes.backward + share * passes.forward, ..passes }
}
