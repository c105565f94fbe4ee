//! The mixture of experts of a layer: router, routed experts, and the shared expert where there is one.
//!
//! Where layers are cut over ranks, experts are cut like an MLP. Router and shared gate are whole on every rank, so what they add to
//! a sum over ranks is added by the first rank alone.

use bedplate_kernels::{Accumulate, Balance, Buffer, Element, Matrix};

use crate::Among;
use crate::dense::DenseRooms;
use crate::layer::{BlockGradient, Given, LayerRun, Made, reborrow};
use crate::table::{LinearParts, MixtureParts};
use crate::workspace::{ExpertLoad, InnerGradients, Kept, Partial, Travel};

impl<E: Element> LayerRun<'_, E> {
    /// `output = middle + experts(normed) + shared(normed)`.
    #[expect(clippy::too_many_arguments, reason = "what goes in, what comes out, and where")]
    pub(crate) fn mixture_forward(
        &self,
        parts: &MixtureParts,
        normed: Matrix<'_, E>,
        kept: &mut Kept<E>,
        made: &mut Made<'_, E>,
        partial: &mut Option<&mut Partial<E>>,
        travel: &mut Option<&mut Travel<E>>,
        routing: &mut ExpertLoad<'_>,
        output: &mut Buffer<E>,
    ) {
        self.choose(parts, normed, kept, routing);
        if let Some(travel) = travel {
            self.announce(parts, kept, travel);
        }
        self.gather(parts, normed, kept, made, travel);
        self.experts_forward(parts, kept, made, travel);
        match partial {
            None => {
                let numbers = 0..self.rows * self.hidden();
                self.device.copy(kept.middle.range(numbers.clone()), output.range_mut(numbers));
                self.combine(parts, normed, kept, made, Accumulate::Add, output);
            }
            Some(partial) => {
                self.combine(parts, normed, kept, made, Accumulate::Replace, &mut partial.sums);
                self.add_sums(partial, None, &kept.middle, output);
            }
        }
    }

    /// What the chosen experts and the shared expert give, or that much more.
    fn combine<T: Element>(
        &self,
        parts: &MixtureParts,
        normed: Matrix<'_, E>,
        kept: &mut Kept<E>,
        made: &mut Made<'_, E>,
        mode: Accumulate,
        output: &mut Buffer<T>,
    ) {
        let (hidden, slots) = (self.hidden(), self.rows * parts.per_token);
        self.device.combine(
            slotted(&kept.expert_outputs, slots, hidden),
            kept.slots.range(0..slots),
            kept.choice_weights.range(0..slots),
            parts.per_token,
            mode,
            self.matrix_mut(output, hidden),
        );
        self.shared_forward(parts, normed, kept, made, output);
    }

    pub(crate) fn mixture_recompute(
        &self,
        parts: &MixtureParts,
        normed: Matrix<'_, E>,
        kept: &Kept<E>,
        made: &mut Made<'_, E>,
        travel: &mut Option<&mut Travel<E>>,
    ) {
        self.gather(parts, normed, kept, made, travel);
        self.activate_experts(parts, kept, made);
        if let Some(shared) = &parts.shared {
            self.activate(shared, &kept.gate_up, made.activated);
        }
    }

    /// Which experts each token visits, and the order by expert.
    fn choose(
        &self,
        parts: &MixtureParts,
        normed: Matrix<'_, E>,
        kept: &mut Kept<E>,
        routing: &mut ExpertLoad<'_>,
    ) {
        let (rows, experts) = (self.rows, parts.experts);
        let choices = rows * parts.per_token;
        let router = self.weights.range(parts.router.weight.clone());
        let bias = parts.router.bias.clone().map(|bias| self.weights.range(bias));
        self.device.linear(normed, router, bias, None, self.matrix_mut(&mut kept.router_logits, experts));
        self.device.route_by(
            &self.network.architecture().numerics.routing,
            self.matrix(&kept.router_logits, experts),
            parts.correction.clone().map(|correction| self.weights.range(correction)),
            parts.per_token,
            self.matrix_mut(&mut kept.probabilities, experts),
            kept.experts.range_mut(0..choices),
            kept.choice_weights.range_mut(0..choices),
        );
        let row = self.layer * experts..(self.layer + 1) * experts;
        let mut shares = routing.shares.range_mut(row);
        self.device.expert_shares(
            kept.experts.range(0..choices),
            parts.per_token,
            routing.counted,
            routing.tokens,
            shares.reborrow(),
        );
        if let Some(peers) = self.network.peers().filter(|_| !self.network.part().context.is_whole()) {
            peers.sum(self.device, Among::Context, shares);
        }
        self.device.dispatch(
            kept.experts.range(0..choices),
            experts,
            kept.order.range_mut(0..choices),
            kept.slots.range_mut(0..choices),
            kept.offsets.range_mut(0..experts + 1),
        );
    }

    /// Adds what the shared expert gives.
    fn shared_forward<T: Element>(
        &self,
        parts: &MixtureParts,
        normed: Matrix<'_, E>,
        kept: &mut Kept<E>,
        made: &mut Made<'_, E>,
        output: &mut Buffer<T>,
    ) {
        let Some(shared) = &parts.shared else { return };
        let hidden = self.hidden();
        self.dense_inner(shared, normed, &mut kept.gate_up, made.activated);
        let activated = self.matrix(made.activated, shared.width);
        self.linear(&shared.down, activated, self.matrix_mut(&mut kept.shared_outputs, hidden));
        let Some(gate) = &parts.shared_gate else {
            let len = self.rows * hidden;
            return self.device.add(kept.shared_outputs.range(0..len), output.range_mut(0..len));
        };
        let gate = self.weights.range(gate.clone());
        self.device.linear(normed, gate, None, None, self.matrix_mut(&mut kept.shared_logits, 1));
        self.device.gate_rows(
            self.matrix(&kept.shared_outputs, hidden),
            kept.shared_logits.range(0..self.rows),
            Accumulate::Add,
            self.matrix_mut(output, hidden),
        );
    }

    /// From the gradient of the layer's output to that of the normed input, of which a rank may have a share.
    #[expect(clippy::too_many_arguments, reason = "what goes in, what comes out, and where")]
    pub(crate) fn mixture_backward<T: Element>(
        &self,
        parts: &MixtureParts,
        given: Given<'_, E>,
        inner: &mut InnerGradients<E>,
        d_normed: &mut Buffer<T>,
        travel: &mut Option<&mut Travel<E>>,
        routing: &ExpertLoad<'_>,
        mut gradient: BlockGradient<'_>,
    ) {
        let slots = self.rows * parts.per_token;
        self.combine_backward(parts, given, inner);
        self.experts_backward(parts, given, inner, travel, reborrow(&mut gradient));
        self.gather_backward(parts, given.kept, inner, travel, d_normed);
        self.network.sum_over_ranks(self.device, inner.choice_weights.range_mut(0..slots));
        self.router_backward(parts, given, inner, d_normed, routing, reborrow(&mut gradient));
        self.shared_backward(parts, given, inner, d_normed, gradient);
    }

    /// From the gradient of the output to those of what experts gave and of the weights of choices.
    fn combine_backward(&self, parts: &MixtureParts, given: Given<'_, E>, inner: &mut InnerGradients<E>) {
        let (hidden, slots, kept) = (self.hidden(), self.rows * parts.per_token, given.kept);
        self.device.combine_backward(
            given.d_output,
            slotted(&kept.expert_outputs, slots, hidden),
            kept.slots.range(0..slots),
            kept.choice_weights.range(0..slots),
            parts.per_token,
            inner.expert_outputs.range_mut(0..slots * hidden).matrix(slots, hidden),
            inner.choice_weights.range_mut(0..slots),
        );
    }

    fn router_backward<T: Element>(
        &self,
        parts: &MixtureParts,
        given: Given<'_, E>,
        inner: &mut InnerGradients<E>,
        d_normed: &mut Buffer<T>,
        routing: &ExpertLoad<'_>,
        gradient: BlockGradient<'_>,
    ) {
        let (choices, kept) = (self.rows * parts.per_token, given.kept);
        let numerics = &self.network.architecture().numerics;
        let coefficient = self.balance * numerics.balance_coefficient;
        let balance = Balance {
            coefficient,
            shares: routing.shares.view().matrix(self.network.layer_count(), parts.experts),
            layers: self.network.sparse_layers(),
            counted: routing.counted,
            tokens: routing.tokens,
        };
        self.device.route_by_backward(
            &numerics.routing,
            self.matrix(&kept.probabilities, parts.experts),
            kept.experts.range(0..choices),
            kept.choice_weights.range(0..choices),
            parts.per_token,
            inner.choice_weights.range(0..choices),
            (coefficient > 0.0).then_some(balance),
            self.matrix_mut(&mut inner.router_logits, parts.experts),
        );
        let d_logits = self.matrix(&inner.router_logits, parts.experts);
        self.whole_backward(&parts.router, d_logits, given.normed, d_normed, gradient);
    }

    /// The way back through a product that every rank has as a whole.
    fn whole_backward<T: Element>(
        &self,
        parts: &LinearParts,
        d_logits: Matrix<'_, f32>,
        input: Matrix<'_, E>,
        d_normed: &mut Buffer<T>,
        gradient: BlockGradient<'_>,
    ) {
        let hidden = self.hidden();
        self.linear_gradient(parts, d_logits, input, gradient);
        if self.network.part().tensor.rank == 0 {
            let weight = self.weights.range(parts.weight.clone());
            self.device.linear_backward_input(
                d_logits,
                weight,
                Accumulate::Add,
                self.matrix_mut(d_normed, hidden),
            );
        }
    }

    fn shared_backward<T: Element>(
        &self,
        parts: &MixtureParts,
        given: Given<'_, E>,
        inner: &mut InnerGradients<E>,
        d_normed: &mut Buffer<T>,
        mut gradient: BlockGradient<'_>,
    ) {
        let Some(shared) = &parts.shared else { return };
        let hidden = self.hidden();
        let InnerGradients { activated, gate_up, shared_outputs, shared_logits, .. } = inner;
        let d_outputs = match &parts.shared_gate {
            None => given.d_output,
            Some(gate) => {
                self.device.gate_rows_backward(
                    given.d_output,
                    self.matrix(&given.kept.shared_outputs, hidden),
                    given.kept.shared_logits.range(0..self.rows),
                    self.matrix_mut(shared_outputs, hidden),
                    shared_logits.range_mut(0..self.rows),
                );
                self.network.sum_over_ranks(self.device, shared_logits.range_mut(0..self.rows));
                let d_logits = self.matrix(shared_logits, 1);
                let gate = LinearParts { weight: gate.clone(), bias: None };
                self.whole_backward(&gate, d_logits, given.normed, d_normed, reborrow(&mut gradient));
                self.matrix(shared_outputs, hidden)
            }
        };
        let rooms = DenseRooms { activated, gate_up };
        let d_normed = self.matrix_mut(d_normed, hidden);
        self.dense_backward(shared, given, d_outputs, rooms, Accumulate::Add, d_normed, gradient);
    }
}

/// A buffer with one row per choice of an expert.
pub(crate) fn slotted<E: Element>(buffer: &Buffer<E>, slots: usize, columns: usize) -> Matrix<'_, E> {
    buffer.range(0..slots * columns).matrix(slots, columns)
}
