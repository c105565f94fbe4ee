//! Operators that pass over memory once: filling, adding, converting, sums of squares.

use bedplate_breakdown::Part;

use crate::{Device, Element, View, ViewMut};

/// Numbers that one member takes at a time: large enough to stream, small enough to share out.
pub(crate) const CHUNK: usize = 1 << 15;

impl Device {
    pub fn fill<E: Element>(&self, to: ViewMut<'_, E>, value: f32) {
        let to = SharedMut::new(to.into_host());
        self.time(Part::Memory, || {
            self.in_chunks(to.len(), CHUNK, |range| to.range(range).fill(E::narrow(value)));
        });
    }

    /// Rounds or widens numbers from one format to another. Panics when the lengths differ.
    pub fn convert<A: Element, B: Element>(&self, from: View<'_, A>, to: ViewMut<'_, B>) {
        let (from, to) = (from.host(), SharedMut::new(to.into_host()));
        assert_eq!(from.len(), to.len(), "numbers to convert");
        self.time(Part::Memory, || {
            self.in_chunks(to.len(), CHUNK, |range| {
                for (to, from) in to.range(range.clone()).iter_mut().zip(&from[range]) {
                    *to = B::narrow(from.widen());
                }
            });
        });
    }

    /// The sum of squares, in an order that depends on the length alone.
    pub fn sum_of_squares<E: Element>(&self, of: View<'_, E>) -> f64 {
        let of = of.host();
        let mut sums = [0.0; 64];
        let chunk = of.len().div_ceil(sums.len()).max(CHUNK);
        let cells = SharedMut::new(&mut sums);
        self.time(Part::Memory, || {
            self.in_chunks(of.len(), chunk, |range| {
                let mut lanes = [0.0f64; 16];
                for piece in of[range.clone()].chunks(16) {
                    for (lane, value) in lanes.iter_mut().zip(piece) {
                        *lane += f64::from(value.widen()) * f64::from(value.widen());
                    }
                }
                cells.range(range.start / chunk..range.start / chunk + 1)[0] = lanes.iter().sum();
            });
        });
        sums.iter().sum()
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
    use crate::{Bf16, Buffer, Device};

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
