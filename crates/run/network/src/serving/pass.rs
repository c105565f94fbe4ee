//! A step's way through the network.

use bedplate_kernels::{
    Accumulate, Buffer, Device, Element, Gate, Matrix, MatrixMut, NormWeight, PagedShape, Sight, View,
};
use bedplate_transformer::Reach;

use super::adapters::{AdapterTarget, RowAdapters};
use super::packed::{PackedDense, PackedLayer, PackedLinear, PackedMlp, PackedNorm};
use super::room::{AdapterRoom, GraphState, ServingRoom, StepRows};
use super::{KvPool, PackedWeights};
use crate::Network;
use crate::numerics::Activation;
use crate::table::{DenseParts, LayerParts, MlpParts};

impl Network {
    /// Computes the rows of a step. Their keys and values are put into the pool, and the room then has the logits after the wanted
    /// rows. `adapters` are those that some of the rows go through.
    pub fn answer<E: Element>(
        &self,
        device: &Device,
        weights: &PackedWeights<E>,
        pool: &mut KvPool<E>,
        step: &StepRows<'_>,
        adapters: RowAdapters<'_>,
        room: &mut ServingRoom<E>,
    ) {
        let is_plain = adapters.rows.is_empty() && self.peers().is_none();
        if device.is_cpu() || !is_plain || !step.is_decoding() {
            return self.answer_by_layer(device, weights, pool, step, adapters, room, |_, _| {});
        }
        room.given.load(device, step);
        room.given.claim_all_tables();
        let rows = room.given.rows;
        let mut pass = |device: &Device, room: &mut ServingRoom<E>| {
            self.pass(device, weights, pool, RowAdapters::NONE, room, |_, _| {});
        };
        match room.graphs.remove(&rows) {
            Some(GraphState::Ready(graph)) if device.launch_graph(&graph) => {
                room.graphs.insert(rows, GraphState::Ready(graph));
            }
            // The first time, kernels are compiled and scratch memory grows.
            None | Some(GraphState::Ready(_)) => {
                pass(device, room);
                room.graphs.insert(rows, GraphState::Warm);
            }
            Some(GraphState::Warm) => match device.capture(|device| pass(device, room)) {
                Some(graph) if device.launch_graph(&graph) => {
                    room.graphs.insert(rows, GraphState::Ready(graph));
                }
                _ => pass(device, room),
            },
        }
    }

    /// The same, and calls `stored` after each layer, which then has its keys and values in the pool.
    #[expect(clippy::too_many_arguments, reason = "a network is its table, its weights and where it runs")]
    pub fn answer_by_layer<E: Element>(
        &self,
        device: &Device,
        weights: &PackedWeights<E>,
        pool: &mut KvPool<E>,
        step: &StepRows<'_>,
        adapters: RowAdapters<'_>,
        room: &mut ServingRoom<E>,
        stored: impl FnMut(usize, &KvPool<E>),
    ) {
        room.given.load(device, step);
        self.pass(device, weights, pool, adapters, room, stored);
    }

    /// From the tokens that the room was given to its logits.
    fn pass<E: Element>(
        &self,
        device: &Device,
        weights: &PackedWeights<E>,
        pool: &mut KvPool<E>,
        adapters: RowAdapters<'_>,
        room: &mut ServingRoom<E>,
        mut stored: impl FnMut(usize, &KvPool<E>),
    ) {
        self.look_up(device, weights, room);
        let all = 0..self.blocks().len();
        for (layer, parts) in self.layers(&all).enumerate() {
            let pass = LayerPass {
                device,
                network: self,
                parts,
                weights: &weights.layers[layer],
                shape: pool.shapes[layer],
                layer,
                adapters,
                rows: room.given.rows,
            };
            pass.run(&mut pool.layers[layer], room);
            stored(layer, pool);
        }
        self.read_out(device, weights, room);
    }

    fn look_up<E: Element>(&self, device: &Device, weights: &PackedWeights<E>, room: &mut ServingRoom<E>) {
        let hidden = self.architecture().transformer.hidden as usize;
        let ServingRoom { given, streams: [stream, other], .. } = room;
        let rows = given.rows;
        let matrix = |buffer| first_rows(buffer, rows, hidden);
        device.unpack_rows(given.tokens(), &weights.table, matrix(&mut *stream));
        if let Some(positions) = &weights.positions {
            device.unpack_rows(given.positions(), positions, matrix(other));
            device.add(other.range(0..rows * hidden), stream.range_mut(0..rows * hidden));
        }
        let scale = self.embedding_scale::<E>();
        if scale != 1.0 {
            device.multiply_by(stream.range_mut(0..rows * hidden), scale);
        }
    }

