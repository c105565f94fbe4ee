//! Keys and values in blocks, and attention over them.

use super::attention::WARPS;
use super::driver::Argument::{Map, Words};
use super::driver::KernelLaunch;
use super::kernel::{THREADS, address, blocks_of, flag, two, word};
use super::linear::Side;
use super::memory::MatrixLines;
use super::source::KernelFormat;
use super::source::KernelSource::{Decode, FlashForward, Paged};
use super::{Cuda, format_of};
use crate::device::{PagedForward, StoreKv};
use crate::{Element, KvFormat, MatrixMut, PagedRows, PagedShape, Rotary, Sight, ViewMut};

/// Tokens of a span, and rows of a sequence up to which its spans are shared out; the kernel has the same.
const SPAN: usize = 128;
const FEW_ROWS: usize = 4;
/// Blocks of the kernel on tensor cores that a multiprocessor holds at once.
const RESIDENT: usize = 2;
/// Rows and keys of a tile where keys are gathered.
const TILE: usize = 128;

impl Cuda {
    pub(crate) fn store_kv<E: Element>(&self, store: StoreKv<'_, E>) {
        let StoreKv { shape, keys, values, rows, pool } = store;
        let (k, v) = (self.rows(&keys), self.rows(&values));
        let words = self.words_of::<E>(shape, &rows, keys.rows, Sight::All, pool.len());
        if shape.format == KvFormat::Fp8 {
            return self.store_fp8(
                words,
                &rows,
                keys.rows,
                [None, Some(k), Some(v)],
                None,
                self.at_mut(&pool),
            );
        }
        self.kernel(Paged, [format_of::<E>(); 3], "store_kv").launch(
            blocks_of(keys.rows, THREADS),
            &[
                Words(&words),
                Words(&self.steps(&rows)),
                address(k.address),
                word(k.stride),
                address(v.address),
                word(v.stride),
                address(self.at_mut(&pool)),
                address(self.report.address()),
            ],
        );
    }

    /// Whether queries and keys were turned, and keys and values stored, in one go.
    pub(crate) fn turn_and_store<E: Element>(
        &self,
        shape: &PagedShape,
        rotary: &Rotary,
        qkv: &MatrixMut<'_, E>,
        rows: PagedRows<'_>,
        pool: &ViewMut<'_, E>,
    ) -> bool {
        let lines = self.rows_mut(qkv);
        let is_whole = 2 * rotary.pairs == shape.head_dim && rotary.pairs.is_multiple_of(8);
        if !is_whole || !lines.is_aligned() || !self.at_mut(pool).is_multiple_of(16) {
            return false;
        }
        let words = self.words_of::<E>(shape, &rows, qkv.rows, Sight::All, pool.len());
        if shape.format == KvFormat::Fp8 {
            let behind =
                |elements: usize| MatrixLines { address: lines.address + (2 * elements) as u64, ..lines };
            let keys = shape.heads * shape.head_dim;
            let parts = [lines, behind(keys), behind(keys + shape.kv_heads * shape.head_dim)].map(Some);
            self.store_fp8(words, &rows, qkv.rows, parts, Some(rotary), self.at_mut(pool));
            return true;
        }
        self.kernel(Paged, [format_of::<E>(); 3], "turn_and_store").launch(
            blocks_of(qkv.rows, THREADS),
            &[
                Words(&words),
                Words(&self.steps(&rows)),
                address(lines.address),
                word(lines.stride),
                address(self.at(rotary.cosines.view())),
                address(self.at(rotary.sines.view())),
                word(rotary.max_positions()),
                address(self.at_mut(pool)),
                address(self.report.address()),
            ],
        );
        true
    }

