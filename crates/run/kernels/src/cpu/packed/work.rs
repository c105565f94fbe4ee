//! How products with packed weights are cut into chunks, and what a member does with one.

use std::ops::Range;

use super::layout::{LANES, Weight};
use super::unit::{BUFFER, Unit};
use crate::cpu::Cpu;
use crate::cpu::linear::At;
use crate::cpu::multiply::{Panels, Scratch};
use crate::cpu::share::SharedRows;
use crate::{Element, MatrixMut, Rows, WeightFormat};

/// Rows of a chunk, at most: a block of them stays in the second-level cache, with their sums for [`TOGETHER`] panels.
const ROWS: usize = 512;
/// Rows from which on several panels are summed together, block by block, so that blocks of rows are reused.
const MANY: usize = 65;
/// Panels that are summed together.
const TOGETHER: usize = 8;
/// Bytes of a weight that a member streams at a time, at least, where there are enough for all.
const RUN: usize = 1 << 17;
/// Chunks that a product is cut into where it is large enough.
const CHUNKS: usize = 16;

/// Some rows with one weight, and where their left panels and chunks are among those of all products.
#[derive(Debug, Clone)]
pub(crate) struct RowsJob {
    weight: usize,
    rows: Range<usize>,
    /// Rows of a left panel.
    panel_rows: usize,
    first_panel: usize,
    end_panel: usize,
    first_cell: usize,
    end_cell: usize,
    /// Left panels of a chunk, and panels of the weight.
    chunk: [usize; 2],
    first_chunk: usize,
    end_chunk: usize,
}

impl RowsJob {
    fn after(
        before: Option<&RowsJob>,
        unit: Unit,
        (index, rows): (usize, Range<usize>),
        weight: &Weight<'_>,
    ) -> Self {
        let (panel, cell, chunk) =
            before.map_or((0, 0, 0), |job| (job.end_panel, job.end_cell, job.end_chunk));
        let panel_rows = unit.panel_rows(rows.len());
        let panels = rows.len().div_ceil(panel_rows);
        let cells = panels * panel_rows * unit.row_cells(weight.inputs);
        let left = (ROWS / panel_rows).max(1);
        let right = weights_of_chunk(rows.len(), weight);
        let chunks = panels.div_ceil(left) * weight.panels().div_ceil(right);
        Self {
            weight: index,
            rows,
            panel_rows,
            first_panel: panel,
            end_panel: panel + panels,
            first_cell: cell,
            // Whole cache lines.
            end_cell: (cell + cells).next_multiple_of(16),
            chunk: [left, right],
            first_chunk: chunk,
            end_chunk: chunk + chunks,
        }
    }

    /// Panels that are summed together.
    fn together(&self) -> usize {
        if self.rows.len() < MANY { 1 } else { self.chunk[1].min(TOGETHER) }
    }

    /// Sums that a member keeps at a time.
    fn sums(&self) -> usize {
        self.chunk[0].min(self.end_panel - self.first_panel) * self.panel_rows * LANES * self.together()
    }
}

/// Panels of a weight that one chunk multiplies by.
fn weights_of_chunk(rows: usize, weight: &Weight<'_>) -> usize {
    let fair = (weight.panels() / CHUNKS).max(1);
    if rows >= MANY { fair.min(TOGETHER) } else { fair.min(RUN.div_ceil(weight.panel_bytes().max(1))) }
}

impl Cpu {
    /// Multiplies rows by weights of a format, and calls `finish(at, sums, out)` for each line of sums with the elements of the output
    /// where it belongs.
    #[inline(always)]
    pub(super) fn multiply_packed<'w, X: Element, O: Element>(
        &self,
        (x, weight): (Rows<&[X]>, &(dyn Fn(usize) -> Weight<'w> + Sync)),
        (format, products): (WeightFormat, impl Iterator<Item = (usize, Range<usize>)>),
        out: MatrixMut<'_, O>,
        finish: impl Fn(At, &[f32], &mut [O]) + Sync,
    ) {
        let (unit, level, out) = (self.unit::<X>(format), self.level, self.rows_mut(out));
        let Scratch { panels, sums, jobs, .. } = &mut *self.scratch.borrow_mut();
        jobs.clear();
        for product in products.filter(|(_, rows)| !rows.is_empty()) {
            let weight = weight(product.0);
            jobs.push(RowsJob::after(jobs.last(), unit, product, &weight));
        }
        let Some(last) = jobs.last().cloned() else { return };
        let work = Work { unit, jobs, weight };
        let left = panels.first(last.end_cell);
        work.pack(self, x, left);
        let (left, sums) = (&*left, sums.first(work.member_cells() * self.pool.size()));
        self.with_scratch(last.end_chunk, (), sums, |chunk, (), scratch| {
            work.chunk(chunk, left, scratch, &|at, sums, stride, columns, rows| {
                inlined!(level.vectorized(|| {
                    for (row, sums) in sums.chunks_exact(stride).enumerate().take(rows) {
                        let at = At { row: at.row + row, column: at.column };
                        #[expect(unsafe_code, reason = "the output is shared out as its chunks are")]
                        // SAFETY: each chunk is done once, and no row and panel are in two of them.
                        let out = unsafe { out.part_of_row(at.row, at.column, columns) };
                        finish(at, &sums[..columns], out);
                    }
                }));
            });
        });
    }
}

/// Takes the sums of a panel: where they begin, the sums, how far their rows lie apart, how many columns and rows count.
type Finish<'f> = &'f dyn Fn(At, &[f32], usize, usize, usize);

/// What the members of the thread pool share.
struct Work<'a, 'w> {
    unit: Unit,
    jobs: &'a [RowsJob],
    weight: &'a (dyn Fn(usize) -> Weight<'w> + Sync),
}

