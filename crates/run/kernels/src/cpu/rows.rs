//! Work over the rows of matrices, shared out; sums over rows that do not depend on who did them.

use std::ops::Range;

use crate::cpu::stream::SharedMut;
use crate::{Device, Element, Into, Matrix, MatrixMut};

/// Numbers of the rows that one member takes at a time: they stay in its first cache.
const ROWS_CHUNK: usize = 1 << 13;

/// Chunks that sums over rows are cut into, at most: as many partial sums are kept.
const PARTIAL_SUMS: usize = 64;

/// Rows of a matrix that several members write, each to rows of its own.
pub(crate) struct SharedRows<'a, E> {
    numbers: SharedMut<'a, E>,
    columns: usize,
    stride: usize,
}

impl<'a, E> SharedRows<'a, E> {
    /// Members must ask for different rows.
    #[inline(always)]
    pub(crate) fn row(&self, row: usize) -> &'a mut [E] {
        let start = row * self.stride;
        self.numbers.range(start..start + self.columns)
    }
}

impl<'a, E> MatrixMut<'a, E> {
    pub(crate) fn into_shared(self) -> SharedRows<'a, E> {
        assert!(self.stride >= self.columns || self.rows <= 1, "rows of a matrix overlap");
        SharedRows {
            numbers: SharedMut::new(self.view.into_host()),
            columns: self.columns,
            stride: self.stride,
        }
    }
}

impl<'a, E: Copy> Matrix<'a, E> {
    #[inline(always)]
    pub(crate) fn row(self, row: usize) -> &'a [E] {
        &self.view.host()[row * self.stride..][..self.columns]
    }
}

impl Into {
    #[inline(always)]
    pub(crate) fn put<E: Element>(self, to: &mut E, value: f32) {
        *to = E::narrow(match self {
            Into::Replace => value,
            Into::Add => to.widen() + value,
        });
    }
}

impl Device {
    /// Calls `work` with ranges that cover `0..rows`, shared out and compiled for the processor.
    #[inline(always)]
    pub(crate) fn in_rows(&self, rows: usize, columns: usize, work: impl Fn(Range<usize>) + Sync) {
        self.in_chunks(rows, (ROWS_CHUNK / columns.max(1)).max(1), work);
    }

    /// Adds to `totals` what `work` adds, for a range of rows, to sums of the same length that are zero before. The
    /// ranges and the order in which their sums are added depend on `rows` alone.
    #[inline(always)]
    pub(crate) fn sum_over_rows<const N: usize>(
        &self,
        rows: usize,
        totals: [&mut [f32]; N],
        work: impl Fn(Range<usize>, [&mut [f32]; N]) + Sync,
    ) {
        let lens = totals.each_ref().map(|total| total.len());
        let width: usize = lens.iter().sum();
        let chunk = rows.div_ceil(PARTIAL_SUMS).max(16);
        self.partial_sums.with(rows.div_ceil(chunk) * width, |sums| {
            let shared = SharedMut::new(sums);
            self.in_chunks(
                rows,
                chunk,
                #[inline(always)]
                |range| {
                    let mut start = range.start / chunk * width;
                    work(
                        range,
                        lens.map(
                            #[inline(always)]
                            |len| {
                                let sums = shared.range(start..start + len);
                                sums.fill(0.0);
                                start += len;
                                sums
                            },
                        ),
                    );
                },
            );
            let mut start = 0;
            for total in totals {
                self.add_rows(&sums[start.min(sums.len())..], width, total);
                start += total.len();
            }
        });
    }

    /// The sum of `term` over rows, in an order that depends on `rows` alone.
    #[inline(always)]
    pub(crate) fn sum_of_rows(&self, rows: usize, term: impl Fn(usize) -> f32 + Sync) -> f64 {
        let mut sums = [0.0; PARTIAL_SUMS];
        let chunk = rows.div_ceil(PARTIAL_SUMS).max(1);
        let cells = SharedMut::new(&mut sums);
        self.in_chunks(
            rows,
            chunk,
            #[inline(always)]
            |range| {
                let cell = range.start / chunk;
                cells.range(cell..cell + 1)[0] = range.map(|row| f64::from(term(row))).sum();
            },
        );
        sums.iter().sum()
    }

    /// Adds rows that lie `stride` apart to `total`, the first one first.
    #[inline(always)]
    fn add_rows(&self, rows: &[f32], stride: usize, total: &mut [f32]) {
        let shared = SharedMut::new(total);
        self.in_chunks(
            shared.len(),
            512,
            #[inline(always)]
            |range| {
                let total = shared.range(range.clone());
                for row in rows.chunks(stride.max(1)) {
                    total.iter_mut().zip(&row[range.clone()]).for_each(|(total, term)| *total += term);
                }
            },
        );
    }
}
