//! Work that the thread pool shares out, and the pieces of outputs that go with it.
//!
//! An operator names its outputs as [`SharedRows`] and writes only to the pieces that it is handed: here is where ranges are
//! cut so that no two members get the same number. Sums over rows do not depend on which member made them.

use std::marker::PhantomData;
use std::ops::Range;

use super::Cpu;
use super::multiply::fetch;
use crate::{Accumulate, Element};

/// Elements of the rows that one member takes at a time: they stay in its first cache.
const ROWS_CHUNK: usize = 1 << 13;

/// Chunks that sums are cut into, at most: as many partial sums are kept.
const PARTIAL_SUMS: usize = 64;

/// Rows of elements that several members write, each to rows of its own.
pub(crate) struct SharedRows<'a, E> {
    start: *mut E,
    len: usize,
    columns: usize,
    stride: usize,
    elements: PhantomData<&'a mut [E]>,
}

/// Outputs of an operator, of which members get pieces.
pub(crate) trait Outputs: Sync {
    type Piece;

    /// The elements of some rows: from the first of the first row to the last of the last one.
    ///
    /// # Safety
    ///
    /// Nothing else may hold a piece of any of these rows.
    #[expect(unsafe_code, reason = "the compiler cannot see that rows differ")]
    unsafe fn piece(&self, rows: Range<usize>) -> Self::Piece;
}

impl<'a, E> SharedRows<'a, E> {
    pub(crate) fn new(elements: &'a mut [E], columns: usize, stride: usize) -> Self {
        Self::at(elements.as_mut_ptr(), elements.len(), columns, stride)
    }

    /// Elements that are borrowed mutably for `'a`; taking a piece of them says so again.
    pub(crate) fn at(start: *mut E, len: usize, columns: usize, stride: usize) -> Self {
        Self { start, len, columns, stride, elements: PhantomData }
    }

    /// Panics when the range is outside.
    ///
    /// # Safety
    ///
    /// Nothing else may hold any number of the range.
    #[expect(unsafe_code, reason = "the compiler cannot see that ranges differ")]
    #[inline(always)]
    pub(crate) unsafe fn range(&self, range: Range<usize>) -> &'a mut [E] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        // SAFETY: the range lies in the slice, and the caller has it alone.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }

    /// Some columns of a row.
    ///
    /// # Safety
    ///
    /// Nothing else may hold any of these elements.
    #[expect(unsafe_code, reason = "the compiler cannot see that ranges differ")]
    #[inline(always)]
    pub(crate) unsafe fn part_of_row(&self, row: usize, column: usize, count: usize) -> &'a mut [E] {
        let start = row * self.stride + column;
        // SAFETY: as the caller upholds.
        unsafe { self.range(start..start + count) }
    }

    /// Asks for some columns of some rows that will be written.
    pub(crate) fn fetch(&self, rows: Range<usize>, column: usize, count: usize) {
        for row in rows {
            fetch::to_write(self.start.wrapping_add(row * self.stride + column), count);
        }
    }
}

#[expect(unsafe_code, reason = "parts of a slice may go to several threads")]
// SAFETY: a caller that takes a part has it alone, by the contract of `range`, so this is `split_at_mut` over threads.
unsafe impl<E: Send> Sync for SharedRows<'_, E> {}

#[expect(unsafe_code, reason = "as the trait has it")]
impl<'a, E: Send> Outputs for SharedRows<'a, E> {
    type Piece = &'a mut [E];

    #[inline(always)]
    unsafe fn piece(&self, rows: Range<usize>) -> &'a mut [E] {
        let start = rows.start * self.stride;
        let end = if rows.is_empty() { start } else { (rows.end - 1) * self.stride + self.columns };
        // SAFETY: as the caller upholds.
        unsafe { self.range(start..end) }
    }
}

/// An operator without outputs by rows, or outputs that belong together.
macro_rules! outputs_of_several {
    ($($name:ident)*) => {
        #[expect(unsafe_code, reason = "as the trait has it")]
        impl<$($name: Outputs),*> Outputs for ($($name,)*) {
            type Piece = ($($name::Piece,)*);

            #[inline(always)]
            #[allow(non_snake_case, clippy::unused_unit, reason = "types and values share their names")]
            unsafe fn piece(&self, rows: Range<usize>) -> Self::Piece {
                let ($($name,)*) = self;
                let _ = &rows;
                // SAFETY: as the caller upholds.
                ($(unsafe { $name.piece(rows.clone()) },)*)
            }
        }
    };
}

outputs_of_several!();
outputs_of_several!(A B);
outputs_of_several!(A B C);

impl Accumulate {
    #[inline(always)]
    pub(crate) fn apply<E: Element>(self, to: &mut E, value: f32) {
        *to = E::narrow(match self {
            Accumulate::Replace => value,
            Accumulate::Add => to.widen() + value,
        });
    }
}

