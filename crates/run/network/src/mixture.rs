//! The mixture of experts of a layer: router, experts, and the shared expert where there is one.

use bedplate_kernels::{Balance, Buffer, Element, Into, Matrix};

use crate::layer::{BlockGradient, DenseRooms, LayerRun, reborrow};
use crate::table::MixtureParts;
use crate::workspace::{Cheap, GradientRoom, Kept, KeptMixture, MixtureGradients};

const HAS_ROOM: &str = "a workspace has room for the mixtures of its network";

impl<E: Element> LayerRun<'_, E> {
    /// `output = middle + experts(normed) + shared(normed)`.
    pub(crate) fn mixture_forward(
        &self,
        parts: &MixtureParts,
        kept: &mut Kept<E>,
        cheap: &mut Cheap<E>,
        output: &mut Buffer<E>,
    ) {
        let (rows, hidden) = (self.rows, self.hidden());
        self.device.copy(kept.middle.range(0..rows * hidden), output.range_mut(0..rows * hidden));
        let room = kept.mixture.as_mut().expect(HAS_ROOM);
        self.choose(parts, cheap, room);
        self.gather(parts, room, cheap);
        let slots = rows * parts.per_token;
        self.device.expert_linear(
            slotted(&cheap.gathered, slots, hidden),
            room.offsets.range(0..parts.experts + 1),
            self.weights.range(parts.gate_up.clone()),
            room.gate_up.range_mut(0..slots * 2 * parts.width).matrix(slots, 2 * parts.width),
        );
        self.activate_experts(parts, room, cheap);
        self.device.expert_linear(
            slotted(&cheap.expert_activated, slots, parts.width),
            room.offsets.range(0..parts.experts + 1),
            self.weights.range(parts.down.clone()),
            room.outputs.range_mut(0..slots * hidden).matrix(slots, hidden),
        );
        self.device.combine(
            slotted(&room.outputs, slots, hidden),
            room.slots.range(0..slots),
            room.weights.range(0..slots),
            parts.per_token,
            Into::Add,
            self.matrix_mut(output, hidden),
        );
        self.shared_forward(parts, kept, cheap, output);
    }

    pub(crate) fn mixture_recompute(&self, parts: &MixtureParts, kept: &Kept<E>, cheap: &mut Cheap<E>) {
        let room = kept.mixture.as_ref().expect(HAS_ROOM);
        self.gather(parts, room, cheap);
        self.activate_experts(parts, room, cheap);
        if let Some(shared) = &parts.shared {
            self.activate(shared, &kept.gate_up, &mut cheap.activated);
        }
    }

    /// Which experts each token visits, and the order by expert.
    fn choose(&self, parts: &MixtureParts, cheap: &Cheap<E>, room: &mut KeptMixture<E>) {
        let (rows, experts) = (self.rows, parts.experts);
        let choices = rows * parts.per_token;
        let normed = self.matrix(&cheap.before_mlp, self.hidden());
        let router = self.weights.range(parts.router.clone());
        self.device.linear(normed, router, None, None, self.matrix_mut(&mut room.logits, experts));
        self.device.route(
            self.matrix(&room.logits, experts),
            parts.per_token,
            self.architecture.numerics.normalises_experts,
            self.matrix_mut(&mut room.probabilities, experts),
            room.experts.range_mut(0..choices),
            room.weights.range_mut(0..choices),
        );
        self.device.dispatch(
            room.experts.range(0..choices),
            experts,
            room.order.range_mut(0..choices),
            room.slots.range_mut(0..choices),
            room.offsets.range_mut(0..experts + 1),
        );
    }

    fn gather(&self, parts: &MixtureParts, room: &KeptMixture<E>, cheap: &mut Cheap<E>) {
        let (slots, hidden) = (self.rows * parts.per_token, self.hidden());
        let Cheap { before_mlp, gathered, .. } = cheap;
        let gathered = gathered.range_mut(0..slots * hidden).matrix(slots, hidden);
        let order = room.order.range(0..slots);
        self.device.gather_rows(self.matrix(before_mlp, hidden), order, parts.per_token, gathered);
    }

    fn activate_experts(&self, parts: &MixtureParts, room: &KeptMixture<E>, cheap: &mut Cheap<E>) {
        let slots = self.rows * parts.per_token;
        let gate_up = slotted(&room.gate_up, slots, 2 * parts.width);
        let activated = cheap.expert_activated.range_mut(0..slots * parts.width).matrix(slots, parts.width);
        self.device.swiglu(gate_up, activated);
    }

    fn shared_forward(
        &self,
        parts: &MixtureParts,
        kept: &mut Kept<E>,
        cheap: &mut Cheap<E>,
        output: &mut Buffer<E>,
    ) {
        let Some(shared) = &parts.shared else { return };
        let hidden = self.hidden();
        self.dense_inner(shared, kept, cheap);
        let room = kept.mixture.as_mut().expect(HAS_ROOM);
        let activated = self.matrix(&cheap.activated, shared.width);
        self.linear(&shared.down, activated, None, self.matrix_mut(&mut room.shared_outputs, hidden));
        let Some(gate) = &parts.shared_gate else {
            let len = self.rows * hidden;
            return self.device.add(room.shared_outputs.range(0..len), output.range_mut(0..len));
        };
        let normed = self.matrix(&cheap.before_mlp, hidden);
        let gate = self.weights.range(gate.clone());
        self.device.linear(normed, gate, None, None, self.matrix_mut(&mut room.shared_logits, 1));
        self.device.gate_rows(
            self.matrix(&room.shared_outputs, hidden),
            room.shared_logits.range(0..self.rows),
            Into::Add,
            self.matrix_mut(output, hidden),
        );
    }

    /// From the gradient of the layer's output, in `room.stream`, to that of the normed input, in `room.normed`.
    pub(crate) fn mixture_backward(
        &self,
        parts: &MixtureParts,
        kept: &Kept<E>,
        cheap: &Cheap<E>,
        room: &mut GradientRoom<E>,
        mut gradient: BlockGradient<'_>,
    ) {
        let (hidden, slots) = (self.hidden(), self.rows * parts.per_token);
        self.experts_backward(parts, kept, cheap, room, reborrow(&mut gradient));
        let forward = kept.mixture.as_ref().expect(HAS_ROOM);
        let GradientRoom { normed, mixture, .. } = room;
        let inner = mixture.as_mut().expect(HAS_ROOM);
        self.device.gather_rows_backward(
            slotted(&inner.gathered, slots, hidden),
            forward.slots.range(0..slots),
            parts.per_token,
            Into::Replace,
            self.matrix_mut(normed, hidden),
        );
        self.router_backward(parts, forward, cheap, inner, normed, reborrow(&mut gradient));
        self.shared_backward(parts, kept, cheap, room, gradient);
    }

    /// From `room.stream` back through the experts to the gathered tokens and the weights of the choices.
    fn experts_backward(
        &self,
        parts: &MixtureParts,
        kept: &Kept<E>,
        cheap: &Cheap<E>,
        room: &mut GradientRoom<E>,
        mut gradient: BlockGradient<'_>,
    ) {
        let (hidden, width, slots) = (self.hidden(), parts.width, self.rows * parts.per_token);
        let forward = kept.mixture.as_ref().expect(HAS_ROOM);
        let inner = room.mixture.as_mut().expect(HAS_ROOM);
        let offsets = forward.offsets.range(0..parts.experts + 1);
        self.device.combine_backward(
            self.matrix(&room.stream, hidden),
            slotted(&forward.outputs, slots, hidden),
            forward.slots.range(0..slots),
            forward.weights.range(0..slots),
            parts.per_token,
            inner.outputs.range_mut(0..slots * hidden).matrix(slots, hidden),
            inner.weights.range_mut(0..slots),
        );
        let d_outputs = slotted(&inner.outputs, slots, hidden);
        let activated = slotted(&cheap.expert_activated, slots, width);
        if let Some(gradient) = reborrow(&mut gradient) {
            let d_down = gradient.into_range(parts.down.clone());
            self.device.expert_linear_backward_weight(d_outputs, activated, offsets, d_down);
        }
        let down = self.weights.range(parts.down.clone());
        let d_activated = inner.activated.range_mut(0..slots * width).matrix(slots, width);
        self.device.expert_linear_backward_input(d_outputs, offsets, down, d_activated);
        self.device.swiglu_backward(
            slotted(&forward.gate_up, slots, 2 * width),
            slotted(&inner.activated, slots, width),
            inner.gate_up.range_mut(0..slots * 2 * width).matrix(slots, 2 * width),
        );
        let d_gate_up = slotted(&inner.gate_up, slots, 2 * width);
        if let Some(gradient) = gradient {
            let gathered = slotted(&cheap.gathered, slots, hidden);
            let d_weights = gradient.into_range(parts.gate_up.clone());
            self.device.expert_linear_backward_weight(d_gate_up, gathered, offsets, d_weights);
        }
        let gate_up = self.weights.range(parts.gate_up.clone());
        let d_gathered = inner.gathered.range_mut(0..slots * hidden).matrix(slots, hidden);
        self.device.expert_linear_backward_input(d_gate_up, offsets, gate_up, d_gathered);
    }

    fn router_backward(
        &self,
        parts: &MixtureParts,
        forward: &KeptMixture<E>,
        cheap: &Cheap<E>,
        inner: &mut MixtureGradients<E>,
        normed: &mut Buffer<E>,
        gradient: BlockGradient<'_>,
    ) {
        let (hidden, choices) = (self.hidden(), self.rows * parts.per_token);
        let numerics = &self.architecture.numerics;
        let coefficient = self.balance * numerics.balance_coefficient;
        self.device.route_backward(
            self.matrix(&forward.probabilities, parts.experts),
            forward.experts.range(0..choices),
            forward.weights.range(0..choices),
            parts.per_token,
            numerics.normalises_experts,
            inner.weights.range(0..choices),
            (coefficient > 0.0).then_some(Balance { coefficient }),
            self.matrix_mut(&mut inner.logits, parts.experts),
        );
        let d_logits = self.matrix(&inner.logits, parts.experts);
        if let Some(gradient) = gradient {
            let input = self.matrix(&cheap.before_mlp, hidden);
            let d_router = gradient.into_range(parts.router.clone());
            self.device.linear_backward_weight(d_logits, input, d_router, None);
        }
        let router = self.weights.range(parts.router.clone());
        self.device.linear_backward_input(d_logits, router, Into::Add, self.matrix_mut(normed, hidden));
    }

    fn shared_backward(
        &self,
        parts: &MixtureParts,
        kept: &Kept<E>,
        cheap: &Cheap<E>,
        room: &mut GradientRoom<E>,
        mut gradient: BlockGradient<'_>,
    ) {
        let Some(shared) = &parts.shared else { return };
        let hidden = self.hidden();
        let forward = kept.mixture.as_ref().expect(HAS_ROOM);
        let GradientRoom { stream, normed, activated, gate_up, mixture, .. } = room;
        let inner = mixture.as_mut().expect(HAS_ROOM);
        let d_outputs = match &parts.shared_gate {
            None => self.matrix(stream, hidden),
            Some(gate) => {
                self.device.gate_rows_backward(
                    self.matrix(stream, hidden),
                    self.matrix(&forward.shared_outputs, hidden),
                    forward.shared_logits.range(0..self.rows),
                    self.matrix_mut(&mut inner.shared_outputs, hidden),
                    inner.shared_logits.range_mut(0..self.rows),
                );
                let d_logits = self.matrix(&inner.shared_logits, 1);
                if let Some(gradient) = reborrow(&mut gradient) {
                    let input = self.matrix(&cheap.before_mlp, hidden);
                    let d_gate = gradient.into_range(gate.clone());
                    self.device.linear_backward_weight(d_logits, input, d_gate, None);
                }
                let gate = self.weights.range(gate.clone());
                self.device.linear_backward_input(d_logits, gate, Into::Add, self.matrix_mut(normed, hidden));
                self.matrix(&inner.shared_outputs, hidden)
            }
        };
        let rooms = DenseRooms { activated, gate_up };
        let normed = self.matrix_mut(normed, hidden);
        self.dense_backward_from(shared, d_outputs, kept, cheap, rooms, Into::Add, normed, gradient);
    }
}

/// A buffer with one row per choice of an expert.
fn slotted<E: Element>(buffer: &Buffer<E>, slots: usize, columns: usize) -> Matrix<'_, E> {
    buffer.range(0..slots * columns).matrix(slots, columns)
}