    /// Keys and values of bf16 as e4m3; with a rotary, queries and keys are turned first.
    fn store_fp8(
        &self,
        words: [u64; 10],
        rows: &PagedRows<'_>,
        count: usize,
        parts: [Option<MatrixLines>; 3],
        rotary: Option<&Rotary>,
        pool: u64,
    ) {
        let [q, k, v] = parts.map(|lines| lines.map_or((0, 0), |lines| (lines.address, lines.stride)));
        let tables = rotary.map(|rotary| [&rotary.cosines, &rotary.sines].map(|table| self.at(table.view())));
        let [cosines, sines] = tables.unwrap_or_default();
        self.kernel(Paged, formats_of(KvFormat::Fp8, KernelFormat::Bf16), "store_fp8").launch(
            blocks_of(count, THREADS),
            &[
                Words(&words),
                Words(&self.steps(rows)),
                address(q.0),
                word(q.1),
                address(k.0),
                word(k.1),
                address(v.0),
                word(v.1),
                address(cosines),
                address(sines),
                word(rotary.map_or(0, Rotary::max_positions)),
                address(pool),
                address(self.report.address()),
            ],
        );
    }

    /// Those of fp8 are for Hopper, and for shapes that its kernels take.
    pub(crate) fn has_kv<E: Element>(&self, shape: &PagedShape) -> bool {
        let is_fitting = || self.is_hopper() && self.is_turned::<E>(shape) && shape.head_dim != 256;
        shape.format == KvFormat::Stored || is_fitting()
    }

    pub(crate) fn paged_attention<E: Element>(&self, attention: PagedForward<'_, E>) {
        let PagedForward { shape, queries, rows, sight, pool, out, .. } = attention;
        let (mut q, out) = (self.rows(&queries), self.side_mut(&out));
        let mut to = out.lines;
        // Those of fp8 have no kernel for odd addresses, at which nothing lies but in tests.
        let is_copied = shape.format == KvFormat::Fp8 && !(q.is_aligned() && to.is_aligned());
        if is_copied {
            let bytes = q.bytes * queries.rows * queries.columns;
            let scratch = self.sides[1].of(&self.context, 2 * bytes);
            let lines = |address| MatrixLines { address, stride: queries.columns, bytes: q.bytes };
            to = lines(scratch + bytes as u64);
            q = self.copied_rows(self.side(&queries), lines(scratch), out.format);
        }
        let task = Task {
            shape,
            format: format_of::<E>(),
            words: self.words_of::<E>(shape, &rows, queries.rows, sight, pool.len()),
            steps: self.steps(&rows),
            q,
            pool: self.at(pool),
            out: to,
            rows: queries.rows,
            sequences: rows.contexts.len(),
            entries: rows.tables.len(),
            is_turned: self.is_turned::<E>(shape),
        };
        let has_kernel = if task.is_turned { task.q.is_aligned() } else { has_size(shape) };
        // As many rows as sequences: one each, or the kernel reports it.
        let is_decoding = has_kernel && (task.rows <= FEW_ROWS || task.rows == task.sequences);
        if has_kernel {
            self.attend_few(&task, is_decoding);
        }
        let is_flash = matches!(shape.head_dim, 64 | 128) && task.is_turned && has_kernel;
        match is_decoding {
            true => {}
            false if is_flash && self.is_hopper() && self.attend_gathered(&task, sight) => {}
            false => self.attend_plainly(&task, if has_kernel { FEW_ROWS } else { 0 }),
        }
        if is_copied {
            self.copied_rows(Side { lines: to, ..out }, out.lines, out.format);
        }
    }

