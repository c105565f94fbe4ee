//! The routed experts of a layer, and tokens on their way to those of other ranks and back.
//!
//! A rank orders the tokens that it has by expert. Where experts are cut over ranks it sends each rank those for its experts, which
//! lie together; every rank puts what comes in the order of its own experts, and of one expert in the order of the ranks, so
//! results do not depend on who comes first. What experts give goes back the same way. No token is dropped.

use bedplate_kernels::{Accumulate, Buffer, Element, Matrix, MatrixMut, View, ViewMut};

use crate::layer::{BlockGradient, Given, LayerRun, Made, reborrow};
use crate::mixture::slotted;
use crate::table::{LinearParts, MixtureParts};
use crate::workspace::{InnerGradients, Kept, Travel};

/// The rows that visit the experts of this rank, in the order of the experts.
#[derive(Clone, Copy)]
struct Visits<'a> {
    rows: usize,
    offsets: View<'a, u32>,
}

impl<E: Element> LayerRun<'_, E> {
    fn visits<'b>(&self, parts: &MixtureParts, kept: &'b Kept<E>) -> Visits<'b> {
        self.visits_at(parts, &kept.offsets, &kept.visit_offsets)
    }

    /// `offsets` are those of the tokens of this rank, `visit_offsets` of those that came to its experts.
    fn visits_at<'b>(
        &self,
        parts: &MixtureParts,
        offsets: &'b Buffer<u32>,
        visit_offsets: &'b Buffer<u32>,
    ) -> Visits<'b> {
        if self.network.part().experts.is_whole() {
            return Visits { rows: self.rows * parts.per_token, offsets: offsets.range(0..parts.here + 1) };
        }
        let mut rows = [0];
        self.device.read(visit_offsets.range(parts.here..parts.here + 1), &mut rows);
        Visits { rows: rows[0] as usize, offsets: visit_offsets.range(0..parts.here + 1) }
    }

    /// Puts tokens in the order of the experts that they visit, here or on other ranks.
    pub(crate) fn gather(
        &self,
        parts: &MixtureParts,
        normed: Matrix<'_, E>,
        kept: &Kept<E>,
        made: &mut Made<'_, E>,
        travel: &mut Option<&mut Travel<E>>,
    ) {
        let (slots, hidden) = (self.rows * parts.per_token, self.hidden());
        let gather = |to: ViewMut<'_, E>| {
            let order = kept.order.range(0..slots);
            self.device.gather_rows(normed, order, parts.per_token, to.matrix(slots, hidden));
        };
        match travel {
            None => gather(made.gathered.range_mut(0..slots * hidden)),
            Some(travel) => {
                gather(travel.leaving.range_mut(0..slots * hidden));
                let Travel { leaving, arrived, .. } = &mut **travel;
                self.to_experts(parts, kept, leaving, arrived, made.gathered);
            }
        }
    }

    pub(crate) fn experts_forward(
        &self,
        parts: &MixtureParts,
        kept: &mut Kept<E>,
        made: &mut Made<'_, E>,
        travel: &mut Option<&mut Travel<E>>,
    ) {
        let (hidden, width) = (self.hidden(), parts.width);
        let visits = self.visits_at(parts, &kept.offsets, &kept.visit_offsets);
        let Visits { rows, offsets } = visits;
        self.device.expert_linear(
            slotted(made.gathered, rows, hidden),
            offsets,
            self.weights.range(parts.gate_up.weight.clone()),
            slotted_mut(&mut kept.expert_gate_up, rows, 2 * width),
        );
        self.add_bias(&parts.gate_up, visits, slotted_mut(&mut kept.expert_gate_up, rows, 2 * width));
        self.activate_experts(parts, kept, made);
        let visits = self.visits_at(parts, &kept.offsets, &kept.visit_offsets);
        let outputs = match travel {
            None => &mut kept.expert_outputs,
            Some(travel) => &mut travel.visiting,
        };
        self.device.expert_linear(
            slotted(made.expert_activated, rows, width),
            visits.offsets,
            self.weights.range(parts.down.weight.clone()),
            slotted_mut(outputs, rows, hidden),
        );
        // The ranks' parts are added up, so one of them has the bias.
        if self.network.part().tensor.rank == 0 {
            self.add_bias(&parts.down, visits, slotted_mut(outputs, rows, hidden));
        }
        if let Some(Travel { arrived, visiting, .. }) = travel.as_deref_mut() {
            let journey = self.journey(parts, kept);
            let home = kept.expert_outputs.range_mut(0..self.rows * parts.per_token * hidden);
            self.send_home(&journey, &kept.visit_slots, visiting, arrived, home);
        }
    }

    fn add_bias(&self, parts: &LinearParts, visits: Visits<'_>, out: MatrixMut<'_, E>) {
        if let Some(bias) = &parts.bias {
            self.device.add_expert_bias(visits.offsets, self.weights.range(bias.clone()), out);
        }
    }

    pub(crate) fn activate_experts(&self, parts: &MixtureParts, kept: &Kept<E>, made: &mut Made<'_, E>) {
        let Visits { rows, .. } = self.visits(parts, kept);
        let gate_up = slotted(&kept.expert_gate_up, rows, 2 * parts.width);
        let gate = self.network.architecture().numerics.gate();
        self.device.gated(gate, gate_up, slotted_mut(made.expert_activated, rows, parts.width));
    }

    /// From the gradients of what experts gave to those of the tokens that came to them.
    pub(crate) fn experts_backward(
        &self,
        parts: &MixtureParts,
        given: Given<'_, E>,
        inner: &mut InnerGradients<E>,
        travel: &mut Option<&mut Travel<E>>,
        mut gradient: BlockGradient<'_>,
    ) {
        let (hidden, width, kept) = (self.hidden(), parts.width, given.kept);
        let visits = self.visits(parts, kept);
        let Visits { rows, offsets } = visits;
        let d_outputs = match travel {
            None => &inner.expert_outputs,
            Some(travel) => {
                let Travel { arrived, visiting, .. } = &mut **travel;
                self.to_experts(parts, kept, &inner.expert_outputs, arrived, visiting);
                visiting
            }
        };
        let d_outputs = slotted(d_outputs, rows, hidden);
        let activated = slotted(&given.cheap.expert_activated, rows, width);
        self.expert_gradient(&parts.down, d_outputs, activated, visits, reborrow(&mut gradient));
        let down = self.weights.range(parts.down.weight.clone());
        let d_activated = slotted_mut(&mut inner.expert_activated, rows, width);
        self.device.expert_linear_backward_input(d_outputs, offsets, down, d_activated);
        self.device.gated_backward(
            self.network.architecture().numerics.gate(),
            slotted(&kept.expert_gate_up, rows, 2 * width),
            slotted(&inner.expert_activated, rows, width),
            slotted_mut(&mut inner.expert_gate_up, rows, 2 * width),
        );
        let d_gate_up = slotted(&inner.expert_gate_up, rows, 2 * width);
        let gathered = slotted(&given.cheap.gathered, rows, hidden);
        self.expert_gradient(&parts.gate_up, d_gate_up, gathered, visits, gradient);
        let gate_up = self.weights.range(parts.gate_up.weight.clone());
        let d_gathered = slotted_mut(&mut inner.gathered, rows, hidden);
        self.device.expert_linear_backward_input(d_gate_up, offsets, gate_up, d_gathered);
    }

    /// Adds to the gradient of the experts' weights and biases.
    fn expert_gradient(
        &self,
        parts: &LinearParts,
        d_outputs: Matrix<'_, E>,
        inputs: Matrix<'_, E>,
        Visits { offsets, .. }: Visits<'_>,
        mut gradient: BlockGradient<'_>,
    ) {
        if let Some(gradient) = reborrow(&mut gradient) {
            let d_weights = gradient.range(parts.weight.clone());
            self.device.expert_linear_backward_weight(d_outputs, inputs, offsets, d_weights);
        }
        if let (Some(gradient), Some(bias)) = (gradient, &parts.bias) {
            self.device.expert_bias_backward(d_outputs, offsets, gradient.range(bias.clone()));
        }
    }

    /// Brings the gradients of tokens back to where they came from and adds up those of each.
    pub(crate) fn gather_backward<T: Element>(
        &self,
        parts: &MixtureParts,
        kept: &Kept<E>,
        inner: &InnerGradients<E>,
        travel: &mut Option<&mut Travel<E>>,
        d_normed: &mut Buffer<T>,
    ) {
        let (slots, hidden) = (self.rows * parts.per_token, self.hidden());
        let d_gathered = match travel {
            None => &inner.gathered,
            Some(travel) => {
                let Travel { arrived, leaving, .. } = &mut **travel;
                let (journey, home) = (self.journey(parts, kept), leaving.range_mut(0..slots * hidden));
                self.send_home(&journey, &kept.visit_slots, &inner.gathered, arrived, home);
                leaving
            }
        };
        self.device.gather_rows_backward(
            slotted(d_gathered, slots, hidden),
            kept.slots.range(0..slots),
            parts.per_token,
            Accumulate::Replace,
            self.matrix_mut(d_normed, hidden),
        );
    }
}

