//! Tokens on their way to experts and back.

use super::Cpu;
use super::elementary::sigmoid;
use super::sum::sum2;
use crate::Element;
use crate::device::{CombineBackward, Dispatch, GateBackward, GateForward, GatherRows, SumSlots};

/// Columns whose sums one pass over a token's rows keeps in registers.
const BLOCK: usize = 128;

impl Cpu {
    pub(crate) fn dispatch(&self, choices: Dispatch<'_>) {
        let (order, slots) = (self.slice_mut(choices.order), self.slice_mut(choices.slots));
        let (experts, offsets) = (self.slice(choices.experts), self.slice_mut(choices.offsets));
        let count = offsets.len() - 1;
        offsets.fill(0);
        experts.iter().for_each(|expert| offsets[*expert as usize + 1] += 1);
        for expert in 0..count {
            offsets[expert + 1] += offsets[expert];
        }
        // Each offset moves on to the end of its expert, and is put back afterwards.
        for (choice, expert) in experts.iter().enumerate() {
            let next = &mut offsets[*expert as usize];
            slots[choice] = *next;
            order[*next as usize] = choice as u32;
            *next += 1;
        }
        offsets.copy_within(0..count, 1);
        offsets[0] = 0;
    }

    pub(crate) fn gather_rows<E: Element>(&self, gather: GatherRows<'_, E>) {
        let GatherRows { x, order, per_token, out } = gather;
        let (x, order, shape) = (self.rows(x), self.slice(order), out.shape());
        inlined!(self.in_rows(shape, self.rows_mut(out), |slot, out| {
            out.copy_from_slice(x.row(order[slot] as usize / per_token))
        }));
    }

    pub(crate) fn sum_slots<E: Element, O: Element>(&self, sum: SumSlots<'_, E, O>) {
        let SumSlots { y, slots, weights, per_token, mode, out } = sum;
        let (y, slots, weights) = (self.rows(y), self.slice(slots), weights.map(|view| self.slice(view)));
        inlined!(self.in_rows((out.rows, out.columns * per_token), self.rows_mut(out), |token, out| {
            let choices = token * per_token..(token + 1) * per_token;
            for (index, out) in out.chunks_mut(BLOCK).enumerate() {
                let mut sums = [0.0; BLOCK];
                for choice in choices.clone() {
                    let weight = weights.map_or(1.0, |weights| weights[choice]);
                    let y = &y.row(slots[choice] as usize)[index * BLOCK..][..out.len()];
                    for (sum, y) in sums.iter_mut().zip(y) {
                        *sum += weight * y.widen();
                    }
                }
                for (out, sum) in out.iter_mut().zip(sums) {
                    mode.apply(out, sum);
                }
            }
        }));
    }

    pub(crate) fn combine_backward<E: Element>(&self, combine: CombineBackward<'_, E>) {
        let CombineBackward { d_out, y, slots, weights, per_token, d_y, d_weights } = combine;
        let (d_out, y, slots) = (self.rows(d_out), self.rows(y), self.slice(slots));
        let (weights, d_y) = (self.slice(weights), self.rows_mut(d_y));
        assert_all_differ(slots, self.partial_sums.borrow_mut().first(slots.len()));
        let outputs = self.shared(d_weights, per_token);
        inlined!(self.in_rows((d_out.rows, d_out.columns * per_token), outputs, |token, d_weights| {
            let d = d_out.row(token);
            for (index, d_weight) in d_weights.iter_mut().enumerate() {
                let choice = token * per_token + index;
                let (slot, weight) = (slots[choice] as usize, weights[choice]);
                *d_weight = sum2(d, y.row(slot), product);
                #[expect(unsafe_code, reason = "rows are shared out by slot")]
                // SAFETY: each choice comes once, and no two have the same slot, as was asserted above.
                let d_y = unsafe { d_y.part_of_row(slot, 0, d.len()) };
                for (d_y, d) in d_y.iter_mut().zip(d) {
                    *d_y = E::narrow(weight * d.widen());
                }
            }
        }));
    }

    pub(crate) fn gate_rows<E: Element, O: Element>(&self, gate: GateForward<'_, E, O>) {
        let GateForward { x, logits, mode, out } = gate;
        let (x, logits) = (self.rows(x), self.slice(logits));
        inlined!(self.in_rows(x.shape(), self.rows_mut(out), |row, out| {
            let gate = sigmoid(logits[row]);
            for (out, x) in out.iter_mut().zip(x.row(row)) {
                mode.apply(out, gate * x.widen());
            }
        }));
    }

    pub(crate) fn gate_rows_backward<E: Element>(&self, gate: GateBackward<'_, E>) {
        let GateBackward { d_out, x, logits, d_x, d_logits } = gate;
        let (d_out, x, logits) = (self.rows(d_out), self.rows(x), self.slice(logits));
        let outputs = (self.rows_mut(d_x), self.shared(d_logits, 1));
        inlined!(self.in_rows(x.shape(), outputs, |row, (d_x, d_logit)| {
            let (gate, d) = (sigmoid(logits[row]), d_out.row(row));
            d_logit[0] = gate * (1.0 - gate) * sum2(d, x.row(row), product);
            for (d_x, d) in d_x.iter_mut().zip(d) {
                *d_x = E::narrow(gate * d.widen());
            }
        }));
    }
}

/// Panics where two of `slots` are the same.
fn assert_all_differ(slots: &[u32], marks: &mut [f32]) {
    marks.fill(0.0);
    for slot in slots {
        let mark = &mut marks[*slot as usize];
        assert!(*mark == 0.0, "slot {slot} has two choices");
        *mark = 1.0;
    }
}

#[inline(always)]
fn product<E: Element>(a: E, b: E) -> f32 {
    a.widen() * b.widen()
}
