//! Operators that pass over memory once.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use bedplate_random::nth;

use super::Cpu;
use crate::device::{NONE, share_of_digest};
use crate::{Accumulate, BufferValue, Element, Matrix, MatrixMut, Pattern, View, ViewMut, WrongWords};

/// Elements that one member takes at a time: large enough to stream, small enough to share out.
pub(crate) const CHUNK: usize = 1 << 15;

impl Cpu {
    pub(crate) fn fill<E: Element>(&self, to: ViewMut<'_, E>, value: f32) {
        inlined!(self.in_chunks(to.len(), CHUNK, self.shared(to, 1), |_, to| to.fill(E::narrow(value))));
    }

    pub(crate) fn fill_normal<E: Element>(&self, to: ViewMut<'_, E>, key: u64, first: usize, deviation: f64) {
        inlined!(self.in_chunks(to.len(), CHUNK, self.shared(to, 1), |range, to| {
            for (place, to) in (first + range.start..).zip(to) {
                *to = E::narrow((deviation * normal(key, place as u64)) as f32);
            }
        }));
    }

    pub(crate) fn argmax(&self, logits: Matrix<'_, f32>, to: ViewMut<'_, u32>) {
        let logits = self.rows(logits);
        for (row, to) in self.slice_mut(to).iter_mut().enumerate() {
            let mut most = f32::NEG_INFINITY;
            *to = NONE;
            for (place, logit) in (0..).zip(logits.row(row)) {
                if *logit > most {
                    (*to, most) = (place, *logit);
                }
            }
        }
    }

    pub(crate) fn copy<E: BufferValue>(&self, x: View<'_, E>, to: ViewMut<'_, E>) {
        let x = self.slice(x);
        inlined!(
            self.in_chunks(x.len(), CHUNK, self.shared(to, 1), |range, to| to.copy_from_slice(&x[range]))
        );
    }

    pub(crate) fn add<A: Element, B: Element>(&self, x: View<'_, A>, to: ViewMut<'_, B>) {
        let x = self.slice(x);
        inlined!(self.in_chunks(x.len(), CHUNK, self.shared(to, 1), |range, to| {
            for (to, x) in to.iter_mut().zip(&x[range]) {
                *to = B::narrow(to.widen() + x.widen());
            }
        }));
    }

    pub(crate) fn put_rows<A: Element, B: Element>(
        &self,
        x: Matrix<'_, A>,
        mode: Accumulate,
        to: MatrixMut<'_, B>,
    ) {
        let x = self.rows(x);
        inlined!(self.in_rows(x.shape(), self.rows_mut(to), |row, to| {
            for (to, x) in to.iter_mut().zip(x.row(row)) {
                mode.apply(to, x.widen());
            }
        }));
    }

    pub(crate) fn scale<A: Element, B: Element>(&self, x: View<'_, A>, factor: f32, to: ViewMut<'_, B>) {
        let x = self.slice(x);
        inlined!(self.in_chunks(x.len(), CHUNK, self.shared(to, 1), |range, to| {
            for (to, x) in to.iter_mut().zip(&x[range]) {
                *to = B::narrow(factor * x.widen());
            }
        }));
    }

    pub(crate) fn multiply_by<E: Element>(&self, to: ViewMut<'_, E>, factor: f32) {
        inlined!(self.in_chunks(to.len(), CHUNK, self.shared(to, 1), |_, to| {
            to.iter_mut().for_each(|to| *to = E::narrow(factor * to.widen()));
        }));
    }

    pub(crate) fn sum(&self, of: View<'_, f32>) -> f64 {
        self.slice(of).iter().map(|value| f64::from(*value)).sum()
    }

    pub(crate) fn sum_of_squares<E: Element>(&self, of: View<'_, E>) -> f64 {
        let of = self.slice(of);
        inlined!(self.sum_of_chunks(of.len(), CHUNK, |range| squares(&of[range])))
    }

    pub(crate) fn first_non_finite<E: Element>(&self, x: View<'_, E>) -> Option<usize> {
        let x = self.slice(x);
        let first = AtomicUsize::new(usize::MAX);
        inlined!(self.in_chunks(x.len(), CHUNK, (), |range, ()| {
            if has_non_finite(&x[range.clone()]) {
                let place = range.clone().find(|place| !x[*place].widen().is_finite());
                first.fetch_min(place.unwrap_or(usize::MAX), Ordering::Relaxed);
            }
        }));
        Some(first.into_inner()).filter(|place| *place != usize::MAX)
    }
}

impl Cpu {
    pub(crate) fn fill_pattern(&self, to: ViewMut<'_, u64>, pattern: Pattern) {
        inlined!(self.in_chunks(to.len(), CHUNK, self.shared(to, 1), |range, to| {
            for (place, to) in (range.start as u64..).zip(to) {
                *to = pattern.word(place);
            }
        }));
    }

    pub(crate) fn find_wrong_words(&self, of: View<'_, u64>, pattern: Pattern) -> Option<WrongWords> {
        let of = self.slice(of);
        let (count, first) = (AtomicU64::new(0), AtomicU64::new(u64::MAX));
        inlined!(self.in_chunks(of.len(), CHUNK, (), |range, ()| {
            let words = (range.start as u64..).zip(&of[range]);
            for (place, _) in words.filter(|(place, word)| **word != pattern.word(*place)) {
                count.fetch_add(1, Ordering::Relaxed);
                first.fetch_min(place, Ordering::Relaxed);
            }
        }));
        let wrong = WrongWords { count: count.into_inner(), first: first.into_inner() };
        Some(wrong).filter(|wrong| wrong.count > 0)
    }

    /// Of a whole number of words.
    pub(crate) fn digest(&self, of: View<'_, u8>) -> u64 {
        let (words, _) = self.slice(of).as_chunks::<4>();
        let digest = AtomicU64::new(0);
        inlined!(self.in_chunks(words.len(), CHUNK, (), |range, ()| {
            let shares = (range.start as u64..).zip(&words[range]);
            let shares = shares.map(|(place, word)| share_of_digest(u32::from_le_bytes(*word), place));
            digest.fetch_add(shares.fold(0, u64::wrapping_add), Ordering::Relaxed);
        }));
        digest.into_inner()
    }
}

/// The `place`-th number of a normal distribution, by Box and Muller.
fn normal(key: u64, place: u64) -> f64 {
    let bits = |offset: u64| nth(key, 2 * place + offset);
    let uniform = |bits: u64| ((bits >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    (-2.0 * uniform(bits(0)).ln()).sqrt() * (std::f64::consts::TAU * uniform(bits(1))).cos()
}

#[inline(always)]
fn squares<E: Element>(of: &[E]) -> f64 {
    const LANES: usize = 32;
    let mut lanes = [0.0f64; LANES];
    let whole = of.len() / LANES * LANES;
    for start in (0..whole).step_by(LANES) {
        let of = &of[start..][..LANES];
        for lane in 0..LANES {
            lanes[lane] += f64::from(of[lane].widen()) * f64::from(of[lane].widen());
        }
    }
    for (lane, value) in lanes.iter_mut().zip(&of[whole..]) {
        *lane += f64::from(value.widen()) * f64::from(value.widen());
    }
    lanes.iter().sum()
}

/// All are looked at, so that the loop becomes vector code.
#[inline(always)]
fn has_non_finite<E: Element>(x: &[E]) -> bool {
    const EXPONENT: u32 = 0x7f80_0000;
    x.iter().fold(false, |found, x| found | (x.widen().to_bits() & EXPONENT == EXPONENT))
}
