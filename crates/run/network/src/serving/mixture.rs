//! The mixture of experts of a layer in a step of serving: only the experts that a token of the step visits are read.

use bedplate_kernels::{Buffer, Element, ExpertRows, Gate, MatrixMut, View};

use super::packed::{PackedDense, PackedMixture};
use super::pass::{LayerPass, first_rows};
use super::room::{MixtureRoom, ServingRoom};
use crate::mixture::slotted;
use crate::table::{DenseParts, MixtureParts};

impl<E: Element> LayerPass<'_, E> {
    /// The second stream becomes the first plus what experts give.
    pub(super) fn mixture(
        &self,
        weights: &PackedMixture<E>,
        parts: &MixtureParts,
        room: &mut ServingRoom<E>,
    ) {
        self.choose(weights, parts, room);
        self.experts(weights, parts, room);
        // What the layer adds is added where the stream lies, which becomes the second one.
        room.streams.swap(0, 1);
        let (hidden, slots) = (self.hidden(), self.rows * parts.per_token);
        let ServingRoom { mixture, streams, partial, .. } = room;
        let mixture = mixture.as_mut().expect(HAS_EXPERTS);
        let outputs = mixture.outputs.range(0..slots * hidden).matrix(slots, hidden);
        let (places, shares) = (mixture.slots.range(0..slots), mixture.choice_weights.range(0..slots));
        match partial {
            None => {
                let to = self.matrix_mut(&mut streams[1], hidden);
                self.device.combine(outputs, places, shares, parts.per_token, Self::ADD, to);
            }
            Some(partial) => {
                let to = self.matrix_mut(partial, hidden);
                let mode = bedplate_kernels::Accumulate::Replace;
                self.device.combine(outputs, places, shares, parts.per_token, mode, to);
            }
        }
        if let (Some(shared), Some(dense)) = (&weights.shared, &parts.shared) {
            self.shared(weights, shared, dense, room);
        }
        self.add_partial(room);
    }

    /// Adds what ranks have in part, where they are several.
    fn add_partial(&self, room: &mut ServingRoom<E>) {
        let hidden = self.hidden();
        let Some(partial) = room.partial.as_mut() else { return };
        self.network.sum_over_ranks(self.device, partial.range_mut(0..self.rows * hidden));
        let numbers = 0..self.rows * hidden;
        self.device.add(partial.range(numbers.clone()), room.streams[1].range_mut(numbers));
    }

    /// Which experts each row visits, and the order by expert.
    fn choose(&self, weights: &PackedMixture<E>, parts: &MixtureParts, room: &mut ServingRoom<E>) {
        let (experts, choices) = (parts.experts, self.rows * parts.per_token);
        let ServingRoom { normed, mixture, .. } = room;
        let mixture = mixture.as_mut().expect(HAS_EXPERTS);
        let normed = self.matrix(normed, self.hidden());
        let logits = self.matrix_mut(&mut mixture.router_logits, experts);
        let bias = weights.router.bias.as_ref().map(Buffer::view);
        self.device.linear_packed(normed, &weights.router.weight, bias, None, logits);
        self.device.route_by(
            &self.network.architecture().numerics.routing,
            self.matrix(&mixture.router_logits, experts),
            weights.correction.as_ref().map(Buffer::view),
            parts.per_token,
            self.matrix_mut(&mut mixture.probabilities, experts),
            mixture.experts.range_mut(0..choices),
            mixture.choice_weights.range_mut(0..choices),
        );
        self.device.dispatch(
            mixture.experts.range(0..choices),
            experts,
            mixture.order.range_mut(0..choices),
            mixture.slots.range_mut(0..choices),
            mixture.offsets.range_mut(0..experts + 1),
        );
    }

    fn experts(&self, weights: &PackedMixture<E>, parts: &MixtureParts, room: &mut ServingRoom<E>) {
        let (hidden, width, slots) = (self.hidden(), parts.width, self.rows * parts.per_token);
        let ServingRoom { normed, mixture, .. } = room;
        let MixtureRoom { order, offsets, gathered, gate_up, activated, outputs, .. } =
            mixture.as_mut().expect(HAS_EXPERTS);
        let offsets = offsets.range(0..parts.experts + 1);
        let order = order.range(0..slots);
        let gate = self.network.architecture().numerics.gate();
        if gate == Gate::Silu && weights.gate_up_bias.is_none() {
            let rows = ExpertRows { order, per_token: parts.per_token, offsets };
            let rooms = (first_rows(gathered, slots, hidden), first_rows(gate_up, slots, 2 * width));
            let to = first_rows(&mut *activated, slots, width);
            self.device.swiglu_experts(self.matrix(normed, hidden), rows, &weights.gate_up, rooms, to);
        } else {
            let to = first_rows(&mut *gathered, slots, hidden);
            self.device.gather_rows(self.matrix(normed, hidden), order, parts.per_token, to);
            let (from, to) = (slotted(gathered, slots, hidden), first_rows(&mut *gate_up, slots, 2 * width));
            self.device.expert_linear_packed(from, offsets, &weights.gate_up, to);
            self.add_bias(&weights.gate_up_bias, offsets, first_rows(&mut *gate_up, slots, 2 * width));
            let from = slotted(gate_up, slots, 2 * width);
            self.device.gated(gate, from, first_rows(&mut *activated, slots, width));
        }
        let to = first_rows(&mut *outputs, slots, hidden);
        self.device.expert_linear_packed(slotted(activated, slots, width), offsets, &weights.down, to);
        // The ranks' parts are added up, so one of them has the bias.
        if self.network.part().tensor.rank == 0 {
            self.add_bias(&weights.down_bias, offsets, first_rows(outputs, slots, hidden));
        }
    }

    fn add_bias(&self, bias: &Option<Buffer<E>>, offsets: View<'_, u32>, out: MatrixMut<'_, E>) {
        if let Some(bias) = bias {
            self.device.add_expert_bias(offsets, bias.view(), out);
        }
    }

    /// Adds what the shared expert gives.
    fn shared(
        &self,
        weights: &PackedMixture<E>,
        shared: &PackedDense<E>,
        parts: &DenseParts,
        room: &mut ServingRoom<E>,
    ) {
        let hidden = self.hidden();
        self.dense_inner(shared, parts, room);
        let ServingRoom { normed, activated, mixture, streams, partial, .. } = room;
        let mixture = mixture.as_mut().expect(HAS_EXPERTS);
        let activated = self.matrix(activated, parts.width);
        self.linear(&shared.down, activated, self.matrix_mut(&mut mixture.shared_outputs, hidden));
        let gates = weights.shared_gate.as_ref().map(|gate| {
            let logits = self.matrix_mut(&mut mixture.shared_logits, 1);
            self.device.linear_packed(self.matrix(normed, hidden), gate, None, None, logits);
            mixture.shared_logits.range(0..self.rows)
        });
        let outputs = self.matrix(&mixture.shared_outputs, hidden);
        match (gates, partial) {
            (Some(gates), None) => {
                let to = self.matrix_mut(&mut streams[1], hidden);
                self.device.gate_rows(outputs, gates, Self::ADD, to);
            }
            (Some(gates), Some(partial)) => {
                self.device.gate_rows(outputs, gates, Self::ADD, self.matrix_mut(partial, hidden));
            }
            (None, None) => {
                self.device.put_rows(outputs, Self::ADD, self.matrix_mut(&mut streams[1], hidden));
            }
            (None, Some(partial)) => {
                self.device.put_rows(outputs, Self::ADD, self.matrix_mut(partial, hidden));
            }
        }
    }
}

const HAS_EXPERTS: &str = "a network with experts has a room for them";