/// How many rows go to each rank of the expert group, and come from it.
struct Journey {
    sent: Vec<usize>,
    received: Vec<usize>,
}

impl<E: Element> LayerRun<'_, E> {
    /// Tells every rank how many tokens come to each of its experts, and plans the order of those that come here.
    pub(crate) fn announce(&self, parts: &MixtureParts, kept: &mut Kept<E>, travel: &mut Travel<E>) {
        let offsets = self.read(kept.offsets.range(0..parts.experts + 1));
        let counts: Vec<u32> = offsets.windows(2).map(|pair| pair[1] - pair[0]).collect();
        self.device.write(travel.counts.range_mut(0..parts.experts), &counts);
        let each = vec![parts.here * size_of::<u32>(); self.network.part().experts.degree];
        if let Some(peers) = self.network.peers() {
            let from = travel.counts.range(0..parts.experts).bytes();
            let to = kept.arrivals.range_mut(0..parts.experts).bytes();
            peers.exchange(self.device, (from, &each), (to, &each));
        }
        let mut arrivals = self.read(kept.arrivals.range(0..parts.experts));
        let all: u64 = arrivals.iter().copied().map(u64::from).sum();
        if all > kept.visit_order.len() as u64 {
            // No rank sends so many: one of them failed, and these are not its numbers.
            arrivals.fill(0);
            self.device.write(kept.arrivals.range_mut(0..parts.experts), &arrivals);
        }
        let order = VisitOrder::of(&arrivals, parts.here);
        let rows = order.order.len();
        self.device.write(kept.visit_offsets.range_mut(0..parts.here + 1), &order.offsets);
        self.device.write(kept.visit_order.range_mut(0..rows), &order.order);
        self.device.write(kept.visit_slots.range_mut(0..rows), &order.slots);
    }

    fn read(&self, from: View<'_, u32>) -> Vec<u32> {
        let mut numbers = vec![0; from.len()];
        self.device.read(from, &mut numbers);
        numbers
    }

    fn journey(&self, parts: &MixtureParts, kept: &Kept<E>) -> Journey {
        let offsets = self.read(kept.offsets.range(0..parts.experts + 1));
        let arrivals = self.read(kept.arrivals.range(0..parts.experts));
        let borders: Vec<u32> = offsets.iter().copied().step_by(parts.here).collect();
        Journey {
            sent: borders.windows(2).map(|pair| (pair[1] - pair[0]) as usize).collect(),
            received: arrivals
                .chunks(parts.here)
                .map(|of_rank| of_rank.iter().sum::<u32>() as usize)
                .collect(),
        }
    }

    /// Sends rows, which lie in the order of all experts, and puts those that come in the order of the experts here.
    fn to_experts(
        &self,
        parts: &MixtureParts,
        kept: &Kept<E>,
        leaving: &Buffer<E>,
        arrived: &mut Buffer<E>,
        visiting: &mut Buffer<E>,
    ) {
        let (hidden, slots) = (self.hidden(), self.rows * parts.per_token);
        let Journey { sent, received } = self.journey(parts, kept);
        let rows = received.iter().sum();
        let from = leaving.range(0..slots * hidden);
        self.exchange(from, &sent, arrived.range_mut(0..rows * hidden), &received);
        let order = kept.visit_order.range(0..rows);
        let to = slotted_mut(visiting, rows, hidden);
        self.device.gather_rows(slotted(arrived, rows, hidden), order, 1, to);
    }

    /// Sends rows, which lie in the order of the experts here, back to the ranks that they came from.
    fn send_home(
        &self,
        Journey { sent, received }: &Journey,
        slots: &Buffer<u32>,
        visiting: &Buffer<E>,
        leaving: &mut Buffer<E>,
        home: ViewMut<'_, E>,
    ) {
        let (hidden, rows) = (self.hidden(), received.iter().sum());
        let to = slotted_mut(leaving, rows, hidden);
        self.device.gather_rows(slotted(visiting, rows, hidden), slots.range(0..rows), 1, to);
        self.exchange(leaving.range(0..rows * hidden), received, home, sent);
    }

    /// Sends some rows to each rank of the expert group and receives some from it.
    fn exchange(&self, from: View<'_, E>, sent: &[usize], to: ViewMut<'_, E>, received: &[usize]) {
        let Some(peers) = self.network.peers() else { return };
        let row = self.hidden() * size_of::<E>();
        let bytes = |rows: &[usize]| rows.iter().map(|rows| rows * row).collect::<Vec<usize>>();
        peers.exchange(self.device, (from.bytes(), &bytes(sent)), (to.bytes(), &bytes(received)));
    }
}

