//! Keys and values in blocks, and attention over them.
//!
//! A row's result depends on its own sequence alone. Tokens are taken in *pieces* whose ends are fixed by position, and pieces in
//! *spans*, also fixed by position. Each span is summed from nothing, and spans are merged in their order: whether one member goes through all spans
//! of some rows, or several members take a span each, the same elements meet in the same order. Rows that are computed together share
//! nothing but what is read.

mod attend;
mod blocks;
mod lanes;
mod softmax;
#[cfg(target_arch = "x86_64")]
mod tiles;

pub(crate) use attend::SequenceJob;

use super::Cpu;
use super::share::SharedRows;
use crate::device::{PagedForward, StoreKv};
use crate::{Element, ViewMut};
use blocks::Steps;

/// Elements of keys and values up to which one member stores them all.
const FEW: usize = 1 << 14;

impl Cpu {
    pub(crate) fn store_kv<E: Element>(&self, store: StoreKv<'_, E>) {
        let (keys, values, shape) = (self.rows(store.keys), self.rows(store.values), store.shape);
        let (steps, order) = (Steps::new(self, store.rows, keys.rows), self.block_order::<E>(shape));
        let (half, pool) = (shape.head_dim * shape.block_tokens, self.shared(store.pool, 1));
        let parts = shape.block_len() / half;
        // A part is the keys or the values of a head: whatever the tables say, no two parts meet in a block.
        let store = |part: usize| {
            let head = part / 2 * shape.head_dim..(part / 2 + 1) * shape.head_dim;
            for sequence in 0..steps.sequences() {
                for (index, row) in steps.rows(sequence).enumerate() {
                    let position = steps.context(sequence) + index;
                    let block = steps.table(sequence)[position / shape.block_tokens] as usize;
                    let start = block * shape.block_len() + part * half;
                    #[expect(unsafe_code, reason = "parts of blocks lie apart")]
                    // SAFETY: each part is done once, and no two of them overlap.
                    let to = unsafe { pool.range(start..start + half) };
                    let slot = position % shape.block_tokens;
                    match part % 2 {
                        0 => order.put_key(shape, slot, &keys.row(row)[head.clone()], to),
                        _ => order.put_value(shape, slot, &values.row(row)[head.clone()], to),
                    }
                }
            }
        };
        match keys.rows * keys.columns {
            0..FEW => (0..parts).for_each(store),
            _ => self.pool.run(parts, &|part, _| store(part)),
        }
    }

    pub(crate) fn paged_attention<E: Element>(&self, attention: PagedForward<'_, E>) {
        let PagedForward { shape, queries, rows, sight, pool, sinks, out } = attention;
        let (queries, pool) = (self.rows(queries), self.slice(pool));
        let steps = Steps::new(self, rows, queries.rows);
        let out: SharedRows<'_, E> = self.rows_mut(out);
        self.attend(shape, (queries, steps, sight, pool), sinks.map(|sinks| self.slice(sinks)), &out);
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
