//! The halves of a layer on one rank: attention, dense MLP and mixture of experts, kernel by kernel.
//!
//! Each adds its products, its streaming work, its parameters and what it keeps for the backward pass.
//! Bytes of streaming work are counted per token: norms and residuals read and write 20 bytes per hidden
//! element, queries, keys and values 8 per element, activations 2 per element of each operand; backward
//! passes move 1.3 to 1.6 times as much. A layer may lack either half. A state in place of attention is computed in
//! chunks: like attention inside them, and between them through states that go through memory.

use bedplate_layout::ComputePrecision;
use bedplate_transformer::{Attention, AttentionFlops, Dense, Layer, Mixture, Mlp, Reach, Recurrent};

use crate::collective::CollectiveTraffic;
use crate::kernel::{AttentionKernel, Passes, Product};
use crate::problem::Problem;
use crate::{Dispatcher, Fp8Scaling, Stack};

/// A layer under construction: sums over kinds of layers.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sum {
    pub(crate) attention: Passes,
    pub(crate) products: Passes,
    pub(crate) memory: Passes,
    /// Seconds in which the host launches kernels, and in which it routes tokens to experts.
    pub(crate) host: f64,
    pub(crate) host_routing: f64,
    pub(crate) tensor: CollectiveTraffic,
    pub(crate) context: CollectiveTraffic,
    pub(crate) expert: CollectiveTraffic,
    pub(crate) dense_parameters: f64,
    pub(crate) expert_parameters: f64,
    pub(crate) adapter_parameters: f64,
    pub(crate) kept: f64,
    /// The part of `kept` that selective recomputation makes again: outputs of norms and of activation
    /// functions, and what latent attention projects up.
    pub(crate) cheap: f64,
    /// Seconds of a forward pass that make it again.
    pub(crate) again: f64,
}

/// How a layer is split, in numbers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LayerSplit {
    pub(crate) tokens: f64,
    pub(crate) tensor: f64,
    /// The factor by which norms and residuals are split.
    pub(crate) sequence_split: f64,
    pub(crate) context: f64,
    pub(crate) expert: f64,
    pub(crate) expert_tensor: f64,
    pub(crate) precision: ComputePrecision,
    pub(crate) is_frozen: bool,
}

impl Problem {
    /// Adds `share` layers of one kind.
    pub(crate) fn add_layer(&self, sum: &mut Sum, layer: &Layer, share: f64, split: &LayerSplit) {
        let mut part = Sum::default();
        let halves = layer.halves() as f64;
        self.add_residuals(&mut part, halves, split);
        if layer.attention != Attention::Absent {
            self.add_attention(&mut part, layer, split);
        }
        match &layer.mlp {
            Mlp::Absent => {}
            Mlp::Dense(dense) => self.add_dense(&mut part, dense, split),
            Mlp::Mixture(mixture) => {
                self.add_mixture(&mut part, mixture, matches!(layer.attention, Attention::Latent(_)), split);
            }
        }
        part.host += self.profile.host * halves / 2.0;
        sum.add(part.faster(self.maturity(layer)), share);
    }

    /// Norms and residuals around the halves of a layer, and the casts of what norms give out.
    fn add_residuals(&self, sum: &mut Sum, halves: f64, split: &LayerSplit) {
        let moved = self.profile.elementwise * 10.0 * halves * self.hidden / split.sequence_split;
        self.add_stream(sum, split.tokens * moved, 1.3);
        // Each norm is read and written.
        let norms = self.profile.elementwise * 4.0 * halves * self.hidden / split.sequence_split;
        sum.again += self.kernels.stream(split.tokens * norms);
        if is_narrow(split.precision) {
            let cast = self.cast(split) * 4.0 * halves * self.hidden / split.sequence_split;
            self.add_stream(sum, split.tokens * cast, 1.5);
        }
        sum.dense_parameters += halves * self.hidden;
    }

    fn add_attention(&self, sum: &mut Sum, layer: &Layer, split: &LayerSplit) {
        let attention = &layer.attention;
        let heads_wide = self.add_projections(sum, attention, split);
        sum.attention = self.scores(layer, split);
        self.add_stream(sum, split.tokens * self.profile.elementwise * 8.0 * heads_wide, 1.3);
        if let (Attention::Recurrent(state), Reach::Chunk(chunk)) = (attention, layer.reach) {
            self.add_states(sum, state, chunk, split);
        }
        sum.tensor = sum.tensor + self.tensor_exchange(split);
        sum.context = sum.context + self.context_exchange(attention, split);
        self.keep_attention(sum, attention, heads_wide, split);
    }

