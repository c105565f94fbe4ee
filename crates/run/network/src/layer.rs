//! One transformer layer: forward, its cheap parts again, and backward.
//!
//! Where layers are cut over ranks, the products whose inputs are cut and the gradients of inputs whose outputs are give partial
//! sums in f32, which the ranks add up before the residual or the norm takes them. On one rank these steps are one. Where ranks have
//! their own rows of the stream, they gather them before products, and each gets its rows of the sums.

use bedplate_kernels::{Accumulate, Buffer, Device, Element, Matrix, MatrixMut, View, ViewMut};

use crate::Network;
use crate::dense::DenseRooms;
use crate::network::Products;
use crate::table::{LayerParts, LinearParts, MlpParts, NormParts};
use crate::workspace::{
    Cheap, ExpertLoad, HAS_GRADIENTS, InnerGradients, Kept, LayerRoom, Partial, StreamGradients, Travel,
};

/// What all functions of a layer share: where it runs, its table, its weights and the rows it works on.
pub(crate) struct LayerRun<'a, E: Element> {
    pub(crate) device: &'a Device,
    pub(crate) network: &'a Network,
    pub(crate) parts: &'a LayerParts,
    /// Counted from 0.
    pub(crate) layer: usize,
    pub(crate) weights: View<'a, E>,
    /// Rows that products and attention work on.
    pub(crate) rows: usize,
    /// Those of them whose residual stream is here.
    pub(crate) own_rows: usize,
    /// Rows of a sequence.
    pub(crate) sequence: usize,
    pub(crate) positions: View<'a, u32>,
    /// For the keys of each rank of the context group in turn.
    pub(crate) first_keys: View<'a, u32>,
    /// A position behind all keys of a rank.
    pub(crate) behind: View<'a, u32>,
    /// This micro-batch's share of the step, by which the load-balancing loss counts.
    pub(crate) balance: f32,
}

/// The gradient of a block's weights, to be added to; absent where the block is frozen.
pub(crate) type BlockGradient<'a> = Option<ViewMut<'a, f32>>;

/// What the way back through an MLP starts from.
pub(crate) struct Given<'a, E: Element> {
    /// The MLP's input.
    pub(crate) normed: Matrix<'a, E>,
    pub(crate) d_output: Matrix<'a, E>,
    pub(crate) kept: &'a Kept<E>,
    pub(crate) cheap: &'a Cheap<E>,
}

impl<E: Element> Clone for Given<'_, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E: Element> Copy for Given<'_, E> {}

/// What an MLP makes inside and can make again.
pub(crate) struct Made<'a, E: Element> {
    pub(crate) activated: &'a mut Buffer<E>,
    pub(crate) gathered: &'a mut Buffer<E>,
    pub(crate) expert_activated: &'a mut Buffer<E>,
}

