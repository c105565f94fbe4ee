//! Keys and values in blocks, and attention over them.

use super::attention::WARPS;
use super::driver::Argument::Words;
use super::driver::Launch;
use super::kernel::{THREADS, address, blocks_of, flag, two, word};
use super::source::Source::{Decode, Paged};
use super::{Cuda, format_of};
use crate::{Element, Matrix, MatrixMut, PagedRows, PagedShape, Sight, View, ViewMut};

/// Tokens of a span, and rows of a sequence up to which its spans are shared out; the kernel has the same.
const SPAN: usize = 128;
const FEW_ROWS: usize = 4;

impl Cuda {
    pub(crate) fn store_kv<E: Element>(
        &self,
        shape: &PagedShape,
        keys: Matrix<'_, E>,
        values: Matrix<'_, E>,
        rows: PagedRows<'_>,
        pool: ViewMut<'_, E>,
    ) {
        let (k, v) = (self.rows(&keys), self.rows(&values));
        let words = words_of(shape, &rows, keys.rows, Sight::All, pool.len());
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

    pub(crate) fn paged_attention<E: Element>(
        &self,
        shape: &PagedShape,
        queries: Matrix<'_, E>,
        rows: PagedRows<'_>,
        sight: Sight,
        pool: View<'_, E>,
        out: MatrixMut<'_, E>,
    ) {
        let (q, to, formats) = (self.rows(&queries), self.rows_mut(&out), [format_of::<E>(); 3]);
        let (words, steps) = (words_of(shape, &rows, queries.rows, sight, pool.len()), self.steps(&rows));
        let group = shape.heads / shape.kv_heads;
        let has_kernel = matches!(shape.head_dim, 64 | 128 | 256) && matches!(group, 1..=8);
        let sequences = rows.contexts.len();
        // As many rows as sequences: one each, or the kernel reports it.
        let is_decoding = queries.rows <= FEW_ROWS || queries.rows == sequences;
        if has_kernel {
            let spans = (rows.tables.len() * shape.block_tokens).div_ceil(SPAN) + 2 * sequences;
            let items = FEW_ROWS.min(queries.rows) * spans;
            let partial = self.partial.of(&self.context, 4 * items * shape.heads * (shape.head_dim + 2));
            let blocks = items.min((self.context.processors * 8).div_ceil(shape.kv_heads));
            let launch = Launch {
                grid: [blocks, shape.kv_heads, 1],
                block: [SPAN, 1, 1],
                shared: 4 * sequences.max(1),
            };
            self.kernel(Decode, formats, "decode").sized(shape.head_dim, group).launch(
                launch,
                &[
                    Words(&words),
                    Words(&steps),
                    address(q.address),
                    word(q.stride),
                    address(self.at(pool)),
                    address(partial),
                ],
            );
            let block = [shape.head_dim.max(32), 1, 1];
            let launch = Launch { grid: [sequences, shape.heads, 1], block, shared: 0 };
            self.kernel(Decode, formats, "merge_spans").sized(shape.head_dim, group).launch(
                launch,
                &[
                    Words(&words),
                    Words(&steps),
                    address(partial),
                    address(to.address),
                    word(to.stride),
                    flag(is_decoding),
                    address(self.report.address()),
                ],
            );
            if is_decoding {
                return;
            }
        }
        let grid = [queries.rows.div_ceil(WARPS), shape.heads, 1];
        self.kernel(Paged, formats, "attend_blocks").launch(
            Launch { grid, ..blocks_of(1, 32 * WARPS) },
            &[
                Words(&words),
                Words(&steps),
                address(q.address),
                word(q.stride),
                address(self.at(pool)),
                address(to.address),
                word(to.stride),
                word(if has_kernel { FEW_ROWS } else { 0 }),
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
                let code = self.context.driver().device_to_device(to, from, bytes, self.context.stream());
                self.context.must(code, "copy a block");
            }
        }
    }

    /// As the kernels' struct has it.
    fn steps(&self, rows: &PagedRows<'_>) -> [u64; 4] {
        [rows.starts, rows.contexts, rows.table_starts, rows.tables].map(|view| self.at(view))
    }
}

/// As the kernels' struct has it.
fn words_of(shape: &PagedShape, rows: &PagedRows<'_>, count: usize, sight: Sight, pool: usize) -> [u64; 9] {
    let PagedShape { heads, kv_heads, head_dim, scale, block_tokens } = *shape;
    let (kind, reach) = match sight {
        Sight::All => (0, 0),
        Sight::Window(size) => (1, size),
        Sight::Chunk(size) => (2, size),
    };
    let blocks = pool / shape.block_len();
    let sizes = [heads, kv_heads, head_dim, block_tokens, blocks, rows.contexts.len(), count];
    let mut words = [0; 9];
    words.iter_mut().zip(sizes).for_each(|(word, size)| *word = size as u64);
    words[7] = two(scale.to_bits(), kind);
    words[8] = reach as u64;
    words
}