    /// The weight matrices; returns the width of this rank's queries, keys and values.
    fn add_projections(&self, sum: &mut Sum, attention: &Attention, split: &LayerSplit) -> f64 {
        let (heads, kv_heads) = (attention.heads() as f64, attention.kv_heads() as f64);
        let (query_dim, value_dim) = (attention.query_dim() as f64, attention.value_dim() as f64);
        let local_heads = heads / split.tensor;
        let mut again = 0.0;
        let mut add = |outputs: f64, inputs: f64| self.add_matrix(sum, outputs, inputs, split);
        let heads_wide = match attention {
            Attention::GroupedQuery(grouped) => {
                let queries = if grouped.has_gate { 2.0 * heads } else { heads };
                let wide = (queries + 2.0 * kv_heads.max(split.tensor)) * query_dim / split.tensor;
                add(wide, self.hidden);
                wide
            }
            Attention::Recurrent(state) => {
                let wide = 2.0 * (state.keys_wide() + state.values_wide()) as f64 / split.tensor;
                add(wide, self.hidden);
                wide
            }
            Attention::Absent => 0.0,
            Attention::Latent(latent) => {
                let (kv_rank, rope) = (latent.kv_rank as f64, latent.rope_dim as f64);
                let query_inputs = match latent.query_rank {
                    Some(rank) => {
                        add(rank as f64, self.hidden);
                        rank as f64
                    }
                    None => self.hidden,
                };
                add(local_heads * query_dim, query_inputs);
                add(kv_rank + rope, self.hidden);
                let expanded = local_heads * (latent.nope_dim + latent.value_dim) as f64;
                add(expanded, kv_rank);
                again = [(local_heads * query_dim, query_inputs), (expanded, kv_rank)]
                    .map(|(n, k)| self.kernels.product(Product::new(split.tokens, n, k), split.precision))
                    .into_iter()
                    .sum();
                local_heads * (2.0 * query_dim + value_dim)
            }
        };
        add(self.hidden, local_heads * value_dim);
        sum.again += again;
        heads_wide
    }

    /// A dense matrix of this rank: its products and its parameters.
    fn add_matrix(&self, sum: &mut Sum, outputs: f64, inputs: f64, split: &LayerSplit) {
        let product = Product::new(split.tokens, outputs, inputs);
        sum.products = sum.products + self.kernels.matrix(product, split.precision, split.is_frozen);
        sum.dense_parameters += outputs * inputs;
        sum.adapter_parameters += outputs + inputs;
    }

    /// States of chunks in fp32: written, carried on from chunk to chunk, and read again.
    fn add_states(&self, sum: &mut Sum, state: &Recurrent, chunk: u64, split: &LayerSplit) {
        let states = split.tokens / chunk.min(self.workload.sequence).max(1) as f64;
        let values = state.state_values() as f64 / split.tensor;
        self.add_stream(sum, states * values * 16.0, 2.5);
    }

    /// The products of queries, keys and values.
    fn scores(&self, layer: &Layer, split: &LayerSplit) -> Passes {
        let attention = &layer.attention;
        let heads = attention.heads() as f64 / split.tensor;
        let (query_dim, value_dim) = (attention.query_dim() as f64, attention.value_dim() as f64);
        let sequence = self.workload.sequence;
        if self.profile.attention == AttentionKernel::Unfused {
            return self.kernels.attention_unfused(split.tokens, heads, query_dim, sequence as f64);
        }
        // Kernels for sink logits do not skip keys outside a window.
        let has_sinks = matches!(attention, Attention::GroupedQuery(grouped) if grouped.has_sinks);
        let reach = if has_sinks { Reach::Full } else { layer.reach };
        let widths = query_dim + value_dim;
        // Work on a state counts as that on so many keys more.
        let as_keys = attention.state_flops() / attention.score_flops_per_key().max(1.0);
        let keys = reach.mean_keys(sequence, AttentionFlops::CausalHalved) + as_keys;
        let at_once =
            if split.context > 1.0 { keys.min(0.5 * sequence as f64 / split.context) } else { keys };
        let scores = self.kernels.attention(split.tokens, heads, widths, keys, at_once);
        match attention {
            Attention::Recurrent(_) => scores * (1.0 / self.constants.scan),
            _ => scores,
        }
    }

    /// Inputs of the norm and of the projections; queries, keys and values; the output of attention; and
    /// the scores with their mask where they are written.
    fn keep_attention(&self, sum: &mut Sum, attention: &Attention, heads_wide: f64, split: &LayerSplit) {
        let local_heads = attention.heads() as f64 / split.tensor;
        let given_out = local_heads * attention.value_dim() as f64;
        self.keep_normed(sum, split);
        // Narrow products keep their own copy of the output of attention.
        let copies = if is_narrow(split.precision) { 3.0 } else { 2.0 };
        sum.kept += split.tokens * (2.0 * heads_wide + copies * given_out);
        if matches!(attention, Attention::Latent(_)) {
            sum.cheap += split.tokens * 2.0 * heads_wide;
        }
        if self.profile.attention == AttentionKernel::Unfused {
            sum.kept += split.tokens * 5.0 * local_heads * self.workload.sequence as f64;
        }
    }

