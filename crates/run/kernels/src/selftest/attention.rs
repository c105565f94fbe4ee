//! Attention, dense and over blocks.

use super::sample::CheckInputs;
use super::{Check, checks};
use crate::{AttentionShape, Element, KvFormat, PagedRows, PagedShape, Qkv, Rotary, Sight, VisibleKeys};

pub(super) const CHECKS: &[Check] = checks![
    attention_128,
    attention_64,
    attention_long,
    attention_windows,
    attention_behind,
    attention_40,
    merge,
    turn_and_store,
    decode,
    prefill,
    paged_fp8,
    copy_blocks
];

fn shape(queries: usize, keys: usize, heads: usize, kv_heads: usize, head_dim: usize) -> AttentionShape {
    AttentionShape {
        queries,
        keys,
        heads,
        kv_heads,
        head_dim,
        scale: 1.0 / (head_dim as f32).sqrt(),
        cap: 0.0,
    }
}

fn attention_128<E: Element>(s: &CheckInputs<'_>) -> Vec<f32> {
    attention::<E>(s, shape(150, 150, 4, 2, 128), 2, |_| 0, None)
}

fn attention_64<E: Element>(s: &CheckInputs<'_>) -> Vec<f32> {
    attention::<E>(s, shape(200, 200, 4, 1, 64), 1, |_| 0, None)
}

fn attention_long<E: Element>(s: &CheckInputs<'_>) -> Vec<f32> {
    attention::<E>(s, shape(640, 640, 2, 1, 128), 1, |_| 0, None)
}

/// Windows and documents.
fn attention_windows<E: Element>(s: &CheckInputs<'_>) -> Vec<f32> {
    let first = |query: usize| (query.saturating_sub(150)).max(if query >= 300 { 290 } else { 0 }) as u32;
    let wide = attention::<E>(s, shape(400, 400, 2, 2, 128), 1, first, None);
    [wide, attention::<E>(s, shape(400, 400, 2, 2, 64), 1, first, None)].concat()
}

/// Queries that stand anywhere among the keys; the last ones see none.
fn attention_behind<E: Element>(s: &CheckInputs<'_>) -> Vec<f32> {
    let first = |query: usize| if query > 90 { 300 } else { 5 };
    let before = attention::<E>(s, shape(100, 260, 4, 2, 128), 2, first, Some(&[40, 130]));
    [before, attention::<E>(s, shape(100, 260, 4, 2, 64), 2, |_| 0, None)].concat()
}

fn attention_40<E: Element>(s: &CheckInputs<'_>) -> Vec<f32> {
    attention::<E>(s, shape(70, 70, 4, 2, 40), 2, |query| (query / 30 * 30) as u32, None)
}

fn attention<E: Element>(
    s: &CheckInputs<'_>,
    shape: AttentionShape,
    sequences: usize,
    first: impl Fn(usize) -> u32,
    positions: Option<&[u32]>,
) -> Vec<f32> {
    // Rows lie apart by whole vectors where they lie apart at all, as columns of one matrix do.
    let rows = sequences * shape.queries;
    let (inner, outer) = (shape.attended(), shape.kv_heads * shape.head_dim);
    let first: Vec<u32> = (0..rows).map(|row| first(row % shape.queries)).collect();
    let (first, positions) = (s.given(&first), positions.map(|positions| s.given(positions)));
    let seen = VisibleKeys {
        first_keys: first.view(),
        positions: positions.as_ref().map(|positions| positions.view()),
    };
    let (q, k, v) = (
        s.grid::<E>(rows, inner),
        s.grid::<E>(sequences * shape.keys, outer),
        s.grid::<E>(sequences * shape.keys, outer),
    );
    let qkv = || Qkv { queries: q.matrix(), keys: k.matrix(), values: v.matrix() };
    let (mut out, mut log_sums) = (s.grid::<E>(rows, inner), s.device.zeros(rows * shape.heads));
    s.device.attention(&shape, qkv(), seen, out.matrix_mut(), log_sums.view_mut());
    let (d_out, mut dq) = (s.grid::<E>(rows, inner), s.grid::<E>(rows, inner));
    let [mut dk, mut dv] = [(); 2].map(|()| s.grid::<E>(sequences * shape.keys, outer));
    let d_qkv = Qkv { queries: dq.matrix_mut(), keys: dk.matrix_mut(), values: dv.matrix_mut() };
    s.device.attention_backward(&shape, qkv(), seen, out.matrix(), log_sums.view(), d_out.matrix(), d_qkv);
    let sums = s.read(&log_sums).into_iter().map(|sum| if sum == f32::NEG_INFINITY { -99.0 } else { sum });
    [out.read(), sums.collect(), dq.read(), dk.read(), dv.read()].concat()
}

