//! The mixture of experts of a layer: router, experts, and the shared expert where there is one.
//!
//! Where layers are cut over ranks, experts are cut like an MLP. Router and shared gate are whole on every rank, so what they add to
//! a sum over ranks is added by the first rank alone.

use bedplate_kernels::{Balance, Buffer, Element, Matrix, Put};

use crate::layer::{BlockGradient, DenseRooms, LayerRun, reborrow};
use crate::table::MixtureParts;
use crate::workspace::{Cheap, InnerGradients, Kept, Partial, Routing};

impl<E: Element> LayerRun<'_, E> {
    /// `output = middle + experts(normed) + shared(normed)`.
    pub(crate) fn mixture_forward(
        &self,
        parts: &MixtureParts,
        kept: &mut Kept<E>,
        cheap: &mut Cheap<E>,
        partial: &mut Option<&mut Partial<E>>,
        routing: &mut Routing<'_>,
        output: &mut Buffer<E>,
    ) {
        self.choose(parts, cheap, kept, routing);
        self.gather(parts, kept, cheap);
        let (rows, hidden, slots) = (self.rows, self.hidden(), self.rows * parts.per_token);
        self.device.expert_linear(
            slotted(&cheap.gathered, slots, hidden),
            kept.offsets.range(0..parts.here + 1),
            self.weights.range(parts.gate_up.clone()),
            kept.expert_gate_up.range_mut(0..slots * 2 * parts.width).matrix(slots, 2 * parts.width),
        );
        self.activate_experts(parts, kept, cheap);
        self.device.expert_linear(
            slotted(&cheap.expert_activated, slots, parts.width),
            kept.offsets.range(0..parts.here + 1),
            self.weights.range(parts.down.clone()),
            kept.expert_outputs.range_mut(0..slots * hidden).matrix(slots, hidden),
        );
        match partial {
            None => {
                self.device.copy(kept.middle.range(0..rows * hidden), output.range_mut(0..rows * hidden));
                self.combine(parts, kept, cheap, Put::Add, output);
            }
            Some(Partial { sums, .. }) => {
                self.combine(parts, kept, cheap, Put::Replace, sums);
                self.add_sums(sums, None, &kept.middle, output);
            }
        }
    }

    /// What the chosen experts and the shared expert give, or that much more.
    fn combine<T: Element>(
        &self,
        parts: &MixtureParts,
        kept: &mut Kept<E>,
        cheap: &mut Cheap<E>,
        put: Put,
        output: &mut Buffer<T>,
    ) {
        let (hidden, slots) = (self.hidden(), self.rows * parts.per_token);
        self.device.combine(
            slotted(&kept.expert_outputs, slots, hidden),
            kept.slots.range(0..slots),
            kept.choice_weights.range(0..slots),
            parts.per_token,
            put,
            self.matrix_mut(output, hidden),
        );
        self.shared_forward(parts, kept, cheap, output);
    }

    pub(crate) fn mixture_recompute(&self, parts: &MixtureParts, kept: &Kept<E>, cheap: &mut Cheap<E>) {
        self.gather(parts, kept, cheap);
        self.activate_experts(parts, kept, cheap);
        if let Some(shared) = &parts.shared {
            self.activate(shared, &kept.gate_up, &mut cheap.activated);
        }
    }

    /// Which experts each token visits, and the order by expert.
    fn choose(&self, parts: &MixtureParts, cheap: &Cheap<E>, kept: &mut Kept<E>, routing: &mut Routing<'_>) {
        let (rows, experts) = (self.rows, parts.experts);
        let choices = rows * parts.per_token;
        let normed = self.matrix(&cheap.before_mlp, self.hidden());
        let router = self.weights.range(parts.router.clone());
        self.device.linear(normed, router, None, None, self.matrix_mut(&mut kept.router_logits, experts));
        self.device.route(
            self.matrix(&kept.router_logits, experts),
            parts.per_token,
            self.network.architecture().numerics.normalises_experts,
            self.matrix_mut(&mut kept.probabilities, experts),
            kept.experts.range_mut(0..choices),
            kept.choice_weights.range_mut(0..choices),
        );
        let row = self.layer * experts..(self.layer + 1) * experts;
        let shares = routing.shares.range_mut(row);
        self.device.expert_shares(kept.experts.range(0..choices), parts.per_token, routing.counted, shares);
        self.device.dispatch(
            kept.experts.range(0..choices),
            experts,
            kept.order.range_mut(0..choices),
            kept.slots.range_mut(0..choices),
            kept.offsets.range_mut(0..experts + 1),
        );
    }

    fn gather(&self, parts: &MixtureParts, kept: &Kept<E>, cheap: &mut Cheap<E>) {
        let (slots, hidden) = (self.rows * parts.per_token, self.hidden());
        let gathered = cheap.gathered.range_mut(0..slots * hidden).matrix(slots, hidden);
        let order = kept.order.range(0..slots);
        self.device.gather_rows(self.matrix(&cheap.before_mlp, hidden), order, parts.per_token, gathered);
    }

    fn activate_experts(&self, parts: &MixtureParts, kept: &Kept<E>, cheap: &mut Cheap<E>) {
        let slots = self.rows * parts.per_token;
        let gate_up = slotted(&kept.expert_gate_up, slots, 2 * parts.width);
        let activated = cheap.expert_activated.range_mut(0..slots * parts.width).matrix(slots, parts.width);
        self.device.swiglu(gate_up, activated);
    }

    /// Adds what the shared expert gives.
    fn shared_forward<T: Element>(
        &self,
        parts: &MixtureParts,
        kept: &mut Kept<E>,
        cheap: &mut Cheap<E>,
        output: &mut Buffer<T>,
    ) {
        let Some(shared) = &parts.shared else { return };
        let hidden = self.hidden();
        self.dense_inner(shared, kept, cheap);
        let activated = self.matrix(&cheap.activated, shared.width);
        self.linear(&shared.down, activated, self.matrix_mut(&mut kept.shared_outputs, hidden));
        let Some(gate) = &parts.shared_gate else {
            let len = self.rows * hidden;
            return self.device.add(kept.shared_outputs.range(0..len), output.range_mut(0..len));
        };
        let normed = self.matrix(&cheap.before_mlp, hidden);
        let gate = self.weights.range(gate.clone());
        self.device.linear(normed, gate, None, None, self.matrix_mut(&mut kept.shared_logits, 1));
        self.device.gate_rows(
            self.matrix(&kept.shared_outputs, hidden),
            kept.shared_logits.range(0..self.rows),
            Put::Add,
            self.matrix_mut(output, hidden),
        );
    }

    /// From the gradient of the layer's output to that of the normed input, of which a rank may have a share.
    #[expect(clippy::too_many_arguments, reason = "what goes in, what comes out, and where")]
    pub(crate) fn mixture_backward<T: Element>(
        &self,
        parts: &MixtureParts,
        kept: &Kept<E>,
        cheap: &Cheap<E>,
        d_output: &Buffer<E>,
        inner: &mut InnerGradients<E>,
        d_normed: &mut Buffer<T>,
        routing: &Routing<'_>,
        mut gradient: BlockGradient<'_>,
    ) {
        let (hidden, slots) = (self.hidden(), self.rows * parts.per_token);
        self.experts_backward(parts, kept, cheap, d_output, inner, reborrow(&mut gradient));
        self.device.gather_rows_backward(
            slotted(&inner.gathered, slots, hidden),
            kept.slots.range(0..slots),
            parts.per_token,
            Put::Replace,
            self.matrix_mut(d_normed, hidden),
        );
        self.network.sum_over_ranks(self.device, inner.choice_weights.range_mut(0..slots));
        self.router_backward(parts, kept, cheap, inner, d_normed, routing, reborrow(&mut gradient));
        self.shared_backward(parts, kept, cheap, d_output, inner, d_normed, gradient);
    }

    /// From the gradient of the output back through the experts to the gathered tokens and the weights of the choices.
    fn experts_backward(
        &self,
        parts: &MixtureParts,
        kept: &Kept<E>,
        cheap: &Cheap<E>,
        d_output: &Buffer<E>,
        inner: &mut InnerGradients<E>,
        mut gradient: BlockGradient<'_>,
    ) {
        let (hidden, width, slots) = (self.hidden(), parts.width, self.rows * parts.per_token);
        let offsets = kept.offsets.range(0..parts.here + 1);
        self.device.combine_backward(
            self.matrix(d_output, hidden),
            slotted(&kept.expert_outputs, slots, hidden),
            kept.slots.range(0..slots),
            kept.choice_weights.range(0..slots),
            parts.per_token,
            inner.expert_outputs.range_mut(0..slots * hidden).matrix(slots, hidden),
            inner.choice_weights.range_mut(0..slots),
        );
        let d_outputs = slotted(&inner.expert_outputs, slots, hidden);
        let activated = slotted(&cheap.expert_activated, slots, width);
        if let Some(gradient) = reborrow(&mut gradient) {
            let d_down = gradient.range(parts.down.clone());
            self.device.expert_linear_backward_weight(d_outputs, activated, offsets, d_down);
        }
        let down = self.weights.range(parts.down.clone());
        let d_activated = inner.expert_activated.range_mut(0..slots * width).matrix(slots, width);
        self.device.expert_linear_backward_input(d_outputs, offsets, down, d_activated);
        self.device.swiglu_backward(
            slotted(&kept.expert_gate_up, slots, 2 * width),
            slotted(&inner.expert_activated, slots, width),
            inner.expert_gate_up.range_mut(0..slots * 2 * width).matrix(slots, 2 * width),
        );
        let d_gate_up = slotted(&inner.expert_gate_up, slots, 2 * width);
        if let Some(gradient) = gradient {
            let gathered = slotted(&cheap.gathered, slots, hidden);
            let d_weights = gradient.range(parts.gate_up.clone());
            self.device.expert_linear_backward_weight(d_gate_up, gathered, offsets, d_weights);
        }
        let gate_up = self.weights.range(parts.gate_up.clone());
        let d_gathered = inner.gathered.range_mut(0..slots * hidden).matrix(slots, hidden);
        self.device.expert_linear_backward_input(d_gate_up, offsets, gate_up, d_gathered);
    }

    #[expect(clippy::too_many_arguments, reason = "what goes in, what comes out, and where")]
    fn router_backward<T: Element>(
        &self,
        parts: &MixtureParts,
        kept: &Kept<E>,
        cheap: &Cheap<E>,
        inner: &mut InnerGradients<E>,
        d_normed: &mut Buffer<T>,
        routing: &Routing<'_>,
        gradient: BlockGradient<'_>,
    ) {
        let choices = self.rows * parts.per_token;
        let numerics = &self.network.architecture().numerics;
        let coefficient = self.balance * numerics.balance_coefficient;
        let balance = Balance {
            coefficient,
            shares: routing.shares.view().matrix(self.network.layer_count(), parts.experts),
            layers: self.network.sparse_layers(),
            counted: routing.counted,
        };
        self.device.route_backward(
            self.matrix(&kept.probabilities, parts.experts),
            kept.experts.range(0..choices),
            kept.choice_weights.range(0..choices),
            parts.per_token,
            numerics.normalises_experts,
            inner.choice_weights.range(0..choices),
            (coefficient > 0.0).then_some(balance),
            self.matrix_mut(&mut inner.router_logits, parts.experts),
        );
        let d_logits = self.matrix(&inner.router_logits, parts.experts);
        self.whole_backward(&parts.router, d_logits, cheap, d_normed, gradient);
    }

    /// The way back through a product that every rank has as a whole.
    fn whole_backward<T: Element>(
        &self,
        weight: &std::ops::Range<usize>,
        d_logits: Matrix<'_, f32>,
        cheap: &Cheap<E>,
        d_normed: &mut Buffer<T>,
        gradient: BlockGradient<'_>,
    ) {
        let hidden = self.hidden();
        if let Some(gradient) = gradient {
            let input = self.matrix(&cheap.before_mlp, hidden);
            let d_weight = gradient.range(weight.clone());
            self.device.linear_backward_weight(d_logits, input, d_weight, None);
        }
        if self.network.part().tensor.rank == 0 {
            let weight = self.weights.range(weight.clone());
            self.device.linear_backward_input(d_logits, weight, Put::Add, self.matrix_mut(d_normed, hidden));
        }
    }

    #[expect(clippy::too_many_arguments, reason = "what goes in, what comes out, and where")]
    fn shared_backward<T: Element>(
        &self,
        parts: &MixtureParts,
        kept: &Kept<E>,
        cheap: &Cheap<E>,
        d_output: &Buffer<E>,
        inner: &mut InnerGradients<E>,
        d_normed: &mut Buffer<T>,
        mut gradient: BlockGradient<'_>,
    ) {
        let Some(shared) = &parts.shared else { return };
        let hidden = self.hidden();
        let InnerGradients { activated, gate_up, shared_outputs, shared_logits, .. } = inner;
        let d_outputs = match &parts.shared_gate {
            None => self.matrix(d_output, hidden),
            Some(gate) => {
                self.device.gate_rows_backward(
                    self.matrix(d_output, hidden),
                    self.matrix(&kept.shared_outputs, hidden),
                    kept.shared_logits.range(0..self.rows),
                    self.matrix_mut(shared_outputs, hidden),
                    shared_logits.range_mut(0..self.rows),
                );
                self.network.sum_over_ranks(self.device, shared_logits.range_mut(0..self.rows));
                let d_logits = self.matrix(shared_logits, 1);
                self.whole_backward(gate, d_logits, cheap, d_normed, reborrow(&mut gradient));
                self.matrix(shared_outputs, hidden)
            }
        };
        let rooms = DenseRooms { activated, gate_up };
        let d_normed = self.matrix_mut(d_normed, hidden);
        self.dense_backward(shared, d_outputs, kept, cheap, rooms, Put::Add, d_normed, gradient);
    }
}

/// A buffer with one row per choice of an expert.
fn slotted<E: Element>(buffer: &Buffer<E>, slots: usize, columns: usize) -> Matrix<'_, E> {
    buffer.range(0..slots * columns).matrix(slots, columns)
}
