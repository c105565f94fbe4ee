//! Operators that pass over memory once.

use super::driver::Argument;
use super::kernel::{THREADS, address, blocks_of, flag, float, word};
use super::source::KernelFormat;
use super::source::KernelSource::Stream;
use super::{Cuda, format_of};
use crate::{Accumulate, BufferValue, Element, Matrix, MatrixMut, Pattern, View, ViewMut, WrongWords};

/// Elements that one block of threads sums up; the kernel has the same.
const CHUNK: usize = 1 << 15;

impl Cuda {
    pub(crate) fn fill<E: Element>(&self, to: ViewMut<'_, E>, value: f32) {
        let (at, len, formats) = (self.at_mut(&to), to.len(), [format_of::<E>(); 3]);
        let arguments = [address(at), word(len), float(value), flag(is_wide(&[at]))];
        self.kernel(Stream, formats, "fill").over(len.div_ceil(8), &arguments);
    }

    pub(crate) fn fill_normal<E: Element>(&self, to: ViewMut<'_, E>, key: u64, first: usize, deviation: f64) {
        let (at, len) = (self.at_mut(&to), to.len());
        let deviation = Argument::Word(deviation.to_bits());
        let arguments = [address(at), word(len), Argument::Word(key), word(first), deviation];
        self.kernel(Stream, [format_of::<E>(); 3], "normal").over(len, &arguments);
    }

    pub(crate) fn argmax(&self, logits: Matrix<'_, f32>, to: ViewMut<'_, u32>) {
        let (from, (rows, columns)) = (self.rows(&logits), logits.shape());
        let arguments = [address(from.address), word(from.stride), word(columns), address(self.at_mut(&to))];
        self.kernel(Stream, [KernelFormat::F32; 3], "argmax").launch(blocks_of(rows, 1024), &arguments);
    }

    pub(crate) fn copy<E: BufferValue>(&self, x: View<'_, E>, to: ViewMut<'_, E>) {
        let (from, to, bytes) = (self.at(x), self.at_mut(&to), x.len() * size_of::<E>());
        self.context.copy(from, to, bytes);
    }

    pub(crate) fn add<A: Element, B: Element>(&self, x: View<'_, A>, to: ViewMut<'_, B>) {
        self.scale_or_add(x, (1.0, true), to);
    }

    pub(crate) fn scale<A: Element, B: Element>(&self, x: View<'_, A>, factor: f32, to: ViewMut<'_, B>) {
        self.scale_or_add(x, (factor, false), to);
    }

    fn scale_or_add<A: Element, B: Element>(
        &self,
        x: View<'_, A>,
        (factor, add): (f32, bool),
        to: ViewMut<'_, B>,
    ) {
        let (from, at, len) = (self.at(x), self.at_mut(&to), x.len());
        let formats = [format_of::<A>(), format_of::<B>(), format_of::<B>()];
        let keep = float(if add { 1.0 } else { 0.0 });
        let arguments =
            [address(from), float(factor), keep, address(at), word(len), flag(is_wide(&[from, at]))];
        self.kernel(Stream, formats, "scale").over(len.div_ceil(8), &arguments);
    }

    pub(crate) fn put_rows<A: Element, B: Element>(
        &self,
        x: Matrix<'_, A>,
        mode: Accumulate,
        to: MatrixMut<'_, B>,
    ) {
        let (from, at, (rows, columns)) = (self.rows(&x), self.rows_mut(&to), x.shape());
        let wide = from.is_aligned() && at.is_aligned() && columns.is_multiple_of(8);
        let formats = [format_of::<A>(), format_of::<B>(), format_of::<B>()];
        self.kernel(Stream, formats, "put_rows").over(
            rows * columns.div_ceil(8),
            &[
                address(from.address),
                word(from.stride),
                address(at.address),
                word(at.stride),
                word(rows),
                word(columns),
                flag(mode == Accumulate::Add),
                flag(wide),
            ],
        );
    }

    pub(crate) fn sum(&self, of: View<'_, f32>) -> f64 {
        self.sum_by("plain_sum", of)
    }

    pub(crate) fn sum_of_squares<E: Element>(&self, of: View<'_, E>) -> f64 {
        self.sum_by("squares", of)
    }

    fn sum_by<E: Element>(&self, name: &'static str, of: View<'_, E>) -> f64 {
        let (chunks, formats) = (of.len().div_ceil(CHUNK), [format_of::<E>(); 3]);
        let partial = self.partial.of(&self.context, 8 * chunks.max(1));
        let result = self.report.result_address();
        let arguments = [address(self.at(of)), word(of.len()), address(partial)];
        self.kernel(Stream, formats, name).launch(blocks_of(chunks, THREADS), &arguments);
        let arguments = [address(partial), word(chunks), address(result)];
        self.kernel(Stream, formats, "sum_partial").launch(blocks_of(1, THREADS), &arguments);
        self.wait();
        if self.context.has_failed() { f64::NAN } else { f64::from_bits(self.report.result()) }
    }

    pub(crate) fn first_non_finite<E: Element>(&self, x: View<'_, E>) -> Option<usize> {
        let first = self.partial.of(&self.context, 8);
        self.context.set_bytes(first, 0xff, 8);
        let arguments = [address(self.at(x)), word(x.len()), address(first)];
        self.kernel(Stream, [format_of::<E>(); 3], "non_finite").over(x.len(), &arguments);
        let mut found = [u64::MAX];
        self.context.read(first, &mut found);
        self.wait();
        (found[0] != u64::MAX).then_some(found[0] as usize)
    }
}

impl Cuda {
    pub(crate) fn fill_pattern(&self, to: ViewMut<'_, u64>, pattern: Pattern) {
        let (at, len) = (self.at_mut(&to), to.len());
        let arguments =
            [address(at), word(len), Argument::Word(pattern.seed), Argument::Word(pattern.mask())];
        self.kernel(Stream, [KernelFormat::F32; 3], "fill_pattern").over(len, &arguments);
    }

    pub(crate) fn find_wrong_words(&self, of: View<'_, u64>, pattern: Pattern) -> Option<WrongWords> {
        let found = self.partial.of(&self.context, 16);
        self.context.set_bytes(found, 0, 8);
        self.context.set_bytes(found + 8, 0xff, 8);
        let seed = Argument::Word(pattern.seed);
        let arguments =
            [address(self.at(of)), word(of.len()), seed, Argument::Word(pattern.mask()), address(found)];
        self.kernel(Stream, [KernelFormat::F32; 3], "wrong_words").over(of.len(), &arguments);
        let mut words = [0; 2];
        self.context.read(found, &mut words);
        self.wait();
        let [count, first] = words;
        (count > 0).then_some(WrongWords { count, first })
    }

    /// Of a whole number of words.
    pub(crate) fn digest(&self, of: View<'_, u8>) -> u64 {
        let sum = self.partial.of(&self.context, 8);
        self.context.set_bytes(sum, 0, 8);
        let words = of.len() / 4;
        let arguments = [address(self.at(of)), word(words), address(sum)];
        self.kernel(Stream, [KernelFormat::F32; 3], "digest").over(words, &arguments);
        let mut digest = [0];
        self.context.read(sum, &mut digest);
        self.wait();
        digest[0]
    }
}

/// Whether all addresses are multiples of sixteen bytes.
pub(super) fn is_wide(addresses: &[u64]) -> bool {
    addresses.iter().all(|address| address.is_multiple_of(16))
}