    /// The logits after the wanted rows.
    fn read_out<E: Element>(&self, device: &Device, weights: &PackedWeights<E>, room: &mut ServingRoom<E>) {
        let hidden = self.architecture().transformer.hidden as usize;
        let vocab = self.architecture().transformer.vocab as usize;
        let ServingRoom { given, streams, normed, statistics, wanted_rows, logits, next_tokens, .. } = room;
        let (rows, count) = (given.rows, given.wanted_count);
        if count == 0 {
            return;
        }
        let wanted = given.wanted();
        let stream = streams[0].range(0..rows * hidden).matrix(rows, hidden);
        device.gather_rows(stream, wanted, 1, first_rows(&mut *normed, count, hidden));
        let gathered = normed.range(0..count * hidden).matrix(count, hidden);
        self.norm(device, &weights.norm, gathered, first_rows(&mut *wanted_rows, count, hidden), statistics);
        let gathered = wanted_rows.range(0..count * hidden).matrix(count, hidden);
        let head = weights.head.as_ref().unwrap_or(&weights.table);
        device.linear_packed(gathered, head, None, None, first_rows(&mut *logits, count, vocab));
        let (scale, cap) = (self.architecture().numerics.logit_scale, self.architecture().numerics.logit_cap);
        if scale != 1.0 {
            device.multiply_by(logits.range_mut(0..count * vocab), scale);
        }
        if cap > 0.0 {
            device.bend_logits(cap, logits.range_mut(0..count * vocab));
        }
        if !device.is_cpu() {
            let logits = logits.range(0..count * vocab).matrix(count, vocab);
            device.argmax(logits, next_tokens.range_mut(0..count));
        }
    }

    fn norm<E: Element>(
        &self,
        device: &Device,
        norm: &PackedNorm<E>,
        input: Matrix<'_, E>,
        output: MatrixMut<'_, E>,
        statistics: &mut Buffer<f32>,
    ) {
        let (rows, epsilon) = (input.shape().0, self.architecture().numerics.norm_epsilon);
        let weight = norm.weight.view();
        let weight_less = self.norm_weight(weight);
        match &norm.bias {
            None => device.rms_norm(input, weight_less, epsilon, output, statistics.range_mut(0..rows)),
            Some(bias) => {
                let statistics = statistics.range_mut(0..2 * rows);
                device.layer_norm(input, weight, Some(bias.view()), epsilon, output, statistics);
            }
        }
    }
}

impl Network {
    fn norm_weight<'a, E>(&self, kept: View<'a, E>) -> NormWeight<'a, E> {
        NormWeight { kept, offset: self.architecture().numerics.norm_offset }
    }
}

/// The first rows of a buffer that may have room for more.
pub(super) fn first_rows<T: Element>(
    buffer: &mut Buffer<T>,
    rows: usize,
    columns: usize,
) -> MatrixMut<'_, T> {
    buffer.range_mut(0..rows * columns).matrix(rows, columns)
}

/// What a half of a layer adds to, and what it needs to do so.
type HalfRooms<'a, E> = (
    &'a mut [Buffer<E>; 2],
    &'a mut Option<Buffer<f32>>,
    &'a mut Option<AdapterRoom<E>>,
    &'a mut Buffer<E>,
    &'a mut Buffer<f32>,
);

/// What all functions of a layer share.
pub(super) struct LayerPass<'a, E: Element> {
    pub(super) device: &'a Device,
    pub(super) network: &'a Network,
    pub(super) parts: &'a LayerParts,
    pub(super) weights: &'a PackedLayer<E>,
    shape: PagedShape,
    pub(super) layer: usize,
    pub(super) adapters: RowAdapters<'a>,
    pub(super) rows: usize,
}

