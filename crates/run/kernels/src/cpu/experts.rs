//! Tokens on their way to experts and back.
//!
//! A *choice* is a token's decision for one expert: token `t` has the choices `t * per_token` and following. A *slot* is a row of the
//! matrix in which the choices of each expert lie together.

use bedplate_breakdown::Part;

use crate::cpu::elementary::sigmoid;
use crate::cpu::stream::SharedMut;
use crate::cpu::sum::sum2;
use crate::{Device, Element, Into, Matrix, MatrixMut, View, ViewMut};

/// Columns whose sums one pass over a token's rows keeps in registers.
const BLOCK: usize = 128;

impl Device {
    /// Sorts choices by expert, those of one expert as they came: `order[slot]` is the choice in a slot, `slots[choice]` the slot
    /// of a choice, and the slots of expert `e` begin at `offsets[e]` and end before `offsets[e + 1]`.
    pub fn dispatch(
        &self,
        experts: View<'_, u32>,
        count: usize,
        order: ViewMut<'_, u32>,
        slots: ViewMut<'_, u32>,
        offsets: ViewMut<'_, u32>,
    ) {
        assert_eq!((order.len(), slots.len()), (experts.len(), experts.len()), "slots of choices");
        assert_eq!(offsets.len(), count + 1, "offsets of experts");
        let (experts, order, slots) = (experts.host(), order.into_host(), slots.into_host());
        let offsets = offsets.into_host();
        self.time(Part::Memory, || {
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
        });
    }

    /// `out[slot] = x[token]`, the token being that of the slot's choice.
    pub fn gather_rows<E: Element>(
        &self,
        x: Matrix<'_, E>,
        order: View<'_, u32>,
        per_token: usize,
        out: MatrixMut<'_, E>,
    ) {
        assert_eq!((out.rows, out.columns), (order.len(), x.columns), "rows of slots");
        let (rows, columns) = (out.rows, out.columns);
        let out = out.into_shared();
        self.time(Part::Memory, || {
            self.in_rows(
                rows,
                columns,
                #[inline(always)]
                |rows| {
                    for slot in rows {
                        out.row(slot).copy_from_slice(x.row(order.host()[slot] as usize / per_token));
                    }
                },
            );
        });
    }

    /// `d_x[token]` is the sum of `d_out[slot]` over the slots of the token's choices, or that much more.
    pub fn gather_rows_backward<E: Element, O: Element>(
        &self,
        d_out: Matrix<'_, E>,
        slots: View<'_, u32>,
        per_token: usize,
        into: Into,
        d_x: MatrixMut<'_, O>,
    ) {
        self.sum_slots(d_out, slots, None, per_token, into, d_x);
    }

    /// `out[token]` is the sum of `y[slot]` over the slots of the token's choices, by their weights, or that much more.
    pub fn combine<E: Element, O: Element>(
        &self,
        y: Matrix<'_, E>,
        slots: View<'_, u32>,
        weights: View<'_, f32>,
        per_token: usize,
        into: Into,
        out: MatrixMut<'_, O>,
    ) {
        self.sum_slots(y, slots, Some(weights), per_token, into, out);
    }

    /// Replaces `d_y` and `d_weights`.
    #[expect(clippy::too_many_arguments, reason = "what the forward pass had, and its gradients")]
    pub fn combine_backward<E: Element>(
        &self,
        d_out: Matrix<'_, E>,
        y: Matrix<'_, E>,
        slots: View<'_, u32>,
        weights: View<'_, f32>,
        per_token: usize,
        d_y: MatrixMut<'_, E>,
        d_weights: ViewMut<'_, f32>,
    ) {
        assert_eq!((d_y.rows, d_y.columns), (y.rows, y.columns), "rows of slots");
        assert_eq!(d_out.columns, y.columns, "the output of experts");
        assert_eq!((slots.len(), y.rows), (d_out.rows * per_token, slots.len()), "slots of choices");
        assert_eq!((weights.len(), d_weights.len()), (slots.len(), slots.len()), "weights of choices");
        let (slots, weights) = (slots.host(), weights.host());
        let (d_y, d_weights) = (d_y.into_shared(), SharedMut::new(d_weights.into_host()));
        self.time(Part::Memory, || {
            // Members write to the rows that `slots` names, so no two may be the same.
            self.partial_sums.with(slots.len(), |marks| assert_all_differ(slots, marks));
            self.in_rows(
                d_out.rows,
                d_out.columns * per_token,
                #[inline(always)]
                |tokens| {
                    for choice in tokens.start * per_token..tokens.end * per_token {
                        let (slot, weight) = (slots[choice] as usize, weights[choice]);
                        let d = d_out.row(choice / per_token);
                        d_weights.range(choice..choice + 1)[0] = sum2(d, y.row(slot), product);
                        for (d_y, d) in d_y.row(slot).iter_mut().zip(d) {
                            *d_y = E::narrow(weight * d.widen());
                        }
                    }
                },
            );
        });
    }

