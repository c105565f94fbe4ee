//! Attention over grouped heads: Hopper's own kernels for bf16 heads of 64 and 128, a general kernel for everything else.

use super::driver::Argument::{Map, Words};
use super::driver::{KernelLaunch, TileMap};
use super::kernel::{THREADS, address, blocks_of, float, two, word};
use super::memory::MatrixLines;
use super::source::KernelFormat;
use super::source::KernelSource::{Attention, FlashBackward, FlashForward};
use super::{Cuda, format_of};
use crate::device::{AttentionBackward, AttentionForward, MergeParts};
use crate::{AttentionShape, Element, Matrix, MatrixMut, Qkv, VisibleKeys};

/// Warps of a block of the general kernels.
pub(super) const WARPS: usize = 4;
/// The largest head of the general kernels.
pub(super) const LARGEST_HEAD: usize = 256;
/// Queries of a tile forward and backward, and keys of a tile.
const QUERIES: usize = 128;
const QUERIES_BACKWARD: usize = 64;
const KEYS: usize = 128;

impl Cuda {
    pub(crate) fn attention<E: Element>(&self, attention: AttentionForward<'_, E>) {
        let AttentionForward { shape, qkv, seen, out, log_sums } = attention;
        let lines = qkv.lines(self);
        let (to, sums) = (self.rows_mut(&out), self.at_mut(&log_sums));
        let rows = qkv.queries.rows;
        if self.is_flash::<E>(shape, &[lines.queries, lines.keys, lines.values, to]) {
            return self.flash_forward(shape, rows, lines, seen, to, sums);
        }
        let (first, positions) = self.seen(seen);
        let [q, k, v] = [lines.queries, lines.keys, lines.values];
        let launch =
            KernelLaunch { grid: [rows.div_ceil(WARPS), shape.heads, 1], ..blocks_of(1, 32 * WARPS) };
        self.kernel(Attention, [format_of::<E>(); 3], "attend").launch(
            launch,
            &[
                Words(&words_of(shape, rows)),
                address(q.address),
                word(q.stride),
                address(k.address),
                word(k.stride),
                address(v.address),
                word(v.stride),
                address(first),
                address(positions),
                address(to.address),
                word(to.stride),
                address(sums),
            ],
        );
    }

    fn flash_forward(
        &self,
        shape: &AttentionShape,
        rows: usize,
        lines: Qkv<MatrixLines>,
        seen: VisibleKeys<'_>,
        out: MatrixLines,
        log_sums: u64,
    ) {
        let (sequences, dim) = (rows / shape.queries, shape.head_dim);
        let [q, k, v] = self.maps(shape, rows, lines, QUERIES as u32);
        let (first, positions) = self.seen(seen);
        let tiles = sequences * shape.heads * shape.queries.div_ceil(QUERIES);
        let grid = [tiles.min(self.context.processors), 1, 1];
        let shared = 5 * KEYS * dim * 2 + 1024;
        let launch = KernelLaunch { grid, shared, ..blocks_of(1, 384) };
        let words = flash_words(shape, shape.scale * std::f32::consts::LOG2_E);
        self.kernel(FlashForward, [KernelFormat::Bf16; 3], "flash_forward").sized(dim, 0).launch(
            launch,
            &[
                Map(&q),
                Map(&k),
                Map(&v),
                Words(&words),
                word(sequences),
                address(first),
                address(positions),
                address(out.address),
                word(out.stride),
                address(log_sums),
            ],
        );
    }

    /// Tiles of queries, keys and values.
    fn maps(
        &self,
        shape: &AttentionShape,
        rows: usize,
        lines: Qkv<MatrixLines>,
        queries: u32,
    ) -> [TileMap; 3] {
        let keys = rows / shape.queries * shape.keys;
        let of_keys = |lines: MatrixLines| {
            let columns = shape.kv_heads * shape.head_dim;
            self.context.tiles(lines.address, keys, columns, lines.stride, KEYS as u32)
        };
        let MatrixLines { address, stride, .. } = lines.queries;
        let of_queries = self.context.tiles(address, rows, shape.attended(), stride, queries);
        [of_queries, of_keys(lines.keys), of_keys(lines.values)]
    }