impl Work<'_, '_> {
    /// Packs the rows of all jobs: by the thread pool where there are many.
    fn pack<X: Element>(&self, cpu: &Cpu, x: Rows<&[X]>, to: &mut [f32]) {
        let panels = self.jobs.last().map_or(0, |job| job.end_panel);
        let to = SharedRows::new(to, 1, 1);
        let pack = |panel: usize| {
            let job = &self.jobs[self.jobs.partition_point(|job| job.end_panel <= panel)];
            let cells = job.panel_rows * self.unit.row_cells(x.columns);
            let number = panel - job.first_panel;
            let start = job.first_cell + number * cells;
            #[expect(unsafe_code, reason = "panels lie apart")]
            // SAFETY: each panel is packed once, and no two of them overlap.
            let to = unsafe { to.range(start..start + cells) };
            self.unit.pack_left(x.rows(job.rows.clone()), number * job.panel_rows, job.panel_rows, to);
        };
        // Waking the thread pool takes longer than packing a few rows.
        if x.rows <= 32 { (0..panels).for_each(pack) } else { cpu.pool.run(panels, &|panel, _| pack(panel)) }
    }

    /// Cells that any chunk needs; whole cache lines, so that members do not share any.
    fn member_cells(&self) -> usize {
        let sums = self.jobs.iter().map(RowsJob::sums).max().unwrap_or_default();
        (BUFFER + sums).next_multiple_of(16)
    }

    fn chunk(&self, chunk: usize, left: &[f32], scratch: &mut [f32], finish: Finish<'_>) {
        let job = &self.jobs[self.jobs.partition_point(|job| job.end_chunk <= chunk)];
        let weight = (self.weight)(job.weight);
        let across = weight.panels().div_ceil(job.chunk[1]);
        let (down, across) = ((chunk - job.first_chunk) / across, (chunk - job.first_chunk) % across);
        let lefts = job.end_panel - job.first_panel;
        let lefts = down * job.chunk[0]..((down + 1) * job.chunk[0]).min(lefts);
        let rights = across * job.chunk[1]..((across + 1) * job.chunk[1]).min(weight.panels());
        let (buffer, sums) = scratch.split_at_mut(BUFFER);
        for start in rights.clone().step_by(job.together()) {
            let rights = start..(start + job.together()).min(rights.end);
            self.sum(job, &weight, [&lefts, &rights], left, buffer, sums);
            let strips = sums.chunks_exact(lefts.len() * job.panel_rows * LANES);
            let first_row = lefts.start * job.panel_rows;
            let rows = (lefts.len() * job.panel_rows).min(job.rows.len() - first_row);
            for (panel, strip) in rights.zip(strips) {
                let at = At { row: job.rows.start + first_row, column: panel * LANES };
                finish(at, strip, LANES, LANES.min(weight.outputs - at.column), rows);
            }
        }
    }

    /// Sums some left panels with some panels of the weight, block by block of the depth.
    fn sum(
        &self,
        job: &RowsJob,
        weight: &Weight<'_>,
        [lefts, rights]: [&Range<usize>; 2],
        left: &[f32],
        buffer: &mut [f32],
        sums: &mut [f32],
    ) {
        let stride = job.panel_rows * self.unit.row_cells(weight.inputs);
        let left = &left[job.first_cell + lefts.start * stride..][..lefts.len() * stride];
        let block = self.unit.block(job.rows.len());
        for first in (0..weight.inputs.max(1)).step_by(block) {
            let depth = block.min(weight.inputs - first);
            let skipped = job.panel_rows * self.unit.row_cells(first);
            let left = Panels { cells: &left[skipped..], stride, count: lefts.len() };
            let strips = sums.chunks_exact_mut(lefts.len() * job.panel_rows * LANES);
            for (panel, strip) in rights.clone().zip(strips) {
                self.unit.multiply((job.panel_rows, left), (weight, panel), (first, depth), buffer, strip);
            }
        }
    }
}
