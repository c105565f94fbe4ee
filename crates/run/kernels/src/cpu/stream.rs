//! Operators that pass over memory once: filling, copying, adding, converting, sums of squares, looking for NaN.

use std::sync::atomic::{AtomicUsize, Ordering};

use bedplate_breakdown::Part;

use crate::{Device, Element, Value, View, ViewMut};

/// Numbers that one member takes at a time: large enough to stream, small enough to share out.
pub(crate) const CHUNK: usize = 1 << 15;

impl Device {
    pub fn fill<E: Element>(&self, to: ViewMut<'_, E>, value: f32) {
        let to = SharedMut::new(to.into_host());
        self.time(Part::Memory, || {
            self.in_chunks(
                to.len(),
                CHUNK,
                #[inline(always)]
                |range| to.range(range).fill(E::narrow(value)),
            );
        });
    }

    /// Panics when the lengths differ.
    pub fn copy<E: Value>(&self, x: View<'_, E>, to: ViewMut<'_, E>) {
        let (x, to) = (x.host(), SharedMut::new(to.into_host()));
        assert_eq!(x.len(), to.len(), "numbers to copy");
        self.time(Part::Memory, || {
            self.in_chunks(
                to.len(),
                CHUNK,
                #[inline(always)]
                |range| to.range(range.clone()).copy_from_slice(&x[range]),
            );
        });
    }

    /// `to += x`. Panics when the lengths differ.
    pub fn add<A: Element, B: Element>(&self, x: View<'_, A>, to: ViewMut<'_, B>) {
        let (x, to) = (x.host(), SharedMut::new(to.into_host()));
        assert_eq!(x.len(), to.len(), "numbers to add");
        self.time(Part::Memory, || {
            self.in_chunks(
                to.len(),
                CHUNK,
                #[inline(always)]
                |range| {
                    for (to, x) in to.range(range.clone()).iter_mut().zip(&x[range]) {
                        *to = B::narrow(to.widen() + x.widen());
                    }
                },
            );
        });
    }

    /// Rounds or widens numbers from one format to another. Panics when the lengths differ.
    pub fn convert<A: Element, B: Element>(&self, from: View<'_, A>, to: ViewMut<'_, B>) {
        let (from, to) = (from.host(), SharedMut::new(to.into_host()));
        assert_eq!(from.len(), to.len(), "numbers to convert");
        self.time(Part::Memory, || {
            self.in_chunks(
                to.len(),
                CHUNK,
                #[inline(always)]
                |range| {
                    for (to, from) in to.range(range.clone()).iter_mut().zip(&from[range]) {
                        *to = B::narrow(from.widen());
                    }
                },
            );
        });
    }

    /// The sum, in an order that depends on the length alone. For short lists: nothing is shared out.
    pub fn sum(&self, of: View<'_, f32>) -> f64 {
        self.time(Part::Memory, || of.host().iter().map(|value| f64::from(*value)).sum())
    }

    /// The sum of squares, in an order that depends on the length alone.
    pub fn sum_of_squares<E: Element>(&self, of: View<'_, E>) -> f64 {
        let of = of.host();
        let mut sums = [0.0; 64];
        let chunk = of.len().div_ceil(sums.len()).max(CHUNK);
        let cells = SharedMut::new(&mut sums);
        self.time(Part::Memory, || {
            self.in_chunks(
                of.len(),
                chunk,
                #[inline(always)]
                |range| {
                    let cell = range.start / chunk;
                    cells.range(cell..cell + 1)[0] = squares(&of[range]);
                },
            );
        });
        sums.iter().sum()
    }

    /// The place of the first infinity or NaN.
    pub fn first_non_finite<E: Element>(&self, x: View<'_, E>) -> Option<usize> {
        let x = x.host();
        let first = AtomicUsize::new(usize::MAX);
        self.time(Part::Memory, || {
            self.in_chunks(
                x.len(),
                CHUNK,
                #[inline(always)]
                |range| {
                    if has_non_finite(&x[range.clone()]) {
                        let place = range.clone().find(|place| !x[*place].widen().is_finite());
                        first.fetch_min(place.unwrap_or(usize::MAX), Ordering::Relaxed);
                    }
                },
            );
        });
        Some(first.into_inner()).filter(|place| *place != usize::MAX)
    }