/// The order by expert of rows that came from several ranks, each of which had ordered its own.
#[derive(Debug, PartialEq, Eq)]
struct VisitOrder {
    offsets: Vec<u32>,
    /// The row in each place of the order.
    order: Vec<u32>,
    /// The place of each row.
    slots: Vec<u32>,
}

impl VisitOrder {
    /// `arrivals` has a number of rows for each rank and expert.
    fn of(arrivals: &[u32], here: usize) -> Self {
        let starts: Vec<u32> = arrivals
            .iter()
            .scan(0, |end, count| {
                *end += count;
                Some(*end - count)
            })
            .collect();
        let (mut offsets, mut order) = (vec![0], Vec::new());
        for expert in 0..here {
            for of_rank in (expert..arrivals.len()).step_by(here) {
                order.extend(starts[of_rank]..starts[of_rank] + arrivals[of_rank]);
            }
            offsets.push(order.len() as u32);
        }
        let mut slots = vec![0; order.len()];
        order.iter().enumerate().for_each(|(slot, row)| slots[*row as usize] = slot as u32);
        Self { offsets, order, slots }
    }
}

fn slotted_mut<E: Element>(buffer: &mut Buffer<E>, slots: usize, columns: usize) -> MatrixMut<'_, E> {
    buffer.range_mut(0..slots * columns).matrix(slots, columns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_ordered_by_expert_and_then_by_the_rank_they_come_from() {
        // Two experts here; ranks send 1 and 2, 0 and 1, 2 and 0 rows.
        let order = VisitOrder::of(&[1, 2, 0, 1, 2, 0], 2);
        assert_eq!(order.offsets, [0, 3, 6]);
        assert_eq!(order.order, [0, 4, 5, 1, 2, 3]);
        assert_eq!(order.slots, [0, 3, 4, 5, 1, 2]);
    }
}
