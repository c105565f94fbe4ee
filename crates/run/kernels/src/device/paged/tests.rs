//! Attention over blocks against its definition, at every level, and that rows do not depend on what is computed with them.

use proptest::prelude::*;

use crate::reference::{devices, random};
use crate::testing::{TestRandom, lend};
use crate::{Bf16, Buffer, Device, Element, KvFormat, PagedRows, PagedShape, Sight};

const GAP: usize = 3;

/// Sequences with the queries, keys and values of all their tokens.
struct Case<E> {
    shape: PagedShape,
    sight: Sight,
    /// Tokens of each sequence.
    lens: Vec<usize>,
    /// Of each sequence, by tokens.
    queries: Vec<Vec<E>>,
    keys: Vec<Vec<E>>,
    values: Vec<Vec<E>>,
}

/// The rows of a step as they are handed over.
#[derive(Default)]
struct Step<E> {
    starts: Vec<u32>,
    contexts: Vec<u32>,
    table_starts: Vec<u32>,
    tables: Vec<u32>,
    queries: Vec<E>,
    keys: Vec<E>,
    values: Vec<E>,
}

fn shape(heads: usize, kv_heads: usize, head_dim: usize, block_tokens: usize) -> PagedShape {
    PagedShape {
        heads,
        kv_heads,
        head_dim,
        scale: 1.0 / (head_dim as f32).sqrt(),
        cap: 0.0,
        block_tokens,
        format: KvFormat::Stored,
    }
}

impl<E: Element> Case<E> {
    fn new(shape: PagedShape, sight: Sight, lens: &[usize]) -> Self {
        let elements = |seed: u64, heads: usize| -> Vec<Vec<E>> {
            let each = |(index, len): (usize, &usize)| {
                let elements = random::<E>(seed + index as u64, len * heads * shape.head_dim);
                elements.iter().map(|number| E::narrow(2.0 * number.widen())).collect()
            };
            lens.iter().enumerate().map(each).collect()
        };
        let (queries, keys) = (elements(1, shape.heads), elements(100, shape.kv_heads));
        Self { shape, sight, lens: lens.to_vec(), queries, keys, values: elements(200, shape.kv_heads) }
    }

    fn blocks(&self, sequence: usize) -> usize {
        self.lens[sequence].div_ceil(self.shape.block_tokens)
    }

    /// A table for each sequence: blocks in an order that a seed decides, none of them twice.
    fn tables(&self, seed: u64) -> Vec<Vec<u32>> {
        let all: usize = (0..self.lens.len()).map(|sequence| self.blocks(sequence)).sum();
        let (mut free, mut random): (Vec<u32>, _) = ((0..all as u32 + 3).collect(), TestRandom::new(seed));
        let mut take = || free.swap_remove(random.below(free.len()));
        (0..self.lens.len()).map(|sequence| (0..self.blocks(sequence)).map(|_| take()).collect()).collect()
    }

    /// Goes through all tokens, in each step as many of each sequence as `chunk` says, and gives all results.
    fn run(&self, device: &Device, seed: u64, mut chunk: impl FnMut(usize) -> usize) -> Vec<Vec<f32>> {
        let tables = self.tables(seed);
        let blocks = tables.iter().flatten().max().map_or(0, |last| *last as usize + 1);
        let mut pool = lend(device, &vec![E::narrow(f32::NAN); blocks * self.shape.block_len()]);
        let (mut done, mut results) = (vec![0; self.lens.len()], vec![Vec::new(); self.lens.len()]);
        while done != self.lens {
            let mut step = Step::default();
            let mut taken = vec![];
            for sequence in 0..self.lens.len() {
                let rows = chunk(sequence).min(self.lens[sequence] - done[sequence]);
                self.add(sequence, done[sequence], rows, &tables[sequence], &mut step);
                taken.push(rows);
                done[sequence] += rows;
            }
            let out = self.step(device, step, pool.view_mut());
            let mut rows = out.chunks(self.shape.heads * self.shape.head_dim);
            for (sequence, taken) in taken.into_iter().enumerate() {
                results[sequence].extend(rows.by_ref().take(taken).flatten());
            }
        }
        results
    }

    fn add(&self, sequence: usize, position: usize, rows: usize, table: &[u32], step: &mut Step<E>) {
        let (inner, outer) =
            (self.shape.heads * self.shape.head_dim, self.shape.kv_heads * self.shape.head_dim);
        let before = step.queries.len() / (inner + GAP);
        step.starts.push(before as u32);
        step.contexts.push(position as u32);
        step.table_starts.push(step.tables.len() as u32);
        // A table may have more blocks than there are tokens so far.
        step.tables.extend(table);
        for token in position..position + rows {
            spaced(&self.queries[sequence][token * inner..][..inner], &mut step.queries);
            spaced(&self.keys[sequence][token * outer..][..outer], &mut step.keys);
            spaced(&self.values[sequence][token * outer..][..outer], &mut step.values);
        }
    }