    /// The input of a norm, and its output, which is the input of a product.
    fn keep_normed(&self, sum: &mut Sum, split: &LayerSplit) {
        let gathered = if self.profile.keeps_gathered { 1.0 } else { split.sequence_split };
        let output = split.tokens * input_bytes(split) * self.hidden / gathered;
        sum.kept += split.tokens * 2.0 * self.hidden / split.sequence_split + output;
        sum.cheap += output;
    }

    fn add_dense(&self, sum: &mut Sum, dense: &Dense, split: &LayerSplit) {
        let width = dense.width as f64 / split.tensor;
        self.add_mlp(sum, width, gates(dense), split);
        sum.tensor = sum.tensor + self.tensor_exchange(split);
        self.keep_normed(sum, split);
    }

    /// The products, the activation and the casts of a dense MLP or a shared expert of local width.
    fn add_mlp(&self, sum: &mut Sum, width: f64, gates: f64, split: &LayerSplit) {
        self.add_matrix(sum, gates * width, self.hidden, split);
        self.add_matrix(sum, self.hidden, width, split);
        let activation = split.tokens * self.profile.elementwise * 2.0 * (1.0 + gates) * width;
        self.add_stream(sum, activation, 1.6);
        sum.again += self.kernels.stream(activation);
        if is_narrow(split.precision) {
            self.add_stream(sum, split.tokens * self.cast(split) * 4.0 * width, 1.5);
        }
        sum.kept += split.tokens * (2.0 * gates + input_bytes(split)) * width;
        sum.cheap += split.tokens * (input_bytes(split) + narrowed(gates, split)) * width;
    }

    fn add_mixture(&self, sum: &mut Sum, mixture: &Mixture, is_latent: bool, split: &LayerSplit) {
        let (experts, visits) = (mixture.experts as f64, mixture.per_token as f64);
        // Tokens enter split over the tensor group; the all-to-all and the expert group join them again.
        let entering = split.tokens / split.tensor;
        let routed = entering * visits * self.workload.routing.peak(split.expert);
        let local_experts = (experts / split.expert).max(1.0);
        self.add_experts(sum, mixture, routed, local_experts, split);
        self.add_routed_streams(sum, mixture, routed, split);
        if let Some(shared) = &mixture.shared {
            self.add_mlp(sum, shared.width as f64 / split.tensor, gates(shared), split);
        }
        let router = Product::new(entering, experts, self.hidden);
        sum.products = sum.products + self.kernels.matrix(router, ComputePrecision::Bf16, split.is_frozen);
        sum.dense_parameters += experts * self.hidden;
        sum.expert = sum.expert + self.expert_exchange(visits, split);
        sum.host_routing += self.expert_overhead(local_experts, is_latent);
        self.keep_mixture(sum, mixture, entering, routed, split);
    }

    /// The grouped products of the routed experts of this rank.
    fn add_experts(
        &self,
        sum: &mut Sum,
        mixture: &Mixture,
        routed: f64,
        local_experts: f64,
        split: &LayerSplit,
    ) {
        let rows = routed * split.expert_tensor * split.expert / mixture.experts as f64;
        let width = mixture.expert.width as f64 / split.expert_tensor;
        let up = Product::new(rows, gates(&mixture.expert) * width, self.hidden);
        let down = Product::new(rows, self.hidden, width);
        for product in [up, down] {
            let grouped = Product { groups: local_experts, ..product };
            sum.products = sum.products + self.kernels.matrix(grouped, split.precision, split.is_frozen);
            sum.expert_parameters += local_experts * product.n * product.k;
        }
    }

    /// Activation, permutation and casts of routed tokens.
    fn add_routed_streams(&self, sum: &mut Sum, mixture: &Mixture, routed: f64, split: &LayerSplit) {
        let width = mixture.expert.width as f64;
        let unfused = if mixture.expert.has_bias { UNFUSED } else { 1.0 };
        let activation = self.profile.elementwise * 2.0 * (1.0 + gates(&mixture.expert)) * width * unfused;
        self.add_stream(sum, routed * activation, 1.6);
        sum.again += self.kernels.stream(routed * activation);
        self.add_stream(sum, routed * self.constants.permute * 12.0 * self.hidden, 1.5);
        if is_narrow(split.precision) {
            let cast = self.cast(split) * self.constants.cast_experts;
            self.add_stream(sum, routed * cast * 4.0 * (width + self.hidden), 1.5);
        }
    }

