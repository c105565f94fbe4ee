//! The halves of a layer on one rank: attention, dense MLP and mixture of experts, kernel by kernel.
//!
//! Each adds its products, its streaming work, its parameters and what it keeps for the backward pass.
//! Bytes of streaming work are counted per token: norms and residuals read and write 20 bytes per hidden
//! element, queries, keys and values 8 per element, activations 2 per element of each operand; backward
//! passes move 1.3 to 1.6 times as much. A layer may lack either half. A state in place of attention is computed in
//! chunks: like attention inside them, and between them through states that go through memory.

use bedplate_layout::ComputePrecision;
use bedplate_transformer::{Attention, AttentionFlops, Dense, Layer, Mixture, Mlp, Reach, Recurrent};

use crate::collective::Traffic;
use crate::kernel::{AttentionKernel, Passes, Product};
use crate::problem::Problem;
use crate::{Dispatcher, Scaling, Stack};

/// A layer under construction: sums over kinds of layers.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sum {
    pub(crate) attention: Passes,
    pub(crate) products: Passes,
    pub(crate) memory: Passes,
    /// Seconds in which the host launches kernels, and in which it routes tokens to experts.
    pub(crate) host: f64,
    pub(crate) host_routing: f64,
    pub(crate) tensor: Traffic,
    pub(crate) context: Traffic,
    pub(crate) expert: Traffic,
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
pub(crate) struct Cut {
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
    pub(crate) fn add_layer(&self, sum: &mut Sum, layer: &Layer, share: f64, cut: &Cut) {
        let mut part = Sum::default();
        let halves = layer.halves() as f64;
        self.add_residuals(&mut part, halves, cut);
        if layer.attention != Attention::Absent {
            self.add_attention(&mut part, layer, cut);
        }
        match &layer.mlp {
            Mlp::Absent => {}
            Mlp::Dense(dense) => self.add_dense(&mut part, dense, cut),
            Mlp::Mixture(mixture) => {
                self.add_mixture(&mut part, mixture, matches!(layer.attention, Attention::Latent(_)), cut);
            }
        }
        part.host += self.profile.host * halves / 2.0;
        sum.add(part.faster(self.maturity(layer)), share);
    }

    /// Norms and residuals around the halves of a layer, and the casts of what norms give out.
    fn add_residuals(&self, sum: &mut Sum, halves: f64, cut: &Cut) {
        let moved = self.profile.elementwise * 10.0 * halves * self.hidden / cut.sequence_split;
        self.add_stream(sum, cut.tokens * moved, 1.3);
        // Each norm is read and written.
        let norms = self.profile.elementwise * 4.0 * halves * self.hidden / cut.sequence_split;
        sum.again += self.kernels.stream(cut.tokens * norms);
        if is_narrow(cut.precision) {
            let cast = self.cast(cut) * 4.0 * halves * self.hidden / cut.sequence_split;
            self.add_stream(sum, cut.tokens * cast, 1.5);
        }
        sum.dense_parameters += halves * self.hidden;
    }

    fn add_attention(&self, sum: &mut Sum, layer: &Layer, cut: &Cut) {
        let attention = &layer.attention;
        let heads_wide = self.add_projections(sum, attention, cut);
        sum.attention = self.scores(layer, cut);
        self.add_stream(sum, cut.tokens * self.profile.elementwise * 8.0 * heads_wide, 1.3);
        if let (Attention::Recurrent(state), Reach::Chunk(chunk)) = (attention, layer.reach) {
            self.add_states(sum, state, chunk, cut);
        }
        sum.tensor = sum.tensor + self.tensor_exchange(cut);
        sum.context = sum.context + self.context_exchange(attention, cut);
        self.keep_attention(sum, attention, heads_wide, cut);
    }

