//! Tokens sampled by chance, a row after the other.

use super::Cpu;
use crate::device::{Candidates, NONE, SampleParams};
use crate::{Matrix, View, ViewMut};

impl Cpu {
    pub(crate) fn sample(&self, logits: Matrix<'_, f32>, samples: View<'_, u32>, to: ViewMut<'_, u32>) {
        let (logits, samples, to) = (self.rows(logits), self.slice(samples), self.slice_mut(to));
        for words in samples.as_chunks::<{ SampleParams::WORDS }>().0 {
            let [row, top_k, top_p, reach, _, temperature, low, high] = *words;
            let chance = u64::from(low) | u64::from(high) << 32;
            let row = row as usize;
            let elements = logits.row(row);
            let most = elements.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            to[row] = NONE;
            if most > f32::NEG_INFINITY {
                let [top_p, reach, temperature] = [top_p, reach, temperature].map(f32::from_bits);
                let mut candidates = Candidates::new(elements, most, reach, temperature);
                candidates.cut(top_k, top_p);
                to[row] = candidates.at(chance).unwrap_or(NONE);
            }
        }
    }
}