fn merge<E: Element>(s: &CheckInputs<'_>) -> Vec<f32> {
    let (rows, heads, dim) = (20, 3, 40);
    let (part, mut whole) = (s.grid::<E>(rows, heads * dim), s.grid::<f32>(rows, heads * dim));
    let (more, mut sums) = (s.vector::<f32>(rows * heads), s.vector::<f32>(rows * heads));
    s.device.merge(part.matrix(), more.view(), whole.matrix_mut(), sums.view_mut());
    [whole.read(), s.read(&sums)].concat()
}

/// Rows of three sequences, and what they then see.
fn turn_and_store<E: Element>(s: &CheckInputs<'_>) -> Vec<f32> {
    let lists: [&[u32]; 5] = [&[0, 1, 3, 4], &[5, 30, 0], &[0, 1, 3, 4], &[2, 0, 3, 1], &[5, 30, 31, 0]];
    let [starts, contexts, table_starts, tables, positions] = lists.map(|list| s.given(list));
    let rows = PagedRows {
        starts: starts.view(),
        contexts: contexts.view(),
        table_starts: table_starts.view(),
        tables: tables.view(),
    };
    let formats = [KvFormat::Stored, KvFormat::Fp8];
    let each = [(64, 2, 0), (128, 1, 0), (64, 2, 1), (128, 1, 1)].map(|(head_dim, kv_heads, format)| {
        let is_small = formats[format] == KvFormat::Fp8;
        let shape = PagedShape {
            heads: 4,
            kv_heads,
            head_dim,
            scale: 0.1,
            cap: 0.0,
            block_tokens: 16,
            format: formats[format],
        };
        let shape = where_there_is::<E>(s, shape);
        // Quarters of a turn leave numbers that fp8 holds such.
        let quarters = |pair: usize| (pair % 4) as f64 * std::f64::consts::FRAC_PI_2;
        let frequency = |pair: usize| if is_small { quarters(pair) } else { 1.0 / (1.0 + pair as f64) };
        let frequencies: Vec<f64> = (0..head_dim / 2).map(frequency).collect();
        let rotary = Rotary::new(s.device, head_dim, &frequencies, 64, 1.0);
        let queries = 4 * head_dim;
        let mut pool = s.device.zeros::<E>(4 * shape.block_len());
        let number = || if is_small { s.coarse() } else { s.number() };
        let mut qkv = s.grid_of::<E>(4, queries + 2 * kv_heads * head_dim, number);
        let view = (positions.view(), pool.view_mut());
        s.device.turn_and_store(&shape, view.0, &rotary, qkv.matrix_mut(), rows, view.1);
        let (turned, mut out) = (qkv.matrix().columns(0..queries), s.grid::<E>(4, queries));
        s.device.paged_attention(&shape, turned, rows, Sight::All, pool.view(), out.matrix_mut());
        out.read()
    });
    each.concat()
}

fn decode<E: Element>(s: &CheckInputs<'_>) -> Vec<f32> {
    let each = [(128, 4), (64, 1), (256, 2)].map(|(dim, group)| {
        let paged = PagedShape {
            heads: 2 * group,
            kv_heads: 2,
            head_dim: dim,
            scale: 0.1,
            cap: 0.0,
            block_tokens: 16,
            format: KvFormat::Stored,
        };
        let all = paged_attention::<E>(s, paged, &[(1, 300), (1, 5), (1, 0), (1, 128)], Sight::All);
        let window = paged_attention::<E>(s, paged, &[(2, 300), (1, 5), (4, 127)], Sight::Window(100));
        [all, window].concat()
    });
    each.concat()
}

fn prefill<E: Element>(s: &CheckInputs<'_>) -> Vec<f32> {
    let paged = PagedShape {
        heads: 4,
        kv_heads: 2,
        head_dim: 128,
        scale: 0.1,
        cap: 0.0,
        block_tokens: 16,
        format: KvFormat::Stored,
    };
    let all = paged_attention::<E>(s, paged, &[(150, 0), (1, 200), (70, 90)], Sight::All);
    let chunks = paged_attention::<E>(s, paged, &[(70, 90), (1, 65)], Sight::Chunk(64));
    let odd = PagedShape { head_dim: 40, ..paged };
    [all, chunks, paged_attention::<E>(s, odd, &[(20, 33), (1, 90)], Sight::All)].concat()
}