    /// The weight matrices; returns the width of this rank's queries, keys and values.
    fn add_projections(&self, sum: &mut Sum, attention: &Attention, cut: &Cut) -> f64 {
        let (heads, kv_heads) = (attention.heads() as f64, attention.kv_heads() as f64);
        let (query_dim, value_dim) = (attention.query_dim() as f64, attention.value_dim() as f64);
        let local_heads = heads / cut.tensor;
        let mut again = 0.0;
        let mut add = |outputs: f64, inputs: f64| self.add_matrix(sum, outputs, inputs, cut);
        let heads_wide = match attention {
            Attention::GroupedQuery(grouped) => {
                let queries = if grouped.has_gate { 2.0 * heads } else { heads };
                let wide = (queries + 2.0 * kv_heads.max(cut.tensor)) * query_dim / cut.tensor;
                add(wide, self.hidden);
                wide
            }
            Attention::Recurrent(state) => {
                let wide = 2.0 * (state.keys_wide() + state.values_wide()) as f64 / cut.tensor;
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
                    .map(|(n, k)| self.kernels.product(Product::new(cut.tokens, n, k), cut.precision))
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
    fn add_matrix(&self, sum: &mut Sum, outputs: f64, inputs: f64, cut: &Cut) {
        let product = Product::new(cut.tokens, outputs, inputs);
        sum.products = sum.products + self.kernels.matrix(product, cut.precision, cut.is_frozen);
        sum.dense_parameters += outputs * inputs;
        sum.adapter_parameters += outputs + inputs;
    }

    /// States of chunks in fp32: written, carried on from chunk to chunk, and read again.
    fn add_states(&self, sum: &mut Sum, state: &Recurrent, chunk: u64, cut: &Cut) {
        let states = cut.tokens / chunk.min(self.workload.sequence).max(1) as f64;
        let values = state.state_values() as f64 / cut.tensor;
        self.add_stream(sum, states * values * 16.0, 2.5);
    }

    /// The products of queries, keys and values.
    fn scores(&self, layer: &Layer, cut: &Cut) -> Passes {
        let attention = &layer.attention;
        let heads = attention.heads() as f64 / cut.tensor;
        let (query_dim, value_dim) = (attention.query_dim() as f64, attention.value_dim() as f64);
        let sequence = self.workload.sequence;
        if self.profile.attention == AttentionKernel::Unfused {
            return self.kernels.attention_unfused(cut.tokens, heads, query_dim, sequence as f64);
        }
        // Kernels for sink logits do not skip keys outside a window.
        let has_sinks = matches!(attention, Attention::GroupedQuery(grouped) if grouped.has_sinks);
        let reach = if has_sinks { Reach::Full } else { layer.reach };
        let widths = query_dim + value_dim;
        // Work on a state counts as that on so many keys more.
        let as_keys = attention.state_flops() / attention.score_flops_per_key().max(1.0);
        let keys = reach.mean_keys(sequence, AttentionFlops::CausalHalved) + as_keys;
        let at_once = if cut.context > 1.0 { keys.min(0.5 * sequence as f64 / cut.context) } else { keys };
        let scores = self.kernels.attention(cut.tokens, heads, widths, keys, at_once);
        match attention {
            Attention::Recurrent(_) => scores * (1.0 / self.constants.scan),
            _ => scores,
        }
    }

    /// Inputs of the norm and of the projections; queries, keys and values; the output of attention; and
    /// the scores with their mask where they are written.
    fn keep_attention(&self, sum: &mut Sum, attention: &Attention, heads_wide: f64, cut: &Cut) {
        let local_heads = attention.heads() as f64 / cut.tensor;
        let given_out = local_heads * attention.value_dim() as f64;
        self.keep_normed(sum, cut);
        // Narrow products keep their own copy of the output of attention.
        let copies = if is_narrow(cut.precision) { 3.0 } else { 2.0 };
        sum.kept += cut.tokens * (2.0 * heads_wide + copies * given_out);
        if matches!(attention, Attention::Latent(_)) {
            sum.cheap += cut.tokens * 2.0 * heads_wide;
        }
        if self.profile.attention == AttentionKernel::Unfused {
            sum.kept += cut.tokens * 5.0 * local_heads * self.workload.sequence as f64;
        }
    }

    /// The input of a norm, and its output, which is the input of a product.
    fn keep_normed(&self, sum: &mut Sum, cut: &Cut) {
        let split = if self.profile.keeps_gathered { 1.0 } else { cut.sequence_split };
        let output = cut.tokens * input_bytes(cut) * self.hidden / split;
        sum.kept += cut.tokens * 2.0 * self.hidden / cut.sequence_split + output;
        sum.cheap += output;
    }

    fn add_dense(&self, sum: &mut Sum, dense: &Dense, cut: &Cut) {
        let width = dense.width as f64 / cut.tensor;
        self.add_mlp(sum, width, gates(dense), cut);
        sum.tensor = sum.tensor + self.tensor_exchange(cut);
        self.keep_normed(sum, cut);
    }

    /// The products, the activation and the casts of a dense MLP or a shared expert of local width.
    fn add_mlp(&self, sum: &mut Sum, width: f64, gates: f64, cut: &Cut) {
        self.add_matrix(sum, gates * width, self.hidden, cut);
        self.add_matrix(sum, self.hidden, width, cut);
        let activation = cut.tokens * self.profile.elementwise * 2.0 * (1.0 + gates) * width;
        self.add_stream(sum, activation, 1.6);
        sum.again += self.kernels.stream(activation);
        if is_narrow(cut.precision) {
            self.add_stream(sum, cut.tokens * self.cast(cut) * 4.0 * width, 1.5);
        }
        sum.kept += cut.tokens * (2.0 * gates + input_bytes(cut)) * width;
        sum.cheap += cut.tokens * (input_bytes(cut) + narrowed(gates, cut)) * width;
    }

    fn add_mixture(&self, sum: &mut Sum, mixture: &Mixture, is_latent: bool, cut: &Cut) {
        let (experts, visits) = (mixture.experts as f64, mixture.per_token as f64);
        // Tokens enter split over the tensor group; the all-to-all and the expert group join them again.
        let entering = cut.tokens / cut.tensor;
        let routed = entering * visits * self.workload.routing.peak(cut.expert);
        let local_experts = (experts / cut.expert).max(1.0);
        self.add_experts(sum, mixture, routed, local_experts, cut);
        self.add_routed_streams(sum, mixture, routed, cut);
        if let Some(shared) = &mixture.shared {
            self.add_mlp(sum, shared.width as f64 / cut.tensor, gates(shared), cut);
        }
        let router = Product::new(entering, experts, self.hidden);
        sum.products = sum.products + self.kernels.matrix(router, ComputePrecision::Bf16, cut.is_frozen);
        sum.dense_parameters += experts * self.hidden;
        sum.expert = sum.expert + self.expert_exchange(visits, cut);
        sum.host_routing += self.expert_overhead(local_experts, is_latent);
        self.keep_mixture(sum, mixture, entering, routed, cut);
    }

    /// The grouped products of the routed experts of this rank.
    fn add_experts(&self, sum: &mut Sum, mixture: &Mixture, routed: f64, local_experts: f64, cut: &Cut) {
        let rows = routed * cut.expert_tensor * cut.expert / mixture.experts as f64;
        let width = mixture.expert.width as f64 / cut.expert_tensor;
        let up = Product::new(rows, gates(&mixture.expert) * width, self.hidden);
        let down = Product::new(rows, self.hidden, width);
        for product in [up, down] {
            let grouped = Product { groups: local_experts, ..product };
            sum.products = sum.products + self.kernels.matrix(grouped, cut.precision, cut.is_frozen);
            sum.expert_parameters += local_experts * product.n * product.k;
        }
    }

    /// Activation, permutation and casts of routed tokens.
    fn add_routed_streams(&self, sum: &mut Sum, mixture: &Mixture, routed: f64, cut: &Cut) {
        let width = mixture.expert.width as f64;
        let unfused = if mixture.expert.has_bias { UNFUSED } else { 1.0 };
        let activation = self.profile.elementwise * 2.0 * (1.0 + gates(&mixture.expert)) * width * unfused;
        self.add_stream(sum, routed * activation, 1.6);
        sum.again += self.kernels.stream(routed * activation);
        self.add_stream(sum, routed * self.constants.permute * 12.0 * self.hidden, 1.5);
        if is_narrow(cut.precision) {
            let cast = self.cast(cut) * self.constants.cast_experts;
            self.add_stream(sum, routed * cast * 4.0 * (width + self.hidden), 1.5);
        }
    }

    /// Inputs of products are kept in their format, the rest in bf16; combined outputs are not needed.
    fn keep_mixture(&self, sum: &mut Sum, mixture: &Mixture, entering: f64, routed: f64, cut: &Cut) {
        let width = mixture.expert.width as f64;
        let kept = input_bytes(cut) * (self.hidden + width) + 2.0 * gates(&mixture.expert) * width;
        sum.kept += entering * 4.0 * self.hidden + routed * kept;
        let cheap = input_bytes(cut) + narrowed(gates(&mixture.expert), cut);
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
    fn cast(&self, cut: &Cut) -> f64 {
        let is_block = self.workload.scaling == Scaling::Block && cut.precision == ComputePrecision::Fp8;
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
fn input_bytes(cut: &Cut) -> f64 {
    if is_narrow(cut.precision) { 1.0 } else { 2.0 }
}

/// Bytes per element of an MLP's width that are saved by keeping the inputs of its activation function in 8 bits.
fn narrowed(gates: f64, cut: &Cut) -> f64 {
    if is_narrow(cut.precision) { gates } else { 0.0 }
}

fn is_narrow(precision: ComputePrecision) -> bool {
    matches!(precision, ComputePrecision::Fp8 | ComputePrecision::Fp4)
}