    fn step(&self, device: &Device, mut step: Step<E>, mut pool: crate::ViewMut<'_, E>) -> Vec<f32> {
        let inner = self.shape.heads * self.shape.head_dim;
        let count = step.queries.len() / (inner + GAP);
        step.starts.push(count as u32);
        step.table_starts.push(step.tables.len() as u32);
        let starts = lend(device, &step.starts);
        let contexts = lend(device, &step.contexts);
        let table_starts = lend(device, &step.table_starts);
        let tables = lend(device, &step.tables);
        let rows = PagedRows {
            starts: starts.view(),
            contexts: contexts.view(),
            table_starts: table_starts.view(),
            tables: tables.view(),
        };
        let keys = lend(device, &step.keys).by_rows(count, GAP);
        let values = lend(device, &step.values).by_rows(count, GAP);
        let queries = lend(device, &step.queries).by_rows(count, GAP);
        if count == 0 {
            return vec![];
        }
        device.store_kv(&self.shape, keys.matrix(), values.matrix(), rows, pool.reborrow());
        let mut out = lend(device, &vec![E::narrow(f32::NAN); count * (inner + GAP)]).by_rows(count, GAP);
        let pool = pool.view();
        device.paged_attention(&self.shape, queries.matrix(), rows, self.sight, pool, out.matrix_mut());
        let out = out.elements();
        assert!(out.chunks(inner + GAP).all(|row| row[inner..].iter().all(|gap| gap.widen().is_nan())));
        out.chunks(inner + GAP).flat_map(|row| row[..inner].iter().map(|number| number.widen())).collect()
    }

    /// By definition: every score, every exponential, one by one.
    fn expected(&self, sequence: usize, position: usize, head: usize) -> Vec<f64> {
        let PagedShape { heads, kv_heads, head_dim, scale, .. } = self.shape;
        let kv = head / (heads / kv_heads);
        let number = |of: &[E], row: usize, columns: usize, column: usize| {
            f64::from(of[row * columns * head_dim + column].widen())
        };
        let query = |dim| number(&self.queries[sequence], position, heads, head * head_dim + dim);
        let key = |token, dim| number(&self.keys[sequence], token, kv_heads, kv * head_dim + dim);
        let value = |token, dim| number(&self.values[sequence], token, kv_heads, kv * head_dim + dim);
        let tokens = self.sight.first(position)..=position;
        let score =
            |token| f64::from(scale) * (0..head_dim).map(|dim| query(dim) * key(token, dim)).sum::<f64>();
        let scores: Vec<f64> = tokens.clone().map(score).collect();
        let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
        let sum: f64 = weights.iter().sum();
        let weighed = |dim: usize| {
            tokens.clone().zip(&weights).map(|(token, weight)| weight / sum * value(token, dim)).sum()
        };
        (0..head_dim).map(weighed).collect()
    }

    /// Compares some positions with the definition.
    fn check(&self, device: &Device, results: &[Vec<f32>], positions: impl Fn(usize) -> bool) {
        let (heads, dim) = (self.shape.heads, self.shape.head_dim);
        let allowed = if E::NAME == "bf16" { 0.02 } else { 2e-5 };
        for (sequence, results) in results.iter().enumerate() {
            for position in (0..self.lens[sequence]).filter(|position| positions(*position)) {
                for head in 0..heads {
                    let got = &results[(position * heads + head) * dim..][..dim];
                    for (got, expected) in got.iter().zip(self.expected(sequence, position, head)) {
                        let error = (f64::from(*got) - expected).abs();
                        assert!(
                            error <= allowed * expected.abs().max(1.0),
                            "{} {} {:?} {:?}: {got}, not {expected}, at {position} of {sequence}, head {head}",
                            device.instructions(),
                            E::NAME,
                            self.shape,
                            self.sight
                        );
                    }
                }
            }
        }
    }
}

/// A row and the room behind it.
fn spaced<E: Element>(row: &[E], to: &mut Vec<E>) {
    to.extend(row);
    to.extend([E::narrow(f32::NAN); GAP]);
}

const SHAPES: [(usize, usize, usize, usize); 7] = [
    (4, 2, 64, 16),
    (3, 3, 32, 16),
    (8, 1, 128, 32),
    (2, 1, 40, 16),
    (6, 2, 96, 5),
    (2, 2, 256, 16),
    (1, 1, 8, 1),
];
const SIGHTS: [Sight; 4] = [Sight::All, Sight::Window(9), Sight::Window(40), Sight::Chunk(24)];

fn agrees<E: Element>() {
    for device in devices() {
        for (index, (heads, kv_heads, head_dim, block_tokens)) in SHAPES.into_iter().enumerate() {
            for sight in SIGHTS {
                let lens = [1 + index, 70, 33];
                let case = Case::<E>::new(shape(heads, kv_heads, head_dim, block_tokens), sight, &lens);
                let results = case.run(&device, 1, |sequence| [1, 29, 33][sequence]);
                case.check(&device, &results, |position| position % 5 != 3);
            }
        }
    }
}

