//! Rotary positions: pairs of elements of a head are turned by an angle that grows with the token's position.
//!
//! Number `i` of a head makes a pair with number `i + rotated / 2`, as in Hugging Face's `rotate_half`, or neighbours make pairs.

use crate::{Buffer, Device, Element, Heads, MatrixMut, View};

/// Cosines and sines of all angles, by position.
pub struct Rotary {
    pub(crate) cosines: Buffer<f32>,
    pub(crate) sines: Buffer<f32>,
    pub(crate) pairs: usize,
    pub(crate) pairing: Pairing,
}

/// Which numbers of a head make a pair.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Pairing {
    /// Those half of the turned ones apart.
    #[default]
    Halves,
    /// Each even one and the next (GLM). On the processor only.
    Neighbours,
}

/// Which way to turn: backward undoes forward, and takes a gradient back through it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    Forward,
    Backward,
}

impl Rotary {
    /// For heads of which the first `rotated` elements turn, an even number; pair `i` turns by `frequencies[i]` radians
    /// with every position. `attention_factor` multiplies what was turned; 1 outside YaRN.
    pub fn new(
        device: &Device,
        rotated: usize,
        frequencies: &[f64],
        max_positions: usize,
        attention_factor: f32,
    ) -> Self {
        assert_eq!(rotated, 2 * frequencies.len(), "a frequency for each pair of elements");
        let table = |of_angle: fn(f64) -> f64| {
            let number = |position: usize, frequency: &f64| {
                (of_angle(frequency * position as f64) * f64::from(attention_factor)) as f32
            };
            let row = |position| frequencies.iter().map(move |frequency| number(position, frequency));
            let elements: Vec<f32> = (0..max_positions).flat_map(row).collect();
            let mut table = device.zeros(elements.len());
            device.write(table.view_mut(), &elements);
            table
        };
        let pairing = Pairing::default();
        Self { cosines: table(f64::cos), sines: table(f64::sin), pairs: frequencies.len(), pairing }
    }

    /// The same with other pairs.
    pub fn with_pairing(self, pairing: Pairing) -> Self {
        Self { pairing, ..self }
    }

    /// Elements of a head that turn.
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

pub(crate) struct Rotation<'a, E> {
    pub(crate) heads: &'a Heads,
    /// Elements of a head before those that turn.
    pub(crate) skipped: usize,
    pub(crate) positions: View<'a, u32>,
    pub(crate) rotary: &'a Rotary,
    pub(crate) turn: Turn,
    pub(crate) x: MatrixMut<'a, E>,
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
        self.rotate_behind(heads, 0, positions, rotary, turn, x);
    }

    /// The same where the elements that turn lie behind others of their head, on the processor only.
    pub fn rotate_behind<E: Element>(
        &self,
        heads: &Heads,
        skipped: usize,
        positions: View<'_, u32>,
        rotary: &Rotary,
        turn: Turn,
        x: MatrixMut<'_, E>,
    ) {
        let x = x.columns(heads.columns());
        assert_eq!(positions.len(), x.rows, "a position for each row");
        let least = skipped + rotary.rotated();
        assert!(
            least <= heads.dim,
            "heads of {} cannot turn {} behind {skipped}",
            heads.dim,
            rotary.rotated()
        );
        assert!(skipped == 0 || self.is_cpu(), "a GPU turns the first elements of heads");
        assert!(rotary.pairing == Pairing::Halves || self.is_cpu(), "a GPU does not turn neighbours");
        let rotation = Rotation { heads, skipped, positions, rotary, turn, x };
        on_backend!(self, Memory, rotate(rotation));
    }
}

#[cfg(test)]
mod tests;