    /// Calls `work` with ranges of at most `chunk` that cover `0..len`, shared out and compiled for the processor.
    #[inline(always)]
    pub(crate) fn in_chunks(&self, len: usize, chunk: usize, work: impl Fn(std::ops::Range<usize>) + Sync) {
        let level = self.level;
        self.team.run(len.div_ceil(chunk), &|index, _| {
            level.vectorized(
                #[inline(always)]
                || work(index * chunk..((index + 1) * chunk).min(len)),
            );
        });
    }
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

/// A slice that several members write, each to ranges of its own.
pub(crate) struct SharedMut<'a, E> {
    start: *mut E,
    len: usize,
    slice: std::marker::PhantomData<&'a mut [E]>,
}

impl<'a, E> SharedMut<'a, E> {
    pub(crate) fn new(slice: &'a mut [E]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), slice: std::marker::PhantomData }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Members must ask for ranges that do not overlap. Panics when the range is outside the slice.
    #[expect(unsafe_code, reason = "members write to ranges of their own")]
    #[inline(always)]
    pub(crate) fn range(&self, range: std::ops::Range<usize>) -> &'a mut [E] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        // SAFETY: the range lies in the slice; operators cut their work so that no two chunks share a number.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

#[expect(unsafe_code, reason = "parts of a slice may go to several threads")]
// SAFETY: the ranges handed out do not overlap, so this is `split_at_mut` over threads.
unsafe impl<E: Send> Sync for SharedMut<'_, E> {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::testing::{Random, on_any_processor};
    use crate::{Bf16, Buffer, Device, Element, View, ViewMut};

    fn check_sum<E: Element>(len: usize) {
        let random = &mut Random::new(len as u64);
        let (x, to): (Vec<E>, Vec<E>) = (random.numbers(len), random.numbers(len));
        let [copied, added] = on_any_processor(|device| {
            let (mut copied, mut added) = (to.clone(), to.clone());
            device.copy(View::of_host(&x), ViewMut::of_host(&mut copied));
            device.add(View::of_host(&x), ViewMut::of_host(&mut added));
            [copied, added]
        });
        let expected: Vec<E> = x.iter().zip(&to).map(|(a, b)| E::narrow(a.widen() + b.widen())).collect();
        assert_eq!((copied, added), (x, expected));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20))]
        #[test]
        fn copies_and_sums_cover_every_number(len in 0usize..100_000) {
            check_sum::<f32>(len);
            check_sum::<Bf16>(len);
        }

        #[test]
        fn the_first_number_that_is_none_is_found(
            len in 1usize..100_000, places in prop::collection::vec(0usize..100_000, 0..4)
        ) {
            let mut numbers = vec![f32::MAX; len];
            let bad = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
            for (place, bad) in places.iter().zip(bad) {
                numbers[*place % len] = bad;
            }
            let first = numbers.iter().position(|number| !number.is_finite());
            prop_assert_eq!(on_any_processor(|device| device.first_non_finite(View::of_host(&numbers))), first);
            let rounded: Vec<Bf16> = numbers.iter().map(|number| Bf16::from_f32(number * 0.5)).collect();
            prop_assert_eq!(on_any_processor(|device| device.first_non_finite(View::of_host(&rounded))), first);
        }
    }

    #[test]
    fn sums_do_not_depend_on_the_number_of_threads() {
        let values: Vec<f32> = (0..300_000).map(|index| (index as f32).sin()).collect();
        let sum = |threads| {
            let device = Device::cpu(threads);
            let mut buffer = Buffer::<f32>::zeros(values.len());
            device.write(buffer.view_mut(), &values);
            device.sum_of_squares(buffer.view())
        };
        assert_eq!(sum(1), sum(3));
        let plain: f64 = values.iter().map(|value| f64::from(*value).powi(2)).sum();
        assert!((sum(1) - plain).abs() < 1e-9 * plain);
    }

    #[test]
    fn converting_there_and_back_keeps_what_bf16_can_hold() {
        let device = Device::cpu(2);
        let (mut wide, mut narrow) = (Buffer::<f32>::zeros(100_000), Buffer::<Bf16>::zeros(100_000));
        device.fill(wide.view_mut(), 1.5);
        device.convert(wide.view(), narrow.view_mut());
        device.fill(wide.view_mut(), 0.0);
        device.convert(narrow.view(), wide.view_mut());
        assert_eq!(device.sum_of_squares(wide.view()), 225_000.0);
    }
}