#[expect(unsafe_code, reason = "hands out pieces")]
impl Cpu {
    /// Calls `work` with ranges of at most `chunk` that cover `0..len` and their pieces, shared out and compiled for the
    /// processor.
    #[inline(always)]
    pub(crate) fn in_chunks<O: Outputs>(
        &self,
        len: usize,
        chunk: usize,
        outputs: O,
        work: impl Fn(Range<usize>, O::Piece) + Sync,
    ) {
        let level = self.level;
        self.pool.run(len.div_ceil(chunk), &|index, _| {
            let range = index * chunk..((index + 1) * chunk).min(len);
            // SAFETY: the thread pool does each index once, and their ranges do not overlap.
            let piece = unsafe { outputs.piece(range.clone()) };
            inlined!(level.vectorized(|| work(range, piece)));
        });
    }

    /// Calls `work` with each row and its pieces, shared out and compiled for the processor. `columns` says how much work a
    /// row is.
    #[inline(always)]
    pub(crate) fn in_rows<O: Outputs>(
        &self,
        (rows, columns): (usize, usize),
        outputs: O,
        work: impl Fn(usize, O::Piece) + Sync,
    ) {
        inlined!(self.in_chunks(rows, (ROWS_CHUNK / columns.max(1)).max(1), (), |range, ()| {
            for row in range {
                // SAFETY: the ranges of chunks do not overlap, so each row comes once.
                work(row, unsafe { outputs.piece(row..row + 1) });
            }
        }));
    }

    /// Calls `work` with each chunk, its piece and a share of `scratch` that no other member has meanwhile.
    pub(crate) fn with_scratch<O: Outputs>(
        &self,
        chunks: usize,
        outputs: O,
        scratch: &mut [f32],
        work: impl Fn(usize, O::Piece, &mut [f32]) + Sync,
    ) {
        let share = scratch.len() / self.pool.size();
        let scratch = SharedRows::new(scratch, share, share);
        self.pool.run(chunks, &|chunk, member| {
            // SAFETY: the thread pool does each chunk once.
            let piece = unsafe { outputs.piece(chunk..chunk + 1) };
            // SAFETY: a member does one chunk at a time.
            work(chunk, piece, unsafe { scratch.piece(member..member + 1) });
        });
    }

    /// Calls `work` with each row and its pieces, and adds to `totals` what it adds to sums of the same lengths. The
    /// order in which sums are made depends on `rows` alone.
    #[inline(always)]
    pub(crate) fn sum_over_rows<O: Outputs, const N: usize>(
        &self,
        rows: usize,
        outputs: O,
        totals: [&mut [f32]; N],
        work: impl Fn(usize, O::Piece, &mut [&mut [f32]; N]) + Sync,
    ) {
        let lens = totals.each_ref().map(|total| total.len());
        let width: usize = lens.iter().sum();
        let chunk = rows.div_ceil(PARTIAL_SUMS).max(16);
        let chunks = rows.div_ceil(chunk);
        let mut sums = self.partial_sums.borrow_mut();
        let sums = sums.first(chunks * width);
        inlined!(self.in_chunks(chunks, 1, SharedRows::new(sums, width, width), |index, mut sums| {
            sums.fill(0.0);
            let mut sums = lens.map(
                #[inline(always)]
                |len| sums.split_off_mut(..len).expect("sums of all totals"),
            );
            for row in index.start * chunk..(index.end * chunk).min(rows) {
                // SAFETY: the ranges of chunks do not overlap, so each row comes once.
                work(row, unsafe { outputs.piece(row..row + 1) }, &mut sums);
            }
        }));
        let mut start = 0;
        for total in totals {
            let end = start + total.len();
            self.add_rows(&sums[start.min(sums.len())..], width, total);
            start = end;
        }
    }

    /// The sum of `term` over ranges of `chunk`, of which there are not more than [`PARTIAL_SUMS`], in this order.
    #[inline(always)]
    pub(crate) fn sum_of_chunks(
        &self,
        len: usize,
        least_chunk: usize,
        term: impl Fn(Range<usize>) -> f64 + Sync,
    ) -> f64 {
        let mut sums = [0.0; PARTIAL_SUMS];
        let chunk = len.div_ceil(PARTIAL_SUMS).max(least_chunk);
        inlined!(
            self.in_chunks(len.div_ceil(chunk), 1, SharedRows::new(&mut sums, 1, 1), |index, sum| sum[0] =
                term(index.start * chunk..(index.end * chunk).min(len)))
        );
        sums.iter().sum()
    }

    /// Adds rows that lie `stride` apart to `total`, the first one first.
    #[inline(always)]
    fn add_rows(&self, rows: &[f32], stride: usize, total: &mut [f32]) {
        inlined!(self.in_chunks(total.len(), 512, SharedRows::new(total, 1, 1), |range, total| {
            for row in rows.chunks(stride.max(1)) {
                total.iter_mut().zip(&row[range.clone()]).for_each(|(total, term)| *total += term);
            }
        }));
    }
}
