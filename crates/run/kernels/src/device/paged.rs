//! Keys and values in blocks, and attention over the blocks of a sequence wherever they lie.
//!
//! A layer's *pool* is one buffer of blocks of equal size. A block holds the keys and values of [`PagedShape::block_tokens`] neighbouring
//! tokens of one sequence, in an order that is the device's own: to everyone else it is [`PagedShape::block_len`] elements that can be copied
//! as they are. A sequence has a table of blocks; what lies in them is the same for every sequence that shares a prefix.

use bedplate_breakdown::Part;

use super::Backend;
use crate::{Device, Element, Heads, Matrix, MatrixMut, Rotary, Turn, View, ViewMut};

/// The heads of a layer and the size of its blocks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PagedShape {
    pub heads: usize,
    /// Divides `heads`; that many neighbours share a key and a value.
    pub kv_heads: usize,
    pub head_dim: usize,
    /// What scores are multiplied by; usually one over the square root of `head_dim`.
    pub scale: f32,
    /// What scores are bent to stay below; 0 leaves them as they are. On the processor only.
    pub cap: f32,
    pub block_tokens: usize,
    pub format: KvFormat,
}

/// How keys and values lie in a pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum KvFormat {
    /// In the format of the pool.
    #[default]
    Stored,
    /// Two to a place of bf16: numbers of e4m3, and for each token's key and value of a head a power of two as scale.
    Fp8,
    /// One vector for each token, which is its key and its value (latent attention): there is one key head. On the processor only.
    Latent,
}

impl PagedShape {
    /// Elements of a block: keys and values.
    pub fn block_len(&self) -> usize {
        match self.format {
            KvFormat::Stored => 2 * self.kv_heads * self.head_dim * self.block_tokens,
            KvFormat::Fp8 => self.kv_heads * (self.head_dim + 1) * self.block_tokens,
            KvFormat::Latent => self.head_dim * self.block_tokens,
        }
    }
}

/// The rows of a step: those of each sequence lie together and are consecutive tokens of it.
#[derive(Debug, Clone, Copy)]
pub struct PagedRows<'a> {
    /// The first row of each sequence, and behind the last one the number of rows.
    pub starts: View<'a, u32>,
    /// The position of each sequence's first row: how many tokens lie before it.
    pub contexts: View<'a, u32>,
    /// Where the blocks of each sequence begin in `tables`, and behind the last one how many there are.
    pub table_starts: View<'a, u32>,
    /// The blocks of all sequences, each in the order of its tokens.
    pub tables: View<'a, u32>,
}

impl PagedRows<'_> {
    fn check(&self) {
        let sequences = self.contexts.len();
        assert_eq!([self.starts.len(), self.table_starts.len()], [sequences + 1; 2], "sequences of a step");
    }
}

/// Which earlier tokens a row sees, itself included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sight {
    All,
    /// The last so many.
    Window(usize),
    /// Those since the last multiple of so many.
    Chunk(usize),
}

impl Sight {
    /// The first position that a row at `position` sees.
    pub fn first(self, position: usize) -> usize {
        match self {
            Sight::All => 0,
            Sight::Window(size) => (position + 1).saturating_sub(size),
            Sight::Chunk(size) => position / size * size,
        }
    }
}

pub(crate) struct StoreKv<'a, E> {
    pub(crate) shape: &'a PagedShape,
    pub(crate) keys: Matrix<'a, E>,
    pub(crate) values: Matrix<'a, E>,
    pub(crate) rows: PagedRows<'a>,
    pub(crate) pool: ViewMut<'a, E>,
}

pub(crate) struct PagedForward<'a, E> {
    pub(crate) shape: &'a PagedShape,
    pub(crate) queries: Matrix<'a, E>,
    pub(crate) rows: PagedRows<'a>,
    pub(crate) sight: Sight,
    pub(crate) pool: View<'a, E>,
    /// A score of each head that takes its share of the weights and gives nothing.
    pub(crate) sinks: Option<View<'a, E>>,
    pub(crate) out: MatrixMut<'a, E>,
}

impl Device {
    /// Whether this device has attention over a pool of this shape and format, with activations of `E`.
    pub fn has_kv<E: Element>(&self, shape: &PagedShape) -> bool {
        match &self.backend {
            Backend::Cpu(_) => shape.format != KvFormat::Fp8,
            Backend::Cuda(cuda) => {
                shape.cap == 0.0 && shape.format != KvFormat::Latent && cuda.has_kv::<E>(shape)
            }
        }
    }

    /// Panics where [`has_kv`](Self::has_kv) says no.
    fn check_kv<E: Element>(&self, shape: &PagedShape, pool: usize) {
        assert!(self.has_kv::<E>(shape), "no attention over keys and values of {shape:?} on this device");
        assert_eq!(pool % shape.block_len(), 0, "a pool has whole blocks");
    }