    /// Whether Hopper's kernels can do it.
    fn is_flash<E: Element>(&self, shape: &AttentionShape, lines: &[MatrixLines]) -> bool {
        let fits = matches!(shape.head_dim, 64 | 128) && format_of::<E>() == KernelFormat::Bf16;
        self.is_hopper() && fits && lines.iter().all(MatrixLines::is_aligned)
    }

    fn seen(&self, seen: VisibleKeys<'_>) -> (u64, u64) {
        (self.at(seen.first_keys), seen.positions.map_or(0, |positions| self.at(positions)))
    }

    pub(crate) fn merge<E: Element, O: Element>(&self, parts: MergeParts<'_, E, O>) {
        let MergeParts { part, part_log_sums, whole, log_sums } = parts;
        let heads = log_sums.len() / part.rows.max(1);
        let (from, to, dim) = (self.rows(&part), self.rows_mut(&whole), part.columns / heads.max(1));
        let launch = KernelLaunch { grid: [part.rows, heads, 1], ..blocks_of(1, 64) };
        self.kernel(Attention, [format_of::<E>(), format_of::<O>(), KernelFormat::F32], "merge").launch(
            launch,
            &[
                address(from.address),
                word(from.stride),
                address(self.at(part_log_sums)),
                address(to.address),
                word(to.stride),
                address(self.at_mut(&log_sums)),
                word(heads),
                word(dim),
            ],
        );
    }

    pub(crate) fn attention_backward<E: Element>(&self, attention: AttentionBackward<'_, E>) {
        let AttentionBackward { shape, qkv, seen, out, log_sums, d_out, d_qkv } = attention;
        let rows = qkv.queries.rows;
        let task = Task {
            shape,
            rows,
            lines: qkv.lines(self),
            out: self.rows(&out),
            d_out: self.rows(&d_out),
            gradients: d_qkv.lines(self),
            seen: self.seen(seen),
            log_sums: self.at(log_sums),
        };
        let (lines, gradients) = (task.lines, task.gradients);
        let all = [lines.queries, lines.keys, lines.values, task.out, task.d_out];
        let results = [gradients.queries, gradients.keys, gradients.values];
        if self.is_flash::<E>(shape, &all) && self.is_flash::<E>(shape, &results) {
            self.flash_backward(&task);
        } else {
            self.plain_backward(format_of::<E>(), &task);
        }
    }

    fn plain_backward(&self, format: KernelFormat, task: &Task<'_>) {
        let Task { shape, rows, lines, out, d_out, gradients, seen, log_sums } = *task;
        let delta = self.partial.of(&self.context, 4 * rows * shape.heads);
        let (words, formats) = (words_of(shape, rows), [format; 3]);
        let launch = |rows: usize, heads| KernelLaunch {
            grid: [rows.div_ceil(WARPS), heads, 1],
            ..blocks_of(1, 32 * WARPS)
        };
        let at = |lines: MatrixLines| [address(lines.address), word(lines.stride)];
        let ([out, out_stride], [d, d_stride]) = (at(out), at(d_out));
        self.kernel(Attention, formats, "deltas").launch(
            launch(rows, shape.heads),
            &[Words(&words), out, out_stride, d, d_stride, address(delta)],
        );
        let common = || {
            let ([q, qs], [k, ks], [v, vs]) = (at(lines.queries), at(lines.keys), at(lines.values));
            let ([d, ds], (first, positions)) = (at(d_out), seen);
            let sums = [address(first), address(positions), address(log_sums), address(delta), d, ds];
            [Words(&words), q, qs, k, ks, v, vs].into_iter().chain(sums)
        };
        let with_queries: Vec<_> = common().chain(at(gradients.queries)).collect();
        self.kernel(Attention, formats, "attend_backward_queries")
            .launch(launch(rows, shape.heads), &with_queries);
        let with_keys: Vec<_> = common().chain(at(gradients.keys)).chain(at(gradients.values)).collect();
        let keys = rows / shape.queries * shape.keys;
        self.kernel(Attention, formats, "attend_backward_keys")
            .launch(launch(keys, shape.kv_heads), &with_keys);
    }