    /// Inputs of products are kept in their format, the rest in bf16; combined outputs are not needed.
    fn keep_mixture(&self, sum: &mut Sum, mixture: &Mixture, entering: f64, routed: f64, split: &LayerSplit) {
        let width = mixture.expert.width as f64;
        let kept = input_bytes(split) * (self.hidden + width) + 2.0 * gates(&mixture.expert) * width;
        sum.kept += entering * 4.0 * self.hidden + routed * kept;
        let cheap = input_bytes(split) + narrowed(gates(&mixture.expert), split);
        sum.cheap += entering * 2.0 * self.hidden + routed * cheap * width;
    }

    /// Routing that the host waits for. Each expert of a rank has kernels of its own. Recipes for racks replay parts of it as CUDA
    /// graphs; without a recipe nothing is replayed, and Grace takes longer.
    fn expert_overhead(&self, local_experts: f64, is_latent: bool) -> f64 {
        if self.workload.stack == Stack::MegatronStock {
            let latent = if is_latent { 1.0 + self.constants.host_latent } else { 1.0 };
            let dispatcher = match self.workload.dispatcher {
                Dispatcher::AllToAll => 1.0,
                Dispatcher::Deduplicating => self.constants.host_dispatcher,
            };
            let grace = if self.hardware.has_grace() { GRACE } else { 1.0 };
            return self.constants.host_stock * latent * dispatcher * grace;
        }
        let routing = self.constants.host_experts + self.constants.host_each * local_experts;
        let rack = if self.hardware.domain > 16 { self.constants.host_domain } else { 1.0 };
        routing * rack
    }

    /// Bytes moved per byte cast.
    fn cast(&self, split: &LayerSplit) -> f64 {
        let is_block = self.workload.scaling == Fp8Scaling::Block && split.precision == ComputePrecision::Fp8;
        self.constants.cast * if is_block { self.constants.cast_block } else { 1.0 }
    }

    fn add_stream(&self, sum: &mut Sum, bytes: f64, backward: f64) {
        let forward = self.kernels.stream(bytes);
        sum.memory = sum.memory + Passes { forward, backward: backward * forward };
    }
}

impl Sum {
    /// The same in a share of the time, exchanges and memory apart.
    fn faster(self, share: f64) -> Self {
        Self {
            attention: self.attention * share,
            products: self.products * share,
            memory: self.memory * share,
            host: self.host * share,
            host_routing: self.host_routing * share,
            again: self.again * share,
            ..self
        }
    }

    fn add(&mut self, part: Sum, share: f64) {
        let passes = |total: &mut Passes, part: Passes| {
            total.forward += share * part.forward;
            total.backward += share * part.backward;
        };
        passes(&mut self.attention, part.attention);
        passes(&mut self.products, part.products);
        passes(&mut self.memory, part.memory);
        self.host += share * part.host;
        self.host_routing += share * part.host_routing;
        self.tensor = self.tensor + part.tensor * share;
        self.context = self.context + part.context * share;
        self.expert = self.expert + part.expert * share;
        self.dense_parameters += share * part.dense_parameters;
        self.expert_parameters += share * part.expert_parameters;
        self.adapter_parameters += share * part.adapter_parameters;
        self.kept += share * part.kept;
        self.cheap += share * part.cheap;
        self.again += share * part.again;
    }
}

/// Bytes moved between the products of an expert with biases against those of one kernel. Each step is a kernel of its own: biases
/// of both products move 8 numbers per element of the width, clamps of both operands 4, the sigmoid that gates 7, the offset
/// 2, the product 3 and the router's weight 2, which makes 26 instead of 3.
const UNFUSED: f64 = 26.0 / 3.0;

/// Time of Grace's cores against those of an x86 host for work on one thread, set by hand: NVIDIA's guides ask for graphs on GB200
/// because its host holds it up, and DeepSeek-V3 in stock Megatron there comes out right with 1.7.
const GRACE: f64 = 1.5;

/// Matrices between the input and the activation: two where one gates the other.
fn gates(dense: &Dense) -> f64 {
    if dense.is_gated { 2.0 } else { 1.0 }
}

/// Bytes per element of the inputs that products keep for their weight gradients.
fn input_bytes(split: &LayerSplit) -> f64 {
    if is_narrow(split.precision) { 1.0 } else { 2.0 }
}

/// Bytes per element of an MLP's width that are saved by keeping the inputs of its activation function in 8 bits.
fn narrowed(gates: f64, split: &LayerSplit) -> f64 {
    if is_narrow(split.precision) { gates } else { 0.0 }
}

fn is_narrow(precision: ComputePrecision) -> bool {
    matches!(precision, ComputePrecision::Fp8 | ComputePrecision::Fp4)
}