    /// Puts the keys and values of all rows into the blocks of their sequences; of latents the keys alone. Panics where a table lacks a block.
    pub fn store_kv<E: Element>(
        &self,
        shape: &PagedShape,
        keys: Matrix<'_, E>,
        values: Matrix<'_, E>,
        rows: PagedRows<'_>,
        pool: ViewMut<'_, E>,
    ) {
        rows.check();
        assert_eq!(keys.columns, shape.kv_heads * shape.head_dim, "columns of keys");
        assert_eq!(keys.shape(), values.shape(), "keys and values");
        self.check_kv::<E>(shape, pool.len());
        let store = StoreKv { shape, keys, values, rows, pool };
        on_backend!(self, Memory, store_kv(store));
    }

    /// Turns the queries and keys of all rows by their positions, and puts keys and values into the blocks of their sequences. `qkv` has queries, keys and values side
    /// by side, of which the keys may stay as they were. The position of a row is that in its sequence, as `positions` has it.
    pub fn turn_and_store<E: Element>(
        &self,
        shape: &PagedShape,
        positions: View<'_, u32>,
        rotary: &Rotary,
        mut qkv: MatrixMut<'_, E>,
        rows: PagedRows<'_>,
        pool: ViewMut<'_, E>,
    ) {
        let PagedShape { heads, kv_heads, head_dim: dim, .. } = *shape;
        let (first, width) = (heads * dim, kv_heads * dim);
        assert_eq!(qkv.columns, first + 2 * width, "queries, keys and values");
        self.check_kv::<E>(shape, pool.len());
        rows.check();
        if let Backend::Cuda(cuda) = &self.backend {
            let fused = || cuda.turn_and_store(shape, rotary, &qkv, rows, &pool);
            if cuda.time(Part::Memory, fused) {
                return;
            }
        }
        let turned = Heads { first: 0, count: heads + kv_heads, dim };
        self.rotate(&turned, positions, rotary, Turn::Forward, qkv.reborrow());
        let (keys, values) = (first..first + width, first + width..first + 2 * width);
        let all = qkv.matrix();
        self.store_kv(shape, all.columns(keys), all.columns(values), rows, pool);
    }

    /// Attention of each row over the tokens of its sequence up to its own, whose keys and values are in the pool. A row's result
    /// depends on its sequence alone, not on which rows are computed with it.
    pub fn paged_attention<E: Element>(
        &self,
        shape: &PagedShape,
        queries: Matrix<'_, E>,
        rows: PagedRows<'_>,
        sight: Sight,
        pool: View<'_, E>,
        out: MatrixMut<'_, E>,
    ) {
        self.paged_attention_with(shape, queries, rows, sight, pool, None, out);
    }

    /// The same where each head may have a [sink](Device::sink), on the processor only.
    #[expect(clippy::too_many_arguments, reason = "what attention reads and writes")]
    pub fn paged_attention_with<E: Element>(
        &self,
        shape: &PagedShape,
        queries: Matrix<'_, E>,
        rows: PagedRows<'_>,
        sight: Sight,
        pool: View<'_, E>,
        sinks: Option<View<'_, E>>,
        out: MatrixMut<'_, E>,
    ) {
        rows.check();
        assert!(sinks.is_none_or(|sinks| sinks.len() == shape.heads), "a sink for each head");
        assert!(sinks.is_none() || self.is_cpu(), "a GPU has no attention sinks");
        assert_eq!(shape.heads % shape.kv_heads, 0, "query heads per key head");
        assert_eq!(queries.columns, shape.heads * shape.head_dim, "columns of queries");
        assert_eq!(out.shape(), queries.shape(), "attention's output");
        self.check_kv::<E>(shape, pool.len());
        let attention = PagedForward { shape, queries, rows, sight, pool, sinks, out };
        on_backend!(self, Compute, paged_attention(attention));
    }

    /// Copies blocks of a pool, `from` to `to`, one pair after the other.
    pub fn copy_blocks<E: Element>(&self, block_len: usize, pairs: &[(u32, u32)], pool: ViewMut<'_, E>) {
        assert_eq!(pool.len() % block_len, 0, "a pool has whole blocks");
        let blocks = pool.len() / block_len;
        let is_inside = |block: u32| (block as usize) < blocks;
        assert!(pairs.iter().all(|(from, to)| is_inside(*from) && is_inside(*to)), "blocks of a pool");
        on_backend!(self, Memory, copy_blocks(block_len, pairs, pool));
    }
}

#[cfg(test)]
mod tests;
