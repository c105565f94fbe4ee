//! Rotary positions: pairs of numbers of a head are turned by an angle that grows with the token's position.
//!
//! Number `i` of a head makes a pair with number `i + rotated / 2`, as in Hugging Face's `rotate_half`.

use bedplate_breakdown::Part;

use crate::{Buffer, Device, Element, Heads, MatrixMut, View};

/// Cosines and sines of all angles, by position.
pub struct Rotary {
    cosines: Buffer<f32>,
    sines: Buffer<f32>,
    pairs: usize,
}

/// Which way to turn: backward undoes forward, and takes a gradient back through it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    Forward,
    Backward,
}

impl Rotary {
    /// For heads of which the first `rotated` numbers turn, an even number; pair `i` turns by `frequencies[i]` radians
    /// with every position. `attention_factor` multiplies what was turned; 1 outside YaRN.
    pub fn new(rotated: usize, frequencies: &[f64], max_positions: usize, attention_factor: f32) -> Self {
        assert_eq!(rotated, 2 * frequencies.len(), "a frequency for each pair of numbers");
        let pairs = frequencies.len();
        let (mut cosines, mut sines) =
            (Buffer::zeros(max_positions * pairs), Buffer::zeros(max_positions * pairs));
        let rows = cosines.host_mut().chunks_mut(pairs.max(1)).zip(sines.host_mut().chunks_mut(pairs.max(1)));
        for (position, (cosines, sines)) in rows.enumerate() {
            for ((cosine, sine), frequency) in cosines.iter_mut().zip(sines).zip(frequencies) {
                let (of_sine, of_cosine) = (frequency * position as f64).sin_cos();
                *cosine = (of_cosine * f64::from(attention_factor)) as f32;
                *sine = (of_sine * f64::from(attention_factor)) as f32;
            }
        }
        Self { cosines, sines, pairs }
    }

    /// Numbers of a head that turn.
    pub fn rotated(&self) -> usize {
        2 * self.pairs
    }

    pub fn max_positions(&self) -> usize {
        self.cosines.len() / self.pairs.max(1)
    }

    pub fn bytes(&self) -> usize {
        self.cosines.bytes() + self.sines.bytes()
    }
}

impl Device {
    /// Turns some heads in place; `positions` has an entry per row. Panics at a position beyond `rotary`'s.
    pub fn rotate<E: Element>(
        &self,
        heads: &Heads,
        positions: View<'_, u32>,
        rotary: &Rotary,
        turn: Turn,
        x: MatrixMut<'_, E>,
    ) {
        let Rotary { pairs, .. } = *rotary;
        let x = x.into_columns(heads.columns());
        assert_eq!(positions.len(), x.rows, "a position for each row");
        assert!(rotary.rotated() <= heads.dim, "heads of {} cannot turn {}", heads.dim, rotary.rotated());
        let (rows, columns) = (x.rows, x.columns);
        let x = x.into_shared();
        let (cosines, sines) = (rotary.cosines.host(), rotary.sines.host());
        self.time(Part::Memory, || {
            self.in_rows(
                rows,
                columns,
                #[inline(always)]
                |rows| {
                    for row in rows {
                        let start = positions.host()[row] as usize * pairs;
                        let (cosines, sines) = (&cosines[start..][..pairs], &sines[start..][..pairs]);
                        for head in x.row(row).chunks_exact_mut(heads.dim.max(1)) {
                            let (first, second) = head[..2 * pairs].split_at_mut(pairs);
                            match turn {
                                Turn::Forward => turn_pairs(first, second, cosines, sines),
                                // Turning back is turning forward with the pair's members exchanged.
                                Turn::Backward => turn_pairs(second, first, cosines, sines),
                            }
                        }
                    }
                },
            );
        });
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

#[cfg(test)]
mod tests;