/// Keys and values that fp8 holds exactly, in it where the device has it.
fn paged_fp8<E: Element>(s: &CheckInputs<'_>) -> Vec<f32> {
    let each = [(128, 4), (64, 1), (128, 8)].map(|(dim, group)| {
        let paged = PagedShape {
            heads: 2 * group,
            kv_heads: 2,
            head_dim: dim,
            scale: 0.1,
            cap: 0.0,
            block_tokens: 32,
            format: KvFormat::Fp8,
        };
        let all = paged_attention::<E>(s, paged, &[(1, 300), (1, 5), (1, 0), (1, 128)], Sight::All);
        let window = paged_attention::<E>(s, paged, &[(2, 300), (1, 5), (4, 127)], Sight::Window(100));
        let many = paged_attention::<E>(s, paged, &[(150, 0), (1, 200), (70, 90)], Sight::All);
        [all, window, many].concat()
    });
    each.concat()
}

/// The shape, with keys and values as they are stored where the device has no others.
fn where_there_is<E: Element>(s: &CheckInputs<'_>, shape: PagedShape) -> PagedShape {
    let plain = PagedShape { format: KvFormat::Stored, ..shape };
    if s.device.has_kv::<E>(&shape) { shape } else { plain }
}

/// Sequences have some rows behind some tokens whose keys and values were stored before.
fn paged_attention<E: Element>(
    s: &CheckInputs<'_>,
    shape: PagedShape,
    sequences: &[(usize, usize)],
    sight: Sight,
) -> Vec<f32> {
    let is_small = shape.format == KvFormat::Fp8;
    let shape = where_there_is::<E>(s, shape);
    let (width, tokens) = (shape.kv_heads * shape.head_dim, shape.block_tokens);
    let blocks: Vec<usize> =
        sequences.iter().map(|(rows, context)| (rows + context).div_ceil(tokens)).collect();
    let count: usize = blocks.iter().sum();
    let tables: Vec<u32> = (0..count as u32).rev().collect();
    let ends = |of: &mut dyn Iterator<Item = usize>| {
        let mut sum = 0;
        std::iter::once(0)
            .chain(of.map(|more| {
                sum += more;
                sum as u32
            }))
            .collect::<Vec<u32>>()
    };
    let tables = (s.given(&ends(&mut blocks.iter().copied())), s.given(&tables));
    let mut pool = s.device.zeros::<E>(count * shape.block_len());
    let store = |rows: &dyn Fn(&(usize, usize)) -> usize, contexts: Vec<u32>, pool: &mut crate::Buffer<E>| {
        let starts = ends(&mut sequences.iter().map(rows));
        let all = starts.last().copied().unwrap_or_default() as usize;
        let (starts, contexts) = (s.given(&starts), s.given(&contexts));
        let rows = PagedRows {
            starts: starts.view(),
            contexts: contexts.view(),
            table_starts: tables.0.view(),
            tables: tables.1.view(),
        };
        let number = || if is_small { s.coarse() } else { s.number() };
        let [keys, values] = [(); 2].map(|()| s.grid_of::<E>(all, width, number));
        s.device.store_kv(&shape, keys.matrix(), values.matrix(), rows, pool.view_mut());
        (starts, contexts, all)
    };
    store(&|(_, context)| *context, vec![0; sequences.len()], &mut pool);
    let contexts = sequences.iter().map(|(_, context)| *context as u32).collect();
    let (starts, contexts, all) = store(&|(rows, _)| *rows, contexts, &mut pool);
    let (queries, mut out) =
        (s.grid::<E>(all, shape.heads * shape.head_dim), s.grid::<E>(all, shape.heads * shape.head_dim));
    let rows = PagedRows {
        starts: starts.view(),
        contexts: contexts.view(),
        table_starts: tables.0.view(),
        tables: tables.1.view(),
    };
    s.device.paged_attention(&shape, queries.matrix(), rows, sight, pool.view(), out.matrix_mut());
    out.read()
}

fn copy_blocks<E: Element>(s: &CheckInputs<'_>) -> Vec<f32> {
    let mut pool = s.vector::<E>(10 * 96);
    s.device.copy_blocks(96, &[(3, 5), (5, 7), (0, 3)], pool.view_mut());
    s.read(&pool)
}
