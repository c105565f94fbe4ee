//! Keys and values in blocks, and attention over them.

use super::Cpu;
use crate::{Element, Matrix, MatrixMut, PagedRows, PagedShape, Sight, View, ViewMut};

impl Cpu {
    pub(crate) fn store_kv<E: Element>(
        &self,
        shape: &PagedShape,
        keys: Matrix<'_, E>,
        values: Matrix<'_, E>,
        rows: PagedRows<'_>,
        pool: ViewMut<'_, E>,
    ) {
        let (keys, values, pool) = (self.rows(keys), self.rows(values), self.slice_mut(pool));
        let steps = Steps::new(self, rows);
        let width = shape.kv_heads * shape.head_dim;
        for row in 0..keys.rows {
            let (sequence, position) = steps.find(row);
            let at = steps.block(sequence, position / shape.block_tokens) * shape.block_len()
                + position % shape.block_tokens * 2 * width;
            pool[at..at + width].copy_from_slice(keys.row(row));
            pool[at + width..at + 2 * width].copy_from_slice(values.row(row));
        }
    }

    pub(crate) fn paged_attention<E: Element>(
        &self,
        shape: &PagedShape,
        queries: Matrix<'_, E>,
        rows: PagedRows<'_>,
        sight: Sight,
        pool: View<'_, E>,
        out: MatrixMut<'_, E>,
    ) {
        let (queries, pool, steps) = (self.rows(queries), self.slice(pool), Steps::new(self, rows));
        let (width, dim) = (shape.kv_heads * shape.head_dim, shape.head_dim);
        let (extent, out) = (out.shape(), self.rows_mut(out));
        inlined!(self.in_rows(extent, out, |row, out| {
            let (sequence, position) = steps.find(row);
            let places: Vec<usize> = (sight.first(position)..=position)
                .map(|at| {
                    steps.block(sequence, at / shape.block_tokens) * shape.block_len()
                        + at % shape.block_tokens * 2 * width
                })
                .collect();
            for head in 0..shape.heads {
                let query = &queries.row(row)[head * dim..(head + 1) * dim];
                let kv = head / (shape.heads / shape.kv_heads) * dim;
                let score = |place: &usize| {
                    let key = &pool[place + kv..place + kv + dim];
                    shape.scale * query.iter().zip(key).map(|(q, k)| q.widen() * k.widen()).sum::<f32>()
                };
                let scores: Vec<f32> = places.iter().map(score).collect();
                let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let whole: f32 = scores.iter().map(|score| (score - most).exp()).sum();
                for (at, out) in out[head * dim..(head + 1) * dim].iter_mut().enumerate() {
                    let terms = places.iter().zip(&scores).map(|(place, score)| {
                        (score - most).exp() / whole * pool[place + width + kv + at].widen()
                    });
                    *out = E::narrow(terms.sum());
                }
            }
        }));
    }

    pub(crate) fn copy_blocks<E: Element>(
        &self,
        block_len: usize,
        pairs: &[(u32, u32)],
        pool: ViewMut<'_, E>,
    ) {
        let pool = self.slice_mut(pool);
        for (from, to) in pairs {
            let from = *from as usize * block_len;
            pool.copy_within(from..from + block_len, *to as usize * block_len);
        }
    }
}

/// The rows of a step on the processor.
struct Steps<'a> {
    starts: &'a [u32],
    contexts: &'a [u32],
    table_starts: &'a [u32],
    tables: &'a [u32],
}

impl<'a> Steps<'a> {
    fn new(cpu: &Cpu, rows: PagedRows<'a>) -> Self {
        Self {
            starts: cpu.slice(rows.starts),
            contexts: cpu.slice(rows.contexts),
            table_starts: cpu.slice(rows.table_starts),
            tables: cpu.slice(rows.tables),
        }
    }

    /// The sequence of a row and its position there.
    fn find(&self, row: usize) -> (usize, usize) {
        let sequence = self.starts.partition_point(|start| *start as usize <= row) - 1;
        (sequence, self.contexts[sequence] as usize + row - self.starts[sequence] as usize)
    }

    fn block(&self, sequence: usize, index: usize) -> usize {
        let table = self.table_starts[sequence] as usize..self.table_starts[sequence + 1] as usize;
        self.tables[table][index] as usize
    }
}