#[test]
fn every_level_agrees_with_the_definition_in_f32() {
    agrees::<f32>();
}

#[test]
fn every_level_agrees_with_the_definition_in_bf16() {
    agrees::<Bf16>();
}

fn same_bits(a: &[Vec<f32>], b: &[Vec<f32>]) -> bool {
    a.iter().flatten().zip(b.iter().flatten()).all(|(a, b)| a.to_bits() == b.to_bits())
}

fn invariant<E: Element>(
    device: &Device,
    (heads, kv_heads, head_dim, block_tokens): (usize, usize, usize, usize),
) {
    for sight in [Sight::All, Sight::Window(50), Sight::Chunk(100)] {
        let lens = [301, 260, 17];
        let case = Case::<E>::new(shape(heads, kv_heads, head_dim, block_tokens), sight, &lens);
        let whole = case.run(device, 1, |_| usize::MAX);
        let mut random = TestRandom::new(5);
        let what = format!("{} {} {:?} {sight:?}", device.instructions(), E::NAME, case.shape);
        assert!(same_bits(&whole, &case.run(device, 2, |_| 1)), "one by one: {what}");
        assert!(same_bits(&whole, &case.run(device, 3, |_| random.below(40))), "in chunks: {what}");
        for sequence in 0..lens.len() {
            let mut alone = Case::<E>::new(case.shape, sight, &lens[sequence..=sequence]);
            alone.queries = vec![case.queries[sequence].clone()];
            alone.keys = vec![case.keys[sequence].clone()];
            alone.values = vec![case.values[sequence].clone()];
            let got = alone.run(device, 4, |_| 63);
            assert!(same_bits(&got, &whole[sequence..=sequence]), "alone: {what}");
        }
        let one = Device::cpu(1);
        if one.instructions() == device.instructions() {
            assert!(same_bits(&whole, &case.run(&one, 1, |_| usize::MAX)), "threads: {what}");
        }
    }
}

#[test]
fn a_row_is_the_same_one_by_one_in_chunks_and_in_one_piece_wherever_its_blocks_lie() {
    for device in devices() {
        invariant::<f32>(&device, (2, 1, 32, 16));
        invariant::<Bf16>(&device, (2, 1, 32, 16));
        invariant::<Bf16>(&device, (3, 3, 16, 7));
    }
}

/// Long sequences, whose last rows see several spans.
fn long<E: Element>(device: &Device, len: usize) {
    let lens = [len, 300];
    for sight in [Sight::All, Sight::Window(1000)] {
        let case = Case::<E>::new(shape(2, 1, 32, 16), sight, &lens);
        let chunks = |last: usize| {
            let mut left = [len - last, 300];
            move |sequence: usize| match std::mem::take(&mut left[sequence]) {
                0 => 1,
                first => first,
            }
        };
        let in_two = case.run(device, 1, chunks(3));
        case.check(device, &in_two, |position| position + 3 > len || position == 2048);
        let in_one = case.run(device, 2, |_| usize::MAX);
        assert!(same_bits(&in_one, &in_two), "{} {} {sight:?}", device.instructions(), E::NAME);
    }
}

#[test]
fn long_sequences_are_cut_by_position_alone() {
    long::<Bf16>(&Device::cpu(2), 4300);
    for device in devices() {
        long::<f32>(&device, 2200);
        long::<Bf16>(&device, 2200);
    }
}

#[test]
fn copied_blocks_hold_what_they_are_copied_from() {
    for device in devices() {
        let case = Case::<f32>::new(shape(1, 1, 8, 4), Sight::All, &[8]);
        let len = case.shape.block_len();
        let mut pool: Buffer<f32> = device.zeros(3 * len);
        device.write(pool.view_mut(), &random::<f32>(1, 3 * len));
        device.copy_blocks(len, &[(0, 2), (1, 0)], pool.view_mut());
        let mut after = vec![0.0; 3 * len];
        device.read(pool.view(), &mut after);
        let before = random::<f32>(1, 3 * len);
        assert_eq!(after, [&before[len..2 * len], &before[len..2 * len], &before[..len]].concat());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn any_shape_and_cut_agrees_with_the_definition(
        group in 1usize..5,
        kv_heads in 1usize..4,
        head_dim in 1usize..70,
        block_tokens in 1usize..20,
        len in 1usize..90,
        chunk in 1usize..50,
        window in 1usize..60,
    ) {
        let shape = shape(group * kv_heads, kv_heads, head_dim, block_tokens);
        for device in devices() {
            let case = Case::<f32>::new(shape, Sight::Window(window), &[len, 3]);
            case.check(&device, &case.run(&device, 1, |_| chunk), |_| true);
            let case = Case::<Bf16>::new(shape, Sight::Chunk(window), &[len, 3]);
            case.check(&device, &case.run(&device, 1, |_| chunk), |_| true);
        }
    }
}