    /// Sequences with few rows: their spans are shared out, and merged.
    fn attend_few(&self, task: &Task<'_>, is_alone: bool) {
        let (shape, formats) = (task.shape, formats_of(task.shape.format, task.format));
        let group = shape.heads / shape.kv_heads;
        let span = if task.is_turned { 2 * SPAN } else { SPAN };
        let spans = (task.entries * shape.block_tokens).div_ceil(span) + 2 * task.sequences;
        let items = FEW_ROWS.min(task.rows) * spans;
        let sums = 4 * items * shape.heads * (shape.head_dim + 2);
        let partial = self.partial.of(&self.context, sums + 4 * task.sequences);
        let firsts = partial + sums as u64;
        let of_processor = if task.is_turned { RESIDENT } else { 6 };
        let blocks = items.min((self.context.processors * of_processor).div_ceil(shape.kv_heads));
        let launch = KernelLaunch {
            grid: [blocks, shape.kv_heads, 1],
            block: [SPAN, 1, 1],
            shared: match task.is_turned {
                true => (8 * task.sequences).next_multiple_of(16) + staged(shape.format, shape.head_dim),
                false => 4 * task.sequences,
            },
        };
        let name = if task.is_turned { "decode_tiles" } else { "decode" };
        self.kernel(Decode, formats, name).sized(shape.head_dim, group).launch(
            launch,
            &[
                Words(&task.words),
                Words(&task.steps),
                address(task.q.address),
                word(task.q.stride),
                address(task.pool),
                address(partial),
                address(firsts),
            ],
        );
        let block = [shape.head_dim.max(32), 1, 1];
        let launch = KernelLaunch { grid: [task.sequences, shape.heads, 1], block, shared: 0 };
        self.kernel(Decode, formats, "merge_spans").sized(shape.head_dim, group).launch(
            launch,
            &[
                Words(&task.words),
                Words(&task.steps),
                address(partial),
                address(firsts),
                address(task.out.address),
                word(task.out.stride),
                flag(is_alone),
                address(self.report.address()),
            ],
        );
    }

    /// Sequences with many rows on Hopper: keys and values are gathered, and attended to as matrices. Not done where the memory for it is used up and there is
    /// another way, which blocks of fp8 do not have.
    fn attend_gathered(&self, task: &Task<'_>, sight: Sight) -> bool {
        let shape = task.shape;
        let (width, tokens) = (shape.kv_heads * shape.head_dim, task.entries * shape.block_tokens);
        let bytes = 4 * tokens * width;
        let keys = match self.sides[0].try_of(&self.context, bytes) {
            Ok(keys) => keys,
            Err(_) if shape.format != KvFormat::Fp8 => return false,
            Err(error) => {
                self.context.keep(error);
                return true;
            }
        };
        let values = keys + (2 * tokens * width) as u64;
        let common = [Words(&task.words), Words(&task.steps), address(task.pool), address(keys)];
        let [words, steps, pool, to] = common;
        let name = if shape.format == KvFormat::Fp8 { "gather_fp8" } else { "gather_blocks" };
        self.kernel(Paged, formats_of(shape.format, task.format), name).launch(
            blocks_of(task.entries, THREADS),
            &[words, steps, pool, to, address(values), word(FEW_ROWS)],
        );
        let columns = shape.heads * shape.head_dim;
        let q = self.context.tiles(task.q.address, task.rows, columns, task.q.stride, TILE as u32);
        let [k, v] = [keys, values].map(|at| self.context.tiles(at, tokens, width, width, TILE as u32));
        let tiles = task.rows.div_ceil(TILE) + task.sequences.min(task.rows / (FEW_ROWS + 1));
        let shared = 5 * TILE * shape.head_dim * 2 + 1024;
        let grid = [(shape.heads * tiles).min(self.context.processors), 1, 1];
        let launch = KernelLaunch { grid, shared, ..blocks_of(1, 384) };
        let (kind, reach) = numbers_of(sight);
        let scale = u64::from((shape.scale * std::f32::consts::LOG2_E).to_bits());
        let shape_words = [0, two(shape.heads as u32, shape.kv_heads as u32), scale];
        let [starts, contexts, table_starts, _] = task.steps;
        let ragged = [
            starts,
            contexts,
            table_starts,
            two(task.sequences as u32, shape.block_tokens as u32),
            two(kind, reach as u32),
            FEW_ROWS as u64,
        ];
        self.kernel(FlashForward, [task.format; 3], "flash_ragged").sized(shape.head_dim, 0).launch(
            launch,
            &[
                Map(&q),
                Map(&k),
                Map(&v),
                Words(&shape_words),
                Words(&ragged),
                address(task.out.address),
                word(task.out.stride),
            ],
        );
        true
    }

