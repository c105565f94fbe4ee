//! One transformer layer: forward, its cheap parts again, and backward.
//!
//! Where layers are cut over ranks, the products whose inputs are cut and the gradients of inputs whose outputs are give partial
//! sums in f32, which the ranks add up before the residual or the norm takes them. On one rank these steps are one.

use std::ops::Range;

use bedplate_kernels::{
    AttentionShape, Buffer, Device, Element, Heads, Matrix, MatrixMut, Put, Qkv, Seen, Turn, View, ViewMut,
};

use crate::Network;
use crate::numerics::Activation;
use crate::table::{DenseParts, LayerParts, LinearParts, MlpParts};
use crate::workspace::{Cheap, HAS_GRADIENTS, InnerGradients, Kept, LayerRoom, Partial, Routing};

/// What all functions of a layer share: where it runs, its table, its weights and the rows it works on.
pub(crate) struct LayerRun<'a, E: Element> {
    pub(crate) device: &'a Device,
    pub(crate) network: &'a Network,
    pub(crate) parts: &'a LayerParts,
    /// Counted from 0.
    pub(crate) layer: usize,
    pub(crate) weights: View<'a, E>,
    pub(crate) rows: usize,
    pub(crate) sequence: usize,
    pub(crate) positions: View<'a, u32>,
    pub(crate) first_keys: View<'a, u32>,
    /// This micro-batch's share of the step, by which the load-balancing loss counts.
    pub(crate) balance: f32,
}

/// The gradient of a block's weights, to be added to; absent where the block is frozen.
pub(crate) type BlockGradient<'a> = Option<ViewMut<'a, f32>>;

/// The same gradient for a shorter lifetime.
pub(crate) fn reborrow<'b>(gradient: &'b mut BlockGradient<'_>) -> BlockGradient<'b> {
    gradient.as_mut().map(ViewMut::reborrow)
}