impl<E: Element> LayerPass<'_, E> {
    pub(super) fn matrix<'b, T: Element>(&self, buffer: &'b Buffer<T>, columns: usize) -> Matrix<'b, T> {
        buffer.range(0..self.rows * columns).matrix(self.rows, columns)
    }

    pub(super) fn matrix_mut<'b, T: Element>(
        &self,
        buffer: &'b mut Buffer<T>,
        columns: usize,
    ) -> MatrixMut<'b, T> {
        first_rows(buffer, self.rows, columns)
    }

    pub(super) fn hidden(&self) -> usize {
        self.parts.widths.hidden
    }

    /// From the stream before the layer to the one after it; both are the first of the room's two.
    fn run(&self, pool: &mut Buffer<E>, room: &mut ServingRoom<E>) {
        match (&self.parts.latent, &self.weights.latent) {
            (Some(parts), Some(weights)) => {
                self.project_latent(parts, weights, room);
                self.attend_latent(parts, weights, &self.shape, pool, room);
            }
            _ => {
                self.project(room);
                self.attend(pool, room);
            }
        }
        self.add_attended(room);
        room.streams.swap(0, 1);
        match (&self.weights.mlp, &self.parts.mlp) {
            (PackedMlp::Dense(weights), MlpParts::Dense(parts)) => self.dense(weights, parts, room),
            (PackedMlp::Mixture(weights), MlpParts::Mixture(parts)) => {
                self.norm_into(self.weights.before_mlp.as_ref(), room);
                self.mixture(weights, parts, room);
            }
            _ => unreachable!("weights are packed by the table"),
        }
        room.streams.swap(0, 1);
    }

    /// The stream as it is where there is no norm.
    pub(super) fn norm_into(&self, norm: Option<&PackedNorm<E>>, room: &mut ServingRoom<E>) {
        let ServingRoom { streams, normed, statistics, .. } = room;
        let Some(norm) = norm else {
            let numbers = 0..self.rows * self.hidden();
            return self.device.copy(streams[0].range(numbers.clone()), normed.range_mut(numbers));
        };
        let (input, output) =
            (self.matrix(&streams[0], self.hidden()), self.matrix_mut(normed, self.hidden()));
        self.network.norm(self.device, norm, input, output, statistics);
    }

    /// The linear layer of a normed stream. What is normed is in its room afterwards only where adapters want it.
    fn normed_linear(
        &self,
        norm: Option<&PackedNorm<E>>,
        linear: &PackedLinear<E>,
        stream: &Buffer<E>,
        (normed, statistics): (&mut Buffer<E>, &mut Buffer<f32>),
        output: MatrixMut<'_, E>,
    ) {
        let hidden = self.hidden();
        let Some(norm) = norm else {
            let numbers = 0..self.rows * hidden;
            self.device.copy(stream.range(numbers.clone()), normed.range_mut(numbers));
            return self.linear(linear, self.matrix(normed, hidden), output);
        };
        let stream = self.matrix(stream, hidden);
        if norm.bias.is_some() || !self.adapters.rows.is_empty() {
            let to = self.matrix_mut(&mut *normed, hidden);
            self.network.norm(self.device, norm, stream, to, statistics);
            return self.linear(linear, self.matrix(normed, hidden), output);
        }
        let epsilon = self.network.architecture().numerics.norm_epsilon;
        let bias = linear.bias.as_ref().map(Buffer::view);
        let room = (self.matrix_mut(normed, hidden), statistics.range_mut(0..self.rows));
        let norm = self.network.norm_weight(norm.weight.view());
        self.device.rms_norm_linear(stream, norm, epsilon, &linear.weight, bias, room, output);
    }

    /// Queries, keys and values of the normed rows.
    fn project(&self, room: &mut ServingRoom<E>) {
        let (columns, unnormed, hidden) = (self.parts.widths.qkv, self.parts.widths.unnormed, self.hidden());
        match (&self.weights.values, &self.weights.head_norms) {
            (Some(values), Some(norms)) => {
                self.norm_into(self.weights.before_attention.as_ref(), room);
                let input = self.matrix(&room.normed, hidden);
                self.linear(&self.weights.qkv, input, self.matrix_mut(&mut room.unnormed, unnormed));
                let rest = self.matrix_mut(&mut room.qkv, columns).columns(unnormed..columns);
                self.linear(values, input, rest);
                let adapted = room.adapters.as_mut();
                let to = self.matrix_mut(&mut room.unnormed, unnormed);
                self.adapters.add(self.device, self.layer, AdapterTarget::QueriesKeys, input, to, adapted);
                let rest = self.matrix_mut(&mut room.qkv, columns).columns(unnormed..columns);
                let adapted = room.adapters.as_mut();
                self.adapters.add(self.device, self.layer, AdapterTarget::Values, input, rest, adapted);
                self.norm_heads(norms, room);
            }
            _ => {
                let ServingRoom { streams, normed, statistics, qkv, adapters, .. } = room;
                let (norm, linear) = (self.weights.before_attention.as_ref(), &self.weights.qkv);
                let to = self.matrix_mut(&mut *qkv, columns);
                self.normed_linear(norm, linear, &streams[0], (&mut *normed, statistics), to);
                let (input, to) = (self.matrix(normed, hidden), self.matrix_mut(qkv, columns));
                self.adapters.add(self.device, self.layer, AdapterTarget::Qkv, input, to, adapters.as_mut());
            }
        }
    }

    fn norm_heads(&self, norms: &[Buffer<E>; 2], room: &mut ServingRoom<E>) {
        let (columns, unnormed) = (self.parts.widths.qkv, self.parts.widths.unnormed);
        let epsilon = self.network.architecture().numerics.norm_epsilon;
        let Some(parts) = &self.parts.head_norms else { return };
        for (heads, norm) in parts.heads.iter().zip(norms) {
            self.device.head_norm(
                heads,
                self.matrix(&room.unnormed, unnormed),
                self.network.norm_weight(norm.view()),
                epsilon,
                self.matrix_mut(&mut room.qkv, columns),
                room.statistics.range_mut(0..self.rows * heads.count),
            );
        }
    }

    fn attend(&self, pool: &mut Buffer<E>, room: &mut ServingRoom<E>) {
        let PagedShape { heads, kv_heads, head_dim, .. } = self.shape;
        let (first, width, columns) = (heads * head_dim, kv_heads * head_dim, self.parts.widths.qkv);
        let rows = room.given.paged();
        match self.network.rotary(self.layer) {
            Some(rotary) => {
                let qkv = self.matrix_mut(&mut room.qkv, columns);
                let positions = room.given.positions();
                self.device.turn_and_store(&self.shape, positions, rotary, qkv, rows, pool.view_mut());
            }
            None => {
                let qkv = self.matrix(&room.qkv, columns);
                let (keys, values) =
                    (qkv.columns(first..first + width), qkv.columns(first + width..first + 2 * width));
                self.device.store_kv(&self.shape, keys, values, rows, pool.view_mut());
            }
        }
        let qkv = self.matrix(&room.qkv, columns);
        let sight = self.sight();
        let out = self.matrix_mut(&mut room.attended, self.parts.widths.attended);
        let (queries, sinks) = (qkv.columns(0..first), self.weights.sinks.as_ref().map(Buffer::view));
        self.device.paged_attention_with(&self.shape, queries, rows, sight, pool.view(), sinks, out);
    }

    pub(super) fn sight(&self) -> Sight {
        match self.parts.reach {
            Reach::Full => Sight::All,
            Reach::Window(size) => Sight::Window(size as usize),
            Reach::Chunk(size) => Sight::Chunk(size as usize),
        }
    }

    fn add_attended(&self, room: &mut ServingRoom<E>) {
        let ServingRoom { attended, streams, partial, adapters, branch, statistics, .. } = room;
        let latent = self.parts.latent.as_ref().map(|parts| parts.shape);
        let columns = latent.map_or(self.parts.widths.attended, |shape| shape.heads * shape.value);
        let attended = self.matrix(attended, columns);
        let (linear, after) = (&self.weights.output, self.weights.after_attention.as_ref());
        let rooms = (streams, partial, adapters, branch, statistics);
        self.add_half(linear, after, AdapterTarget::Output, attended, rooms);
    }

    /// Up to the activations.
    pub(super) fn dense_inner(
        &self,
        weights: &PackedDense<E>,
        parts: &DenseParts,
        room: &mut ServingRoom<E>,
    ) {
        let ServingRoom { normed, gate_up, activated, adapters, .. } = room;
        let input = self.matrix(normed, self.hidden());
        self.linear(&weights.gate_up, input, self.matrix_mut(gate_up, parts.outputs()));
        let to = self.matrix_mut(gate_up, parts.outputs());
        self.adapters.add(self.device, self.layer, AdapterTarget::GateUp, input, to, adapters.as_mut());
        self.activate(self.matrix(gate_up, parts.outputs()), self.matrix_mut(activated, parts.width));
    }

    /// From the stream to the stream.
    fn dense(&self, weights: &PackedDense<E>, parts: &DenseParts, room: &mut ServingRoom<E>) {
        let ServingRoom {
            streams, normed, statistics, gate_up, activated, partial, adapters, branch, ..
        } = room;
        let (norm, hidden, outputs) = (self.weights.before_mlp.as_ref(), self.hidden(), parts.outputs());
        let to = self.matrix_mut(&mut *gate_up, outputs);
        self.normed_linear(norm, &weights.gate_up, &streams[0], (&mut *normed, &mut *statistics), to);
        let (input, to) = (self.matrix(normed, hidden), self.matrix_mut(&mut *gate_up, outputs));
        self.adapters.add(self.device, self.layer, AdapterTarget::GateUp, input, to, adapters.as_mut());
        let gate_up = self.matrix(gate_up, outputs);
        let after = self.weights.after_mlp.as_ref();
        let is_swiglu = self.network.architecture().numerics.activation == Activation::Gated(Gate::Silu);
        if is_swiglu && after.is_none() && partial.is_none() && self.adapters.rows.is_empty() {
            let [residual, output] = streams;
            let bias = weights.down.bias.as_ref().map(Buffer::view);
            let residual = Some(self.matrix(residual, hidden));
            let (room, out) = (self.matrix_mut(activated, parts.width), self.matrix_mut(output, hidden));
            return self.device.swiglu_linear(gate_up, &weights.down.weight, bias, residual, room, out);
        }
        self.activate(gate_up, self.matrix_mut(&mut *activated, parts.width));
        let activated = self.matrix(activated, parts.width);
        let rooms = (streams, partial, adapters, branch, statistics);
        self.add_half(&weights.down, after, AdapterTarget::Down, activated, rooms);
    }

    fn activate(&self, gate_up: Matrix<'_, E>, activated: MatrixMut<'_, E>) {
        match self.network.architecture().numerics.activation {
            Activation::Gated(gate) => self.device.gated(gate, gate_up, activated),
            Activation::Gelu(kind) => self.device.gelu(kind, gate_up, activated),
        }
    }

    pub(super) fn linear(&self, linear: &PackedLinear<E>, input: Matrix<'_, E>, output: MatrixMut<'_, E>) {
        let bias = linear.bias.as_ref().map(Buffer::view);
        self.device.linear_packed(input, &linear.weight, bias, None, output);
    }

    /// The second stream becomes the first plus a product, or plus the norm of it where there is one behind this half of the layer.
    fn add_half(
        &self,
        linear: &PackedLinear<E>,
        after: Option<&PackedNorm<E>>,
        target: AdapterTarget,
        input: Matrix<'_, E>,
        (streams, partial, adapters, branch, statistics): HalfRooms<'_, E>,
    ) {
        let Some(after) = after else {
            return self.add_product(linear, target, input, streams, partial, adapters);
        };
        let (hidden, numbers) = (self.hidden(), 0..self.rows * self.hidden());
        let [residual, output] = streams;
        let bias = linear.bias.as_ref().map(Buffer::view);
        match partial {
            None => self.linear(linear, input, self.matrix_mut(branch, hidden)),
            Some(partial) => {
                self.device.linear_packed(
                    input,
                    &linear.weight,
                    None,
                    None,
                    self.matrix_mut(partial, hidden),
                );
                self.network.sum_over_ranks(self.device, partial.range_mut(numbers.clone()));
                self.device.fill(output.range_mut(numbers.clone()), 0.0);
                let (sums, nothing) = (self.matrix(partial, hidden), self.matrix(output, hidden));
                self.device.add_sums(sums, bias, nothing, self.matrix_mut(branch, hidden));
            }
        }
        let to = self.matrix_mut(branch, hidden);
        self.adapters.add(self.device, self.layer, target, input, to, adapters.as_mut());
        let to = self.matrix_mut(output, hidden);
        self.network.norm(self.device, after, self.matrix(branch, hidden), to, statistics);
        self.device.add(residual.range(numbers.clone()), output.range_mut(numbers));
    }

    /// The second stream becomes the first plus a product, whose inputs may be cut over ranks.
    fn add_product(
        &self,
        linear: &PackedLinear<E>,
        target: AdapterTarget,
        input: Matrix<'_, E>,
        streams: &mut [Buffer<E>; 2],
        partial: &mut Option<Buffer<f32>>,
        adapters: &mut Option<AdapterRoom<E>>,
    ) {
        let hidden = self.hidden();
        let [residual, output] = streams;
        let bias = linear.bias.as_ref().map(Buffer::view);
        match partial {
            None => {
                let residual = Some(self.matrix(residual, hidden));
                let to = self.matrix_mut(output, hidden);
                self.device.linear_packed(input, &linear.weight, bias, residual, to);
            }
            Some(partial) => {
                let sums = self.matrix_mut(partial, hidden);
                self.device.linear_packed(input, &linear.weight, None, None, sums);
                self.network.sum_over_ranks(self.device, partial.range_mut(0..self.rows * hidden));
                let sums = self.matrix(partial, hidden);
                let (residual, output) = (self.matrix(residual, hidden), self.matrix_mut(output, hidden));
                self.device.add_sums(sums, bias, residual, output);
            }
        }
        let to = self.matrix_mut(output, hidden);
        self.adapters.add(self.device, self.layer, target, input, to, adapters.as_mut());
    }

    pub(super) const ADD: Accumulate = Accumulate::Add;
}