    fn attend_plainly(&self, task: &Task<'_>, skip: usize) {
        let grid = [task.rows.div_ceil(WARPS), task.shape.heads, 1];
        self.kernel(Paged, [task.format; 3], "attend_blocks").launch(
            KernelLaunch { grid, ..blocks_of(1, 32 * WARPS) },
            &[
                Words(&task.words),
                Words(&task.steps),
                address(task.q.address),
                word(task.q.stride),
                address(task.pool),
                address(task.out.address),
                word(task.out.stride),
                word(skip),
            ],
        );
    }

    pub(crate) fn copy_blocks<E: Element>(
        &self,
        block_len: usize,
        pairs: &[(u32, u32)],
        pool: ViewMut<'_, E>,
    ) {
        let (pool, bytes) = (self.at_mut(&pool), block_len * size_of::<E>());
        for (from, to) in pairs {
            let [from, to] = [from, to].map(|block| pool + (*block as usize * bytes) as u64);
            if from != to {
                self.context.copy(from, to, bytes);
            }
        }
    }

    /// Whether values lie dimension by dimension, as the tensor cores read them.
    fn is_turned<E: Element>(&self, shape: &PagedShape) -> bool {
        let fits = has_size(shape) && shape.head_dim <= 128 && shape.block_tokens.is_multiple_of(16);
        /// What the kernel has besides.
        const FIXED: usize = 12 << 10;
        let fits = fits && staged(shape.format, shape.head_dim) + FIXED <= self.context.shared;
        format_of::<E>() == KernelFormat::Bf16 && fits
    }

    /// As the kernels' struct has it.
    fn words_of<E: Element>(
        &self,
        shape: &PagedShape,
        rows: &PagedRows<'_>,
        count: usize,
        sight: Sight,
        pool: usize,
    ) -> [u64; 10] {
        let PagedShape { heads, kv_heads, head_dim, scale, block_tokens, .. } = *shape;
        let (kind, reach) = numbers_of(sight);
        let blocks = pool / shape.block_len();
        let sizes = [heads, kv_heads, head_dim, block_tokens, blocks, rows.contexts.len(), count];
        let mut words = [0; 10];
        words.iter_mut().zip(sizes).for_each(|(word, size)| *word = size as u64);
        words[7] = two(scale.to_bits(), kind);
        words[8] = reach as u64;
        words[9] = u64::from(self.is_turned::<E>(shape));
        words
    }

    /// As the kernels' struct has it.
    fn steps(&self, rows: &PagedRows<'_>) -> [u64; 4] {
        [rows.starts, rows.contexts, rows.table_starts, rows.tables].map(|view| self.at(view))
    }
}

/// Attention over blocks.
struct Task<'a> {
    shape: &'a PagedShape,
    format: KernelFormat,
    words: [u64; 10],
    steps: [u64; 4],
    q: MatrixLines,
    pool: u64,
    out: MatrixLines,
    rows: usize,
    sequences: usize,
    /// Blocks of all tables.
    entries: usize,
    is_turned: bool,
}

/// Shared bytes of the kernel on tensor cores: four warps with three steps of sixteen tokens each.
fn staged(format: KvFormat, dim: usize) -> usize {
    let (width, scales) = if format == KvFormat::Fp8 { (1, 32) } else { (2, 0) };
    4 * 3 * (16 * (width * dim + 16) + 16 * width * dim + scales)
}

/// The formats of a kernel that reads or writes blocks.
fn formats_of(kv: KvFormat, format: KernelFormat) -> [KernelFormat; 3] {
    [format, format, if kv == KvFormat::Fp8 { KernelFormat::Fp8 } else { format }]
}

/// Whether there is a kernel for few rows with heads of this size.
fn has_size(shape: &PagedShape) -> bool {
    matches!(shape.head_dim, 64 | 128 | 256) && matches!(shape.heads / shape.kv_heads, 1..=8)
}

fn numbers_of(sight: Sight) -> (u32, usize) {
    match sight {
        Sight::All => (0, 0),
        Sight::Window(size) => (1, size),
        Sight::Chunk(size) => (2, size),
    }
}