    fn flash_backward(&self, task: &Task<'_>) {
        let Task { shape, rows, lines, out, d_out, gradients, seen, log_sums } = *task;
        let (dim, formats, sequences) = (shape.head_dim, [KernelFormat::Bf16; 3], rows / shape.queries);
        let padded = shape.queries.next_multiple_of(QUERIES_BACKWARD);
        let (columns, statistics) = (shape.attended(), sequences * shape.heads * padded);
        let turned = self.partial.of(&self.context, 4 * (2 * statistics + rows * columns));
        let (delta, sums) = (turned + 4 * statistics as u64, turned + 8 * statistics as u64);
        let words = flash_words(shape, shape.scale);
        let at = |lines: MatrixLines| [address(lines.address), word(lines.stride)];
        let ([o, os], [d, ds]) = (at(out), at(d_out));
        let launch =
            KernelLaunch { grid: [padded.div_ceil(8), shape.heads, sequences], ..blocks_of(1, THREADS) };
        self.kernel(FlashBackward, formats, "prepare").sized(dim, 0).launch(
            launch,
            &[Words(&words), word(padded), o, os, d, ds, address(log_sums), address(turned), address(delta)],
        );
        self.context.set_bytes(sums, 0, 4 * rows * columns);
        let [q, k, v] = self.maps(shape, rows, lines, QUERIES_BACKWARD as u32);
        let d = self.context.tiles(d_out.address, rows, columns, d_out.stride, QUERIES_BACKWARD as u32);
        let shared = 2 * (2 * KEYS + 4 * QUERIES_BACKWARD) * dim + 4 * KEYS * QUERIES_BACKWARD + 1024;
        let grid = [sequences * shape.kv_heads, shape.keys.div_ceil(KEYS), 1];
        let ([dk, dks], [dv, dvs], (first, positions)) = (at(gradients.keys), at(gradients.values), seen);
        self.kernel(FlashBackward, formats, "flash_backward").sized(dim, 0).launch(
            KernelLaunch { grid, shared, ..blocks_of(1, 384) },
            &[
                Map(&q),
                Map(&k),
                Map(&v),
                Map(&d),
                Words(&words),
                word(padded),
                address(first),
                address(positions),
                address(turned),
                address(delta),
                address(sums),
                dk,
                dks,
                dv,
                dvs,
            ],
        );
        let [to, stride] = at(gradients.queries);
        let pieces = (rows * columns / 4).div_ceil(THREADS);
        self.kernel(FlashBackward, formats, "give_queries").sized(dim, 0).launch(
            blocks_of(pieces, THREADS),
            &[address(sums), word(columns), to, stride, word(rows), float(shape.scale)],
        );
    }
}

/// A backward pass.
#[derive(Clone, Copy)]
struct Task<'a> {
    shape: &'a AttentionShape,
    rows: usize,
    lines: Qkv<MatrixLines>,
    out: MatrixLines,
    d_out: MatrixLines,
    gradients: Qkv<MatrixLines>,
    seen: (u64, u64),
    log_sums: u64,
}

impl<E: Element> Qkv<Matrix<'_, E>> {
    fn lines(&self, cuda: &Cuda) -> Qkv<MatrixLines> {
        Qkv {
            queries: cuda.rows(&self.queries),
            keys: cuda.rows(&self.keys),
            values: cuda.rows(&self.values),
        }
    }
}

impl<E: Element> Qkv<MatrixMut<'_, E>> {
    fn lines(&self, cuda: &Cuda) -> Qkv<MatrixLines> {
        let [queries, keys, values] = [&self.queries, &self.keys, &self.values].map(|of| cuda.rows_mut(of));
        Qkv { queries, keys, values }
    }
}

/// As the general kernels' struct has it.
fn words_of(shape: &AttentionShape, rows: usize) -> [u64; 7] {
    let AttentionShape { queries, keys, heads, kv_heads, head_dim, scale, .. } = *shape;
    assert!(
        head_dim <= LARGEST_HEAD,
        "heads of {head_dim}; the largest that a GPU has a kernel for is {LARGEST_HEAD}"
    );
    let sizes = [queries, keys, heads, kv_heads, head_dim, rows];
    let mut words = [u64::from(scale.to_bits()); 7];
    words.iter_mut().zip(sizes).for_each(|(word, size)| *word = size as u64);
    words
}

/// As the struct of Hopper's kernels has it.
fn flash_words(shape: &AttentionShape, scale: f32) -> [u64; 3] {
    let sizes = [shape.queries, shape.keys, shape.heads, shape.kv_heads].map(|size| size as u32);
    [two(sizes[0], sizes[1]), two(sizes[2], sizes[3]), u64::from(scale.to_bits())]
}
