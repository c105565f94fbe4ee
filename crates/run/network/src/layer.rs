//! One transformer layer: forward, its cheap parts again, and backward.

use bedplate_kernels::{
    AttentionShape, Buffer, Device, Element, Heads, Into, Matrix, MatrixMut, Rotary, Turn, View, ViewMut,
};

use crate::numerics::Activation;
use crate::table::{DenseParts, LayerParts, LinearParts, MlpParts};
use crate::workspace::{Cheap, GradientRoom, Kept};
use crate::{Architecture, norm};

/// What all functions of a layer share: where it runs, its table, its weights and the rows it works on.
pub(crate) struct LayerRun<'a, E: Element> {
    pub(crate) device: &'a Device,
    pub(crate) parts: &'a LayerParts,
    pub(crate) architecture: &'a Architecture,
    pub(crate) rotary: Option<&'a Rotary>,
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

/// The same gradient for a shorter time.
pub(crate) fn reborrow<'b>(gradient: &'b mut BlockGradient<'_>) -> BlockGradient<'b> {
    gradient.as_mut().map(ViewMut::reborrow)
}

impl<E: Element> LayerRun<'_, E> {
    pub(crate) fn hidden(&self) -> usize {
        self.architecture.transformer.hidden as usize
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
    pub(crate) fn forward(
        &self,
        input: &Buffer<E>,
        kept: &mut Kept<E>,
        cheap: &mut Cheap<E>,
        output: &mut Buffer<E>,
    ) {
        let hidden = self.hidden();
        self.norm_before_attention(input, kept, cheap);
        self.project(kept, cheap);
        self.attend(kept);
        let attended = self.matrix(&kept.attended, self.attention_shape().attended());
        let residual = Some(self.matrix(input, hidden));
        self.linear(&self.parts.output, attended, residual, self.matrix_mut(&mut kept.middle, hidden));
        self.norm_before_mlp(kept, cheap);
        match &self.parts.mlp {
            MlpParts::Dense(dense) => {
                self.dense_inner(dense, kept, cheap);
                let activated = self.matrix(&cheap.activated, dense.width);
                let residual = Some(self.matrix(&kept.middle, hidden));
                self.linear(&dense.down, activated, residual, self.matrix_mut(output, hidden));
            }
            MlpParts::Mixture(mixture) => self.mixture_forward(mixture, kept, cheap, output),
        }
    }

    /// Makes norms and activations again from what was kept.
    pub(crate) fn recompute_cheap(&self, input: &Buffer<E>, kept: &mut Kept<E>, cheap: &mut Cheap<E>) {
        self.norm_before_attention(input, kept, cheap);
        self.norm_before_mlp(kept, cheap);
        match &self.parts.mlp {
            MlpParts::Dense(dense) => self.activate(dense, &kept.gate_up, &mut cheap.activated),
            MlpParts::Mixture(mixture) => self.mixture_recompute(mixture, kept, cheap),
        }
    }

    /// Turns the gradient of the layer's output, in `room.stream`, into that of its input, and adds to the gradient of
    /// its weights.
    pub(crate) fn backward(
        &self,
        input: &Buffer<E>,
        kept: &Kept<E>,
        cheap: &Cheap<E>,
        room: &mut GradientRoom<E>,
        mut gradient: BlockGradient<'_>,
    ) {
        match &self.parts.mlp {
            MlpParts::Dense(dense) => self.dense_backward(dense, kept, cheap, room, reborrow(&mut gradient)),
            MlpParts::Mixture(mixture) => {
                self.mixture_backward(mixture, kept, cheap, room, reborrow(&mut gradient));
            }
        }
        let passed = norm::Passed { input: &kept.middle, statistics: &kept.inverse_mlp };
        self.norm_backward(&self.parts.before_mlp, &passed, room, reborrow(&mut gradient));
        self.attention_backward(kept, cheap, room, reborrow(&mut gradient));
        let passed = norm::Passed { input, statistics: &kept.inverse_attention };
        self.norm_backward(&self.parts.before_attention, &passed, room, gradient);
    }

    fn norm_before_attention(&self, input: &Buffer<E>, kept: &mut Kept<E>, cheap: &mut Cheap<E>) {
        let parts = &self.parts.before_attention;
        self.norm(parts, input, &mut cheap.before_attention, &mut kept.inverse_attention);
    }

    fn norm_before_mlp(&self, kept: &mut Kept<E>, cheap: &mut Cheap<E>) {
        self.norm(&self.parts.before_mlp, &kept.middle, &mut cheap.before_mlp, &mut kept.inverse_mlp);
    }

    pub(crate) fn linear(
        &self,
        parts: &LinearParts,
        input: Matrix<'_, E>,
        residual: Option<Matrix<'_, E>>,
        output: MatrixMut<'_, E>,
    ) {
        let bias = parts.bias.clone().map(|bias| self.weights.range(bias));
        self.device.linear(input, self.weights.range(parts.weight.clone()), bias, residual, output);
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
            .map(|bias| back.into_range(bias.start - parts.weight.end..bias.end - parts.weight.end));
        self.device.linear_backward_weight(d_output, input, front.into_range(parts.weight.clone()), bias);
    }

    // Attention.

    fn attention_shape(&self) -> AttentionShape {
        let attention = &self.parts.attention;
        AttentionShape {
            sequence: self.sequence,
            heads: attention.heads as usize,
            kv_heads: attention.kv_heads as usize,
            head_dim: attention.head_dim as usize,
            scale: (attention.head_dim as f32).sqrt().recip(),
        }
    }

    /// The heads of the queries and those of the keys, as they lie in a row.
    fn query_and_key_heads(&self) -> [Heads; 2] {
        let AttentionShape { heads, kv_heads, head_dim: dim, .. } = self.attention_shape();
        [Heads { first: 0, count: heads, dim }, Heads { first: heads, count: kv_heads, dim }]
    }

    /// Queries, keys and values; with norms over heads, queries and keys go through them.
    fn project(&self, kept: &mut Kept<E>, cheap: &Cheap<E>) {
        let shape = self.attention_shape();
        let input = self.matrix(&cheap.before_attention, self.hidden());
        let Some(norms) = &self.parts.head_norms else {
            return self.linear(
                &self.parts.qkv,
                input,
                None,
                self.matrix_mut(&mut kept.qkv, shape.columns()),
            );
        };
        let normed = (shape.heads + shape.kv_heads) * shape.head_dim;
        let [queries_keys, values] = self.parts.qkv.split(normed, self.hidden());
        self.linear(&queries_keys, input, None, self.matrix_mut(&mut kept.unnormed, normed));
        let value_columns = normed..shape.columns();
        let qkv = self.matrix_mut(&mut kept.qkv, shape.columns());
        self.linear(&values, input, None, qkv.into_columns(value_columns));
        let norms = [&norms.queries, &norms.keys];
        for (index, (heads, norm)) in self.query_and_key_heads().iter().zip(norms).enumerate() {
            self.device.head_norm(
                heads,
                self.matrix(&kept.unnormed, normed),
                self.weights.range(norm.clone()),
                self.architecture.numerics.norm_epsilon,
                self.matrix_mut(&mut kept.qkv, shape.columns()),
                kept.head_inverses[index].range_mut(0..self.rows * heads.count),
            );
        }
    }

    fn rotate(&self, turn: Turn, qkv: &mut Buffer<E>) {
        let Some(rotary) = self.rotary else { return };
        let shape = self.attention_shape();
        let heads = Heads { first: 0, count: shape.heads + shape.kv_heads, dim: shape.head_dim };
        self.device.rotate(&heads, self.positions, rotary, turn, self.matrix_mut(qkv, shape.columns()));
    }

    fn attend(&self, kept: &mut Kept<E>) {
        let shape = self.attention_shape();
        self.rotate(Turn::Forward, &mut kept.qkv);
        self.device.attention(
            &shape,
            self.matrix(&kept.qkv, shape.columns()),
            self.first_keys,
            self.matrix_mut(&mut kept.attended, shape.attended()),
            kept.log_sums.range_mut(0..self.rows * shape.heads),
        );
    }

    /// From `room.stream` to the gradient of the normed input, in `room.normed`.
    fn attention_backward(
        &self,
        kept: &Kept<E>,
        cheap: &Cheap<E>,
        room: &mut GradientRoom<E>,
        mut gradient: BlockGradient<'_>,
    ) {
        let (shape, hidden) = (self.attention_shape(), self.hidden());
        let attended = self.matrix(&kept.attended, shape.attended());
        let output = &self.parts.output;
        self.linear_gradient(output, self.matrix(&room.stream, hidden), attended, reborrow(&mut gradient));
        self.device.linear_backward_input(
            self.matrix(&room.stream, hidden),
            self.weights.range(output.weight.clone()),
            Into::Replace,
            self.matrix_mut(&mut room.attended, shape.attended()),
        );
        self.device.attention_backward(
            &shape,
            self.matrix(&kept.qkv, shape.columns()),
            self.first_keys,
            attended,
            kept.log_sums.range(0..self.rows * shape.heads),
            self.matrix(&room.attended, shape.attended()),
            self.matrix_mut(&mut room.qkv, shape.columns()),
        );
        self.rotate(Turn::Backward, &mut room.qkv);
        self.head_norms_backward(kept, &mut room.qkv, reborrow(&mut gradient));
        let d_qkv = self.matrix(&room.qkv, shape.columns());
        let input = self.matrix(&cheap.before_attention, hidden);
        self.linear_gradient(&self.parts.qkv, d_qkv, input, gradient);
        let weight = self.weights.range(self.parts.qkv.weight.clone());
        let normed = self.matrix_mut(&mut room.normed, hidden);
        self.device.linear_backward_input(d_qkv, weight, Into::Replace, normed);
    }

    fn head_norms_backward(&self, kept: &Kept<E>, d_qkv: &mut Buffer<E>, mut gradient: BlockGradient<'_>) {
        let Some(norms) = &self.parts.head_norms else { return };
        let shape = self.attention_shape();
        let normed = (shape.heads + shape.kv_heads) * shape.head_dim;
        for (index, norm) in [&norms.queries, &norms.keys].into_iter().enumerate() {
            let heads = &self.query_and_key_heads()[index];
            self.device.head_norm_backward(
                heads,
                self.matrix_mut(d_qkv, shape.columns()),
                self.matrix(&kept.unnormed, normed),
                self.weights.range(norm.clone()),
                kept.head_inverses[index].range(0..self.rows * heads.count),
                reborrow(&mut gradient).map(|gradient| gradient.into_range(norm.clone())),
            );
        }
    }

    // The dense MLP.

    /// Up to the activations; the last product is the caller's.
    pub(crate) fn dense_inner(&self, dense: &DenseParts, kept: &mut Kept<E>, cheap: &mut Cheap<E>) {
        let input = self.matrix(&cheap.before_mlp, self.hidden());
        self.linear(&dense.gate_up, input, None, self.matrix_mut(&mut kept.gate_up, dense.outputs()));
        self.activate(dense, &kept.gate_up, &mut cheap.activated);
    }

    pub(crate) fn activate(&self, dense: &DenseParts, gate_up: &Buffer<E>, activated: &mut Buffer<E>) {
        let gate_up = self.matrix(gate_up, dense.outputs());
        let activated = self.matrix_mut(activated, dense.width);
        match self.architecture.numerics.activation {
            Activation::SwiGlu => self.device.swiglu(gate_up, activated),
            Activation::Gelu(kind) => self.device.gelu(kind, gate_up, activated),
        }
    }

    /// From the gradient of the MLP's output, in `room.stream`, to that of its normed input, in `room.normed`.
    fn dense_backward(
        &self,
        dense: &DenseParts,
        kept: &Kept<E>,
        cheap: &Cheap<E>,
        room: &mut GradientRoom<E>,
        gradient: BlockGradient<'_>,
    ) {
        let hidden = self.hidden();
        let GradientRoom { stream, normed, activated, gate_up, .. } = room;
        let d_output = self.matrix(stream, hidden);
        let rooms = DenseRooms { activated, gate_up };
        let normed = self.matrix_mut(normed, hidden);
        self.dense_backward_from(dense, d_output, kept, cheap, rooms, Into::Replace, normed, gradient);
    }

    /// The same from any gradient of the output; also the way back through a shared expert.
    #[expect(clippy::too_many_arguments, reason = "what goes in, what comes out, and where")]
    pub(crate) fn dense_backward_from(
        &self,
        dense: &DenseParts,
        d_output: Matrix<'_, E>,
        kept: &Kept<E>,
        cheap: &Cheap<E>,
        rooms: DenseRooms<'_, E>,
        into: Into,
        d_input: MatrixMut<'_, E>,
        mut gradient: BlockGradient<'_>,
    ) {
        let DenseRooms { activated, gate_up } = rooms;
        let forward = self.matrix(&cheap.activated, dense.width);
        self.linear_gradient(&dense.down, d_output, forward, reborrow(&mut gradient));
        let weight = self.weights.range(dense.down.weight.clone());
        let d_activated = self.matrix_mut(activated, dense.width);
        self.device.linear_backward_input(d_output, weight, Into::Replace, d_activated);
        let before = self.matrix(&kept.gate_up, dense.outputs());
        let d_activated = self.matrix(activated, dense.width);
        let d_gate_up = self.matrix_mut(gate_up, dense.outputs());
        match self.architecture.numerics.activation {
            Activation::SwiGlu => self.device.swiglu_backward(before, d_activated, d_gate_up),
            Activation::Gelu(kind) => self.device.gelu_backward(kind, before, d_activated, d_gate_up),
        }
        let d_gate_up = self.matrix(gate_up, dense.outputs());
        let input = self.matrix(&cheap.before_mlp, self.hidden());
        self.linear_gradient(&dense.gate_up, d_gate_up, input, gradient);
        let weight = self.weights.range(dense.gate_up.weight.clone());
        self.device.linear_backward_input(d_gate_up, weight, into, d_input);
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