impl<'a, E: Element> Made<'a, E> {
    /// The normed input of the MLP, and what is made from it.
    fn beside_normed(cheap: &'a mut Cheap<E>) -> (&'a Buffer<E>, Self) {
        let Cheap { before_mlp, activated, gathered, expert_activated, .. } = cheap;
        (before_mlp, Self { activated, gathered, expert_activated })
    }
}

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

    /// As [`LayerRun::matrix`], of the rows whose residual stream is here.
    pub(crate) fn own<'b, F: Element>(&self, buffer: &'b Buffer<F>, columns: usize) -> Matrix<'b, F> {
        buffer.range(0..self.own_rows * columns).matrix(self.own_rows, columns)
    }

    pub(crate) fn own_mut<'b, F: Element>(
        &self,
        buffer: &'b mut Buffer<F>,
        columns: usize,
    ) -> MatrixMut<'b, F> {
        buffer.range_mut(0..self.own_rows * columns).matrix(self.own_rows, columns)
    }

    fn has_cut_rows(&self) -> bool {
        self.network.part().has_cut_rows
    }

    /// The rows of all tensor ranks, from the rows that this one has of a matrix of the stream's width.
    fn of_all_ranks<'b>(&self, own: &'b Buffer<E>, gathered: &'b mut Buffer<E>) -> Matrix<'b, E> {
        let hidden = self.hidden();
        let Some(peers) = self.network.peers().filter(|_| self.has_cut_rows()) else {
            return self.matrix(own, hidden);
        };
        let from = own.range(0..self.own_rows * hidden).bytes();
        peers.gather(self.device, from, gathered.range_mut(0..self.rows * hidden).bytes());
        self.matrix(gathered, hidden)
    }

    /// From the residual stream before the layer to the one after it.
    pub(crate) fn forward(&self, room: &mut LayerRoom<'_, E>) {
        let LayerRoom {
            input, output, kept, cheap, partial, gathered, travel, expanded, ring, routing, ..
        } = room;
        self.norm_before_attention(input, kept, cheap);
        self.project(self.of_all_ranks(&cheap.before_attention, &mut gathered.normed), kept, expanded);
        self.attend(kept, ring);
        let attended = self.output_input(&kept.attended, expanded);
        let after = self.parts.after_attention.as_ref();
        let branch = (&mut kept.attention_out, &mut kept.inverse_attention_out);
        self.add_half(&self.parts.output, after, attended, input, partial, branch, &mut kept.middle);
        self.norm_before_mlp(kept, cheap);
        let (normed, mut made) = Made::beside_normed(cheap);
        let normed = self.of_all_ranks(normed, &mut gathered.normed);
        match &self.parts.mlp {
            MlpParts::Dense(dense) => {
                self.dense_inner(dense, normed, &mut kept.gate_up, made.activated);
                let activated = self.matrix(made.activated, dense.width);
                let after = self.parts.after_mlp.as_ref();
                let branch = (&mut kept.mlp_out, &mut kept.inverse_mlp_out);
                self.add_half(&dense.down, after, activated, &kept.middle, partial, branch, output);
            }
            MlpParts::Mixture(mixture) => {
                self.mixture_forward(mixture, normed, kept, &mut made, partial, travel, routing, output);
            }
        }
    }

    /// Makes norms and activations again from what was kept.
    pub(crate) fn recompute_cheap(&self, room: &mut LayerRoom<'_, E>) {
        let LayerRoom { input, kept, cheap, gathered, travel, .. } = room;
        self.norm_before_attention(input, kept, cheap);
        self.norm_before_mlp(kept, cheap);
        let (normed, mut made) = Made::beside_normed(cheap);
        match &self.parts.mlp {
            MlpParts::Dense(dense) => self.activate(dense, &kept.gate_up, made.activated),
            MlpParts::Mixture(mixture) => {
                let normed = self.of_all_ranks(normed, &mut gathered.normed);
                self.mixture_recompute(mixture, normed, kept, &mut made, travel);
            }
        }
    }

    /// Turns the gradient of the layer's output into that of its input, and adds to the gradient of its weights.
    pub(crate) fn backward(&self, room: &mut LayerRoom<'_, E>, mut gradient: BlockGradient<'_>) {
        let LayerRoom {
            input,
            kept,
            cheap,
            gradients,
            inner,
            partial,
            gathered,
            travel,
            expanded,
            routing,
            ..
        } = room;
        let ring = room.ring.as_deref_mut().zip(room.ring_gradients.as_deref_mut());
        let outer = gradients.as_deref_mut().expect(HAS_GRADIENTS);
        let inner = inner.as_deref_mut().expect(HAS_GRADIENTS);
        let StreamGradients { stream, normed: d_normed, branch } = &mut *outer;
        let before_norm = (&kept.mlp_out, &kept.inverse_mlp_out);
        let after = self.parts.after_mlp.as_ref();
        let d_added = self.d_added(after, before_norm, stream, branch, reborrow(&mut gradient));
        let d_output = self.of_all_ranks(d_added, &mut gathered.gradient);
        let normed = self.of_all_ranks(&cheap.before_mlp, &mut gathered.normed);
        let given = Given { normed, d_output, kept, cheap };
        match partial {
            None => self.mlp_backward(given, inner, d_normed, travel, routing, reborrow(&mut gradient)),
            Some(partial) => {
                let sums = &mut partial.sums;
                self.mlp_backward(given, inner, sums, travel, routing, reborrow(&mut gradient));
                self.complete(partial, d_normed);
            }
        }
        let parts = self.parts.before_mlp.as_ref();
        self.norm_backward(parts, &kept.middle, &kept.inverse_mlp, outer, reborrow(&mut gradient));
        let StreamGradients { stream, normed: d_normed, branch } = &mut *outer;
        let before_norm = (&kept.attention_out, &kept.inverse_attention_out);
        let after = self.parts.after_attention.as_ref();
        let d_added = self.d_added(after, before_norm, stream, branch, reborrow(&mut gradient));
        let d_output = self.of_all_ranks(d_added, &mut gathered.gradient);
        self.attended_backward(kept, d_output, (inner, expanded), ring, reborrow(&mut gradient));
        self.head_norms_backward(kept, &mut inner.qkv, partial, reborrow(&mut gradient));
        let normed = self.of_all_ranks(&cheap.before_attention, &mut gathered.normed);
        match partial {
            None => {
                let rooms = (&mut *inner, expanded);
                self.project_backward(normed, kept, rooms, d_normed, reborrow(&mut gradient));
            }
            Some(partial) => {
                let (rooms, sums) = ((&mut *inner, expanded), &mut partial.sums);
                self.project_backward(normed, kept, rooms, sums, reborrow(&mut gradient));
                self.complete(partial, d_normed);
            }
        }
        let parts = self.parts.before_attention.as_ref();
        self.norm_backward(parts, input, &kept.inverse_attention, outer, gradient);
    }

    /// From the gradient of the MLP's output to that of its normed input.
    fn mlp_backward<T: Element>(
        &self,
        given: Given<'_, E>,
        inner: &mut InnerGradients<E>,
        d_normed: &mut Buffer<T>,
        travel: &mut Option<&mut Travel<E>>,
        routing: &ExpertLoad<'_>,
        gradient: BlockGradient<'_>,
    ) {
        match &self.parts.mlp {
            MlpParts::Dense(dense) => {
                let rooms = DenseRooms { activated: &mut inner.activated, gate_up: &mut inner.gate_up };
                let d_normed = self.matrix_mut(d_normed, self.hidden());
                self.dense_backward(
                    dense,
                    given,
                    given.d_output,
                    rooms,
                    Accumulate::Replace,
                    d_normed,
                    gradient,
                );
            }
            MlpParts::Mixture(mixture) => {
                self.mixture_backward(mixture, given, inner, d_normed, travel, routing, gradient);
            }
        }
    }

    fn norm_before_attention(&self, input: &Buffer<E>, kept: &mut Kept<E>, cheap: &mut Cheap<E>) {
        let parts = self.parts.before_attention.as_ref();
        self.norm(parts, input, &mut cheap.before_attention, &mut kept.inverse_attention);
    }

    fn norm_before_mlp(&self, kept: &mut Kept<E>, cheap: &mut Cheap<E>) {
        let parts = self.parts.before_mlp.as_ref();
        self.norm(parts, &kept.middle, &mut cheap.before_mlp, &mut kept.inverse_mlp);
    }

    pub(crate) fn linear(&self, parts: &LinearParts, input: Matrix<'_, E>, output: MatrixMut<'_, E>) {
        let bias = parts.bias.clone().map(|bias| self.weights.range(bias));
        self.multiply(parts, input, bias, None, output);
    }

    /// `output = input W^T + bias + residual`, in the network's format of products.
    fn multiply<T: Element>(
        &self,
        parts: &LinearParts,
        input: Matrix<'_, E>,
        bias: Option<View<'_, E>>,
        residual: Option<Matrix<'_, T>>,
        output: MatrixMut<'_, T>,
    ) {
        let weight = self.weights.range(parts.weight.clone());
        match self.network.products() {
            Products::Stored => self.device.linear(input, weight, bias, residual, output),
            Products::Fp8 => self.device.linear_fp8(input, weight, bias, residual, output),
        }
    }

    /// The gradient of a linear layer's input, from that of its output.
    pub(crate) fn input_gradient<T: Element>(
        &self,
        parts: &LinearParts,
        d_output: Matrix<'_, E>,
        mode: Accumulate,
        d_input: MatrixMut<'_, T>,
    ) {
        let weight = self.weights.range(parts.weight.clone());
        match self.network.products() {
            Products::Stored => self.device.linear_backward_input(d_output, weight, mode, d_input),
            Products::Fp8 => self.device.linear_fp8_backward_input(d_output, weight, mode, d_input),
        }
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
        let bias = parts.bias.clone().map(|bias| self.weights.range(bias));
        match partial {
            None => {
                let residual = Some(self.matrix(residual, hidden));
                self.multiply(parts, input, bias, residual, self.matrix_mut(output, hidden));
            }
            Some(partial) => {
                self.multiply(parts, input, None, None, self.matrix_mut(&mut partial.sums, hidden));
                self.add_sums(partial, bias, residual, output);
            }
        }
    }

    /// The same with a norm of the product before the residual, where there is one behind this half of the layer.
    #[expect(clippy::too_many_arguments, reason = "what goes in, what comes out, and where")]
    fn add_half(
        &self,
        parts: &LinearParts,
        after: Option<&NormParts>,
        input: Matrix<'_, E>,
        residual: &Buffer<E>,
        partial: &mut Option<&mut Partial<E>>,
        (branch, statistics): (&mut Buffer<E>, &mut Buffer<f32>),
        output: &mut Buffer<E>,
    ) {
        if after.is_none() {
            return self.add_product(parts, input, residual, partial, output);
        }
        let (hidden, numbers) = (self.hidden(), 0..self.own_rows * self.hidden());
        let bias = parts.bias.clone().map(|bias| self.weights.range(bias));
        match partial {
            None => self.multiply(parts, input, bias, None, self.matrix_mut(branch, hidden)),
            Some(partial) => {
                self.multiply(parts, input, None, None, self.matrix_mut(&mut partial.sums, hidden));
                self.device.fill(output.range_mut(numbers.clone()), 0.0);
                self.add_sums(partial, bias, output, branch);
            }
        }
        self.norm(after, branch, output, statistics);
        self.device.add(residual.range(numbers.clone()), output.range_mut(numbers));
    }

    /// The gradient of what a half of the layer adds: that of the stream, or what the norm behind the half makes of it.
    fn d_added<'b>(
        &self,
        after: Option<&NormParts>,
        before_norm: (&Buffer<E>, &Buffer<f32>),
        stream: &'b Buffer<E>,
        branch: &'b mut Buffer<E>,
        gradient: BlockGradient<'_>,
    ) -> &'b Buffer<E> {
        let Some(after) = after else { return stream };
        self.branch_backward(after, before_norm, stream, branch, gradient);
        branch
    }

    /// Adds up the ranks' partial sums, and then bias and residual.
    pub(crate) fn add_sums(
        &self,
        partial: &mut Partial<E>,
        bias: Option<View<'_, E>>,
        residual: &Buffer<E>,
        output: &mut Buffer<E>,
    ) {
        let hidden = self.hidden();
        let sums = self.sum_over_ranks(partial);
        let (residual, output) = (self.own(residual, hidden), self.own_mut(output, hidden));
        self.device.add_sums(sums, bias, residual, output);
    }

    /// Adds up the ranks' partial gradients of a normed input.
    fn complete(&self, partial: &mut Partial<E>, d_normed: &mut Buffer<E>) {
        self.sum_over_ranks(partial);
        let numbers = 0..self.own_rows * self.hidden();
        let sums = if self.has_cut_rows() { &partial.own_sums } else { &partial.sums };
        self.device.convert(sums.range(numbers.clone()), d_normed.range_mut(numbers));
    }

    /// Adds up what the tensor ranks have, of the rows that this one has of the stream.
    fn sum_over_ranks<'b>(&self, partial: &'b mut Partial<E>) -> Matrix<'b, f32> {
        let hidden = self.hidden();
        let Partial { sums, own_sums, .. } = partial;
        let Some(peers) = self.network.peers().filter(|_| self.has_cut_rows()) else {
            self.network.sum_over_ranks(self.device, sums.range_mut(0..self.rows * hidden));
            return self.own(sums, hidden);
        };
        let from = sums.range(0..self.rows * hidden);
        peers.scatter_sums(self.device, from, own_sums.range_mut(0..self.own_rows * hidden));
        self.own(own_sums, hidden)
    }

    /// The gradient of a linear layer's weights, from that of its output.
    pub(crate) fn linear_gradient<D: Element>(
        &self,
        parts: &LinearParts,
        d_output: Matrix<'_, D>,
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
}
