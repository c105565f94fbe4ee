//! Rotary positions.

use super::Cpu;
use crate::device::Rotation;
use crate::{Element, Pairing, Turn};

impl Cpu {
    pub(crate) fn rotate<E: Element>(&self, rotation: Rotation<'_, E>) {
        let Rotation { heads, skipped, positions, rotary, turn, x } = rotation;
        let (positions, pairs, shape) = (self.slice(positions), rotary.pairs, x.shape());
        let (cosines, sines) = (self.slice(rotary.cosines.view()), self.slice(rotary.sines.view()));
        inlined!(self.in_rows(shape, self.rows_mut(x), |row, x| {
            let start = positions[row] as usize * pairs;
            let (cosines, sines) = (&cosines[start..][..pairs], &sines[start..][..pairs]);
            for head in x.chunks_exact_mut(heads.dim.max(1)) {
                let head = &mut head[skipped..];
                if rotary.pairing == Pairing::Neighbours {
                    turn_neighbours(&mut head[..2 * pairs], turn, cosines, sines);
                    continue;
                }
                let (first, second) = head[..2 * pairs].split_at_mut(pairs);
                match turn {
                    Turn::Forward => turn_pairs(first, second, cosines, sines),
                    // Turning back is turning forward with the pair's members exchanged.
                    Turn::Backward => turn_pairs(second, first, cosines, sines),
                }
            }
        }));
    }
}

#[inline(always)]
fn turn_pairs<E: Element>(first: &mut [E], second: &mut [E], cosines: &[f32], sines: &[f32]) {
    for (((first, second), cosine), sine) in first.iter_mut().zip(second).zip(cosines).zip(sines) {
        let (a, b) = (first.widen(), second.widen());
        *first = E::narrow(a * cosine - b * sine);
        *second = E::narrow(b * cosine + a * sine);
    }
}

#[inline(always)]
fn turn_neighbours<E: Element>(x: &mut [E], turn: Turn, cosines: &[f32], sines: &[f32]) {
    for (([first, second], cosine), sine) in x.as_chunks_mut::<2>().0.iter_mut().zip(cosines).zip(sines) {
        let sine = if turn == Turn::Forward { *sine } else { -sine };
        let (a, b) = (first.widen(), second.widen());
        *first = E::narrow(a * cosine - b * sine);
        *second = E::narrow(b * cosine + a * sine);
    }
}