impl<E: Element> LayerRun<'_, E> {
    pub(crate) fn hidden(&self) -> usize {
        self.parts.widths.hidden
    }

    /// The first `columns` numbers per row of a buffer that may have room for more.
    pub(crate) fn matrix<'b, F: Element>(&self, buffer: &'b Buffer<F>, columns: usize) -> Matrix<'b, F> {
        buffer.range(0..self.rows * columns).matrix(self.rows, columns)
    }

    pub(crate) fn matrix_mut<'b, F: Element>(
        &self,
        buffer: &'b mut Buffer<F>,
        columns: usize,
    ) -> MatrixMut<'b, F> {
        buffer.range_mut(0..self.rows * columns).matrix(self.rows, columns)
    }

    /// From the residual stream before the layer to the one after it.
    pub(crate) fn forward(&self, room: &mut LayerRoom<'_, E>) {
        let LayerRoom { input, output, kept, cheap, partial, routing, .. } = room;
        self.norm_before_attention(input, kept, cheap);
        self.project(kept, cheap);
        self.attend(kept);
        let attended = self.matrix(&kept.attended, self.parts.widths.attended);
        self.add_product(&self.parts.output, attended, input, partial, &mut kept.middle);
        self.norm_before_mlp(kept, cheap);
        match &self.parts.mlp {
            MlpParts::Dense(dense) => {
                self.dense_inner(dense, kept, cheap);
                let activated = self.matrix(&cheap.activated, dense.width);
                self.add_product(&dense.down, activated, &kept.middle, partial, output);
            }
            MlpParts::Mixture(mixture) => {
                self.mixture_forward(mixture, kept, cheap, partial, routing, output)
            }
        }
    }

    /// Makes norms and activations again from what was kept.
    pub(crate) fn recompute_cheap(&self, room: &mut LayerRoom<'_, E>) {
        let LayerRoom { input, kept, cheap, .. } = room;
        self.norm_before_attention(input, kept, cheap);
        self.norm_before_mlp(kept, cheap);
        match &self.parts.mlp {
            MlpParts::Dense(dense) => self.activate(dense, &kept.gate_up, &mut cheap.activated),
            MlpParts::Mixture(mixture) => self.mixture_recompute(mixture, kept, cheap),
        }
    }

    /// Turns the gradient of the layer's output into that of its input, and adds to the gradient of its weights.
    pub(crate) fn backward(&self, room: &mut LayerRoom<'_, E>, mut gradient: BlockGradient<'_>) {
        let LayerRoom { input, kept, cheap, gradients, inner, partial, routing, .. } = room;
        let outer = gradients.as_deref_mut().expect(HAS_GRADIENTS);
        let inner = inner.as_deref_mut().expect(HAS_GRADIENTS);
        match partial {
            None => {
                let normed = &mut outer.normed;
                self.mlp_backward(
                    kept,
                    cheap,
                    &outer.stream,
                    inner,
                    normed,
                    routing,
                    reborrow(&mut gradient),
                );
            }
            Some(Partial { sums, .. }) => {
                self.mlp_backward(kept, cheap, &outer.stream, inner, sums, routing, reborrow(&mut gradient));
                self.complete(sums, &mut outer.normed);
            }
        }
        let parts = &self.parts.before_mlp;
        self.norm_backward(parts, &kept.middle, &kept.inverse_mlp, outer, reborrow(&mut gradient));
        self.attended_backward(kept, &outer.stream, inner, reborrow(&mut gradient));
        self.head_norms_backward(kept, &mut inner.qkv, partial, reborrow(&mut gradient));
        match partial {
            None => self.project_backward(cheap, inner, &mut outer.normed, reborrow(&mut gradient)),
            Some(Partial { sums, .. }) => {
                self.project_backward(cheap, inner, sums, reborrow(&mut gradient));
                self.complete(sums, &mut outer.normed);
            }
        }
        let parts = &self.parts.before_attention;
        self.norm_backward(parts, input, &kept.inverse_attention, outer, gradient);
    }

    /// From the gradient of the MLP's output to that of its normed input.
    #[expect(clippy::too_many_arguments, reason = "what goes in, what comes out, and where")]
    fn mlp_backward<T: Element>(
        &self,
        kept: &Kept<E>,
        cheap: &Cheap<E>,
        d_output: &Buffer<E>,
        inner: &mut InnerGradients<E>,
        d_normed: &mut Buffer<T>,
        routing: &Routing<'_>,
        gradient: BlockGradient<'_>,
    ) {
        match &self.parts.mlp {
            MlpParts::Dense(dense) => {
                let d_output = self.matrix(d_output, self.hidden());
                let rooms = DenseRooms { activated: &mut inner.activated, gate_up: &mut inner.gate_up };
                let d_normed = self.matrix_mut(d_normed, self.hidden());
                self.dense_backward(dense, d_output, kept, cheap, rooms, Put::Replace, d_normed, gradient);
            }
            MlpParts::Mixture(mixture) => {
                self.mixture_backward(mixture, kept, cheap, d_output, inner, d_normed, routing, gradient);
            }
        }
    }

    fn norm_before_attention(&self, input: &Buffer<E>, kept: &mut Kept<E>, cheap: &mut Cheap<E>) {
        let parts = &self.parts.before_attention;
        self.norm(parts, input, &mut cheap.before_attention, &mut kept.inverse_attention);
    }

    fn norm_before_mlp(&self, kept: &mut Kept<E>, cheap: &mut Cheap<E>) {
        self.norm(&self.parts.before_mlp, &kept.middle, &mut cheap.before_mlp, &mut kept.inverse_mlp);
    }

    pub(crate) fn linear(&self, parts: &LinearParts, input: Matrix<'_, E>, output: MatrixMut<'_, E>) {
        let bias = parts.bias.clone().map(|bias| self.weights.range(bias));
        self.device.linear(input, self.weights.range(parts.weight.clone()), bias, None, output);
    }

    /// `output = residual + input W^T + bias`, where the inputs may be cut over ranks.
    fn add_product(
        &self,
        parts: &LinearParts,
        input: Matrix<'_, E>,
        residual: &Buffer<E>,
        partial: &mut Option<&mut Partial<E>>,
        output: &mut Buffer<E>,
    ) {
        let hidden = self.hidden();
        let weight = self.weights.range(parts.weight.clone());
        let bias = parts.bias.clone().map(|bias| self.weights.range(bias));
        match partial {
            None => {
                let residual = Some(self.matrix(residual, hidden));
                self.device.linear(input, weight, bias, residual, self.matrix_mut(output, hidden));
            }
            Some(Partial { sums, .. }) => {
                self.device.linear(input, weight, None, None, self.matrix_mut(sums, hidden));
                self.add_sums(sums, bias, residual, output);
            }
        }
    }

    /// Adds up the ranks' partial sums, and then bias and residual.
    pub(crate) fn add_sums(
        &self,
        sums: &mut Buffer<f32>,
        bias: Option<View<'_, E>>,
        residual: &Buffer<E>,
        output: &mut Buffer<E>,
    ) {
        let hidden = self.hidden();
        self.network.sum_over_ranks(self.device, sums.range_mut(0..self.rows * hidden));
        let residual = self.matrix(residual, hidden);
        self.device.add_sums(self.matrix(sums, hidden), bias, residual, self.matrix_mut(output, hidden));
    }

    /// Adds up the ranks' partial gradients of a normed input.
    fn complete(&self, sums: &mut Buffer<f32>, d_normed: &mut Buffer<E>) {
        let numbers = 0..self.rows * self.hidden();
        self.network.sum_over_ranks(self.device, sums.range_mut(numbers.clone()));
        self.device.convert(sums.range(numbers.clone()), d_normed.range_mut(numbers));
    }

    /// The gradient of a linear layer's weights, from that of its output.
    pub(crate) fn linear_gradient(
        &self,
        parts: &LinearParts,
        d_output: Matrix<'_, E>,
        input: Matrix<'_, E>,
        gradient: BlockGradient<'_>,
    ) {
        let Some(gradient) = gradient else { return };
        // The bias lies behind the weight.
        let (front, back) = gradient.split_at(parts.weight.end);
        let bias = parts
            .bias
            .clone()
            .map(|bias| back.range(bias.start - parts.weight.end..bias.end - parts.weight.end));
        self.device.linear_backward_weight(d_output, input, front.range(parts.weight.clone()), bias);
    }

    // Attention.

    fn attention_shape(&self) -> AttentionShape {
        let widths = &self.parts.widths;
        AttentionShape {
            queries: self.sequence,
            keys: self.sequence,
            heads: widths.heads,
            kv_heads: widths.kv_heads,
            head_dim: widths.head_dim,
            scale: self.network.architecture().numerics.attention_scale.of(widths.head_dim, self.layer),
        }
    }

    /// The heads of the queries and those of the keys, as they lie in a row.
    fn query_and_key_heads(&self) -> [Heads; 2] {
        let (heads, count, dim) =
            (self.parts.widths.heads, self.parts.widths.kv_heads, self.parts.widths.head_dim);
        [Heads { first: 0, count: heads, dim }, Heads { first: heads, count, dim }]
    }

    /// Queries, keys and values; with norms over heads, queries and keys go through them.
    fn project(&self, kept: &mut Kept<E>, cheap: &Cheap<E>) {
        let (columns, unnormed) = (self.parts.widths.qkv, self.parts.widths.unnormed);
        let input = self.matrix(&cheap.before_attention, self.hidden());
        let Some(norms) = &self.parts.head_norms else {
            return self.linear(&self.parts.qkv, input, self.matrix_mut(&mut kept.qkv, columns));
        };
        let [queries_keys, values] = self.parts.qkv.split(unnormed, self.hidden());
        self.linear(&queries_keys, input, self.matrix_mut(&mut kept.unnormed, unnormed));
        let qkv = self.matrix_mut(&mut kept.qkv, columns);
        self.linear(&values, input, qkv.columns(unnormed..columns));
        let inverses = [&mut kept.query_inverses, &mut kept.key_inverses];
        let norms = [&norms.queries, &norms.keys].into_iter().zip(inverses);
        for (heads, (norm, inverses)) in self.query_and_key_heads().iter().zip(norms) {
            self.device.head_norm(
                heads,
                self.matrix(&kept.unnormed, unnormed),
                self.weights.range(norm.clone()),
                self.network.architecture().numerics.norm_epsilon,
                self.matrix_mut(&mut kept.qkv, columns),
                inverses.range_mut(0..self.rows * heads.count),
            );
        }
    }

    fn rotate(&self, turn: Turn, qkv: &mut Buffer<E>) {
        let Some(rotary) = self.network.rotary() else { return };
        let [queries, keys] = self.query_and_key_heads();
        let heads = Heads { count: queries.count + keys.count, ..queries };
        self.device.rotate(&heads, self.positions, rotary, turn, self.matrix_mut(qkv, self.parts.widths.qkv));
    }

    fn attend(&self, kept: &mut Kept<E>) {
        let widths = &self.parts.widths;
        self.rotate(Turn::Forward, &mut kept.qkv);
        let shape = self.attention_shape();
        self.device.attention(
            &shape,
            Qkv::columns(&shape, self.matrix(&kept.qkv, widths.qkv)),
            Seen { first_keys: self.first_keys, positions: None },
            self.matrix_mut(&mut kept.attended, widths.attended),
            kept.log_sums.range_mut(0..self.rows * widths.heads),
        );
    }

    /// From the gradient of attention's output to that of queries, keys and values.
    fn attended_backward(
        &self,
        kept: &Kept<E>,
        d_output: &Buffer<E>,
        inner: &mut InnerGradients<E>,
        gradient: BlockGradient<'_>,
    ) {
        let (widths, output) = (&self.parts.widths, &self.parts.output);
        let d_output = self.matrix(d_output, self.hidden());
        let attended = self.matrix(&kept.attended, widths.attended);
        self.linear_gradient(output, d_output, attended, gradient);
        self.device.linear_backward_input(
            d_output,
            self.weights.range(output.weight.clone()),
            Put::Replace,
            self.matrix_mut(&mut inner.attended, widths.attended),
        );
        let shape = self.attention_shape();
        self.device.attention_backward(
            &shape,
            Qkv::columns(&shape, self.matrix(&kept.qkv, widths.qkv)),
            Seen { first_keys: self.first_keys, positions: None },
            attended,
            kept.log_sums.range(0..self.rows * widths.heads),
            self.matrix(&inner.attended, widths.attended),
            Qkv::columns_mut(&shape, self.matrix_mut(&mut inner.qkv, widths.qkv)),
        );
        self.rotate(Turn::Backward, &mut inner.qkv);
    }

    /// The way back through the norms over heads. Where heads are cut over ranks, each rank has a share of their gradient.
    fn head_norms_backward(
        &self,
        kept: &Kept<E>,
        d_qkv: &mut Buffer<E>,
        partial: &mut Option<&mut Partial<E>>,
        mut gradient: BlockGradient<'_>,
    ) {
        let Some(norms) = &self.parts.head_norms else { return };
        let norms = [norms.queries.clone(), norms.keys.clone()];
        let Some(Partial { head_norms: shares, .. }) = partial else {
            return self.each_head_norm_backward(kept, d_qkv, &norms, gradient);
        };
        let dim = self.parts.widths.head_dim;
        let places = [0..dim, dim..2 * dim];
        self.device.fill(shares.view_mut(), 0.0);
        self.each_head_norm_backward(kept, d_qkv, &places, gradient.is_some().then(|| shares.view_mut()));
        if gradient.is_some() {
            self.network.sum_over_ranks(self.device, shares.view_mut());
        }
        for (place, norm) in places.into_iter().zip(norms) {
            if let Some(gradient) = reborrow(&mut gradient) {
                self.device.add(shares.range(place), gradient.range(norm));
            }
        }
    }

    /// Adds the gradients of the two norms' weights to two places of `sums`.
    fn each_head_norm_backward(
        &self,
        kept: &Kept<E>,
        d_qkv: &mut Buffer<E>,
        places: &[Range<usize>; 2],
        mut sums: BlockGradient<'_>,
    ) {
        let Some(norms) = &self.parts.head_norms else { return };
        let inverses = [&kept.query_inverses, &kept.key_inverses];
        for (index, norm) in [&norms.queries, &norms.keys].into_iter().enumerate() {
            let heads = &self.query_and_key_heads()[index];
            self.device.head_norm_backward(
                heads,
                self.matrix_mut(d_qkv, self.parts.widths.qkv),
                self.matrix(&kept.unnormed, self.parts.widths.unnormed),
                self.weights.range(norm.clone()),
                inverses[index].range(0..self.rows * heads.count),
                reborrow(&mut sums).map(|sums| sums.range(places[index].clone())),
            );
        }
    }

    /// From the gradient of queries, keys and values to that of the normed input.
    fn project_backward<T: Element>(
        &self,
        cheap: &Cheap<E>,
        inner: &InnerGradients<E>,
        d_normed: &mut Buffer<T>,
        gradient: BlockGradient<'_>,
    ) {
        let d_qkv = self.matrix(&inner.qkv, self.parts.widths.qkv);
        let input = self.matrix(&cheap.before_attention, self.hidden());
        self.linear_gradient(&self.parts.qkv, d_qkv, input, gradient);
        let weight = self.weights.range(self.parts.qkv.weight.clone());
        let d_normed = self.matrix_mut(d_normed, self.hidden());
        self.device.linear_backward_input(d_qkv, weight, Put::Replace, d_normed);
    }

    // The dense MLP.

    /// Up to the activations; the last product is the caller's.
    pub(crate) fn dense_inner(&self, dense: &DenseParts, kept: &mut Kept<E>, cheap: &mut Cheap<E>) {
        let input = self.matrix(&cheap.before_mlp, self.hidden());
        self.linear(&dense.gate_up, input, self.matrix_mut(&mut kept.gate_up, dense.outputs()));
        self.activate(dense, &kept.gate_up, &mut cheap.activated);
    }

    pub(crate) fn activate(&self, dense: &DenseParts, gate_up: &Buffer<E>, activated: &mut Buffer<E>) {
        let gate_up = self.matrix(gate_up, dense.outputs());
        let activated = self.matrix_mut(activated, dense.width);
        match self.network.architecture().numerics.activation {
            Activation::SwiGlu => self.device.swiglu(gate_up, activated),
            Activation::Gelu(kind) => self.device.gelu(kind, gate_up, activated),
        }
    }

    /// From a gradient of the MLP's output to that of its input; also the way back through a shared expert.
    #[expect(clippy::too_many_arguments, reason = "what goes in, what comes out, and where")]
    pub(crate) fn dense_backward<T: Element>(
        &self,
        dense: &DenseParts,
        d_output: Matrix<'_, E>,
        kept: &Kept<E>,
        cheap: &Cheap<E>,
        rooms: DenseRooms<'_, E>,
        put: Put,
        d_input: MatrixMut<'_, T>,
        mut gradient: BlockGradient<'_>,
    ) {
        let DenseRooms { activated, gate_up } = rooms;
        let forward = self.matrix(&cheap.activated, dense.width);
        self.linear_gradient(&dense.down, d_output, forward, reborrow(&mut gradient));
        let weight = self.weights.range(dense.down.weight.clone());
        let d_activated = self.matrix_mut(activated, dense.width);
        self.device.linear_backward_input(d_output, weight, Put::Replace, d_activated);
        let before = self.matrix(&kept.gate_up, dense.outputs());
        let d_activated = self.matrix(activated, dense.width);
        let d_gate_up = self.matrix_mut(gate_up, dense.outputs());
        match self.network.architecture().numerics.activation {
            Activation::SwiGlu => self.device.swiglu_backward(before, d_activated, d_gate_up),
            Activation::Gelu(kind) => self.device.gelu_backward(kind, before, d_activated, d_gate_up),
        }
        let d_gate_up = self.matrix(gate_up, dense.outputs());
        let input = self.matrix(&cheap.before_mlp, self.hidden());
        self.linear_gradient(&dense.gate_up, d_gate_up, input, gradient);
        let weight = self.weights.range(dense.gate_up.weight.clone());
        self.device.linear_backward_input(d_gate_up, weight, put, d_input);
    }
}

/// Room for the inner gradients of a dense MLP.
pub(crate) struct DenseRooms<'a, E: Element> {
    pub(crate) activated: &'a mut Buffer<E>,
    pub(crate) gate_up: &'a mut Buffer<E>,
}

impl LinearParts {
    /// The layers of the first `outputs` outputs and of the rest.
    fn split(&self, outputs: usize, inputs: usize) -> [LinearParts; 2] {
        let middle = self.weight.start + outputs * inputs;
        let bias = self.bias.clone();
        let between = bias.clone().map(|bias| bias.start + outputs);
        [
            LinearParts {
                weight: self.weight.start..middle,
                bias: bias.clone().zip(between).map(|(bias, between)| bias.start..between),
            },
            LinearParts {
                weight: middle..self.weight.end,
                bias: bias.zip(between).map(|(bias, between)| between..bias.end),
            },
        ]
    }
}