    /// `out = sigmoid(logit) * x` by rows, as Qwen2-MoE's shared expert is gated, or that much more.
    pub fn gate_rows<E: Element, O: Element>(
        &self,
        x: Matrix<'_, E>,
        logits: View<'_, f32>,
        into: Into,
        out: MatrixMut<'_, O>,
    ) {
        assert_eq!((x.rows, x.columns), (out.rows, out.columns), "the output of a gate");
        assert_eq!(logits.len(), x.rows, "a logit for each row");
        let out = out.into_shared();
        self.time(Part::Memory, || {
            self.in_rows(
                x.rows,
                x.columns,
                #[inline(always)]
                |rows| {
                    for row in rows {
                        let gate = sigmoid(logits.host()[row]);
                        for (out, x) in out.row(row).iter_mut().zip(x.row(row)) {
                            into.put(out, gate * x.widen());
                        }
                    }
                },
            );
        });
    }

    /// Replaces `d_x` and `d_logits`.
    pub fn gate_rows_backward<E: Element>(
        &self,
        d_out: Matrix<'_, E>,
        x: Matrix<'_, E>,
        logits: View<'_, f32>,
        d_x: MatrixMut<'_, E>,
        d_logits: ViewMut<'_, f32>,
    ) {
        assert_eq!((x.rows, x.columns), (d_out.rows, d_out.columns), "the output of a gate");
        assert_eq!((x.rows, x.columns), (d_x.rows, d_x.columns), "the input of a gate");
        assert_eq!((logits.len(), d_logits.len()), (x.rows, x.rows), "a logit for each row");
        let (d_x, d_logits) = (d_x.into_shared(), SharedMut::new(d_logits.into_host()));
        self.time(Part::Memory, || {
            self.in_rows(
                x.rows,
                x.columns,
                #[inline(always)]
                |rows| {
                    for (row, d_logit) in rows.clone().zip(d_logits.range(rows)) {
                        let gate = sigmoid(logits.host()[row]);
                        let d = d_out.row(row);
                        *d_logit = gate * (1.0 - gate) * sum2(d, x.row(row), product);
                        for (d_x, d) in d_x.row(row).iter_mut().zip(d) {
                            *d_x = E::narrow(gate * d.widen());
                        }
                    }
                },
            );
        });
    }

    /// Sums the rows of each token's slots; without weights all count 1.
    fn sum_slots<E: Element, O: Element>(
        &self,
        y: Matrix<'_, E>,
        slots: View<'_, u32>,
        weights: Option<View<'_, f32>>,
        per_token: usize,
        into: Into,
        out: MatrixMut<'_, O>,
    ) {
        assert_eq!((slots.len(), y.columns), (out.rows * per_token, out.columns), "rows of slots");
        assert_eq!(weights.map_or(slots.len(), View::len), slots.len(), "weights of choices");
        let (rows, columns) = (out.rows, out.columns);
        let (out, slots, weights) = (out.into_shared(), slots.host(), weights.map(View::host));
        self.time(Part::Memory, || {
            self.in_rows(
                rows,
                columns * per_token,
                #[inline(always)]
                |tokens| {
                    for token in tokens {
                        let choices = token * per_token..(token + 1) * per_token;
                        for (index, out) in out.row(token).chunks_mut(BLOCK).enumerate() {
                            let mut sums = [0.0; BLOCK];
                            for choice in choices.clone() {
                                let weight = weights.map_or(1.0, |weights| weights[choice]);
                                let y = &y.row(slots[choice] as usize)[index * BLOCK..][..out.len()];
                                sums.iter_mut().zip(y).for_each(
                                    #[inline(always)]
                                    |(sum, y)| *sum += weight * y.widen(),
                                );
                            }
                            out.iter_mut().zip(sums).for_each(
                                #[inline(always)]
                                |(out, sum)| into.put(out, sum),
                            );
                        }
                    }
                },
            );
        });
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

#[cfg(test)]
mod tests;
