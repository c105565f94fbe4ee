//! Attention against its definition, at every level.

use proptest::prelude::*;

use crate::reference::{self, Grid, Sight, devices, random};
use crate::testing::{lend, lend_mut};
use crate::{AttentionShape, Bf16, Device, Element, Matrix, Qkv, VisibleKeys};

/// Sequences one after the other, with room between rows, and which keys their queries see.
struct Case<E> {
    shape: AttentionShape,
    gap: usize,
    first_keys: Vec<u32>,
    positions: Vec<u32>,
    qkv: Qkv<Vec<E>>,
    d_out: Vec<E>,
}

struct Results<E> {
    out: Vec<E>,
    log_sums: Vec<f32>,
    d_qkv: Qkv<Vec<E>>,
}

impl<E> Results<E> {
    fn into_all(self) -> (Vec<E>, Vec<f32>, [Vec<E>; 3]) {
        (self.out, self.log_sums, [self.d_qkv.queries, self.d_qkv.keys, self.d_qkv.values])
    }
}

impl<E: Element> Case<E> {
    /// The last query stands at the last key.
    fn new(shape: AttentionShape, sequences: usize, gap: usize, first_key: impl Fn(usize) -> usize) -> Self {
        let position = shape.keys - shape.queries;
        Self::at(shape, vec![position as u32; sequences], gap, first_key)
    }

    /// The first query of each sequence stands at a position; `first_key` is given that of a query.
    fn at(
        shape: AttentionShape,
        positions: Vec<u32>,
        gap: usize,
        first_key: impl Fn(usize) -> usize,
    ) -> Self {
        let sequences = positions.len();
        let rows = sequences * shape.queries;
        let first_key =
            |row: usize| first_key(positions[row / shape.queries] as usize + row % shape.queries) as u32;
        let elements = |seed, rows, heads| random(seed, rows * (heads * shape.head_dim + gap));
        Self {
            shape,
            gap,
            first_keys: (0..rows).map(first_key).collect(),
            positions,
            qkv: Qkv {
                queries: elements(1, rows, shape.heads),
                keys: elements(3, sequences * shape.keys, shape.kv_heads),
                values: elements(4, sequences * shape.keys, shape.kv_heads),
            },
            d_out: random(2, rows * (shape.heads * shape.head_dim)),
        }
    }

    fn run(&self, device: &Device) -> Results<E> {
        let AttentionShape { heads, head_dim, .. } = self.shape;
        let rows = self.first_keys.len();
        let mut out = vec![E::default(); rows * heads * head_dim];
        let mut log_sums = vec![0.0; rows * heads];
        self.on(device, |qkv, seen| {
            device.attention(
                &self.shape,
                qkv,
                seen,
                lend_mut(device, &mut out).by_rows(rows, 0).matrix_mut(),
                lend_mut(device, &mut log_sums).view_mut(),
            );
        });
        let d_qkv = self.backward(device, &out, &log_sums);
        Results { out, log_sums, d_qkv }
    }

    /// The gradients, where all keys gave this output.
    fn backward(&self, device: &Device, out: &[E], log_sums: &[f32]) -> Qkv<Vec<E>> {
        let AttentionShape { heads, kv_heads, head_dim, .. } = self.shape;
        let (rows, of_keys) = (self.first_keys.len(), self.positions.len() * self.shape.keys);
        let d = |rows: usize, heads: usize| vec![E::narrow(7.0); rows * heads * head_dim];
        let mut d_qkv =
            Qkv { queries: d(rows, heads), keys: d(of_keys, kv_heads), values: d(of_keys, kv_heads) };
        self.on(device, |qkv, seen| {
            device.attention_backward(
                &self.shape,
                qkv,
                seen,
                lend(device, out).by_rows(rows, 0).matrix(),
                lend(device, log_sums).view(),
                lend(device, &self.d_out).by_rows(rows, 0).matrix(),
                Qkv {
                    queries: lend_mut(device, &mut d_qkv.queries).by_rows(rows, 0).matrix_mut(),
                    keys: lend_mut(device, &mut d_qkv.keys).by_rows(of_keys, 0).matrix_mut(),
                    values: lend_mut(device, &mut d_qkv.values).by_rows(of_keys, 0).matrix_mut(),
                },
            );
        });
        d_qkv
    }

    /// Calls an operator with the inputs on a device.
    fn on(&self, device: &Device, operator: impl FnOnce(Qkv<Matrix<'_, E>>, VisibleKeys<'_>)) {
        let (rows, of_keys) = (self.first_keys.len(), self.positions.len() * self.shape.keys);
        let (queries, keys, values) = (
            lend(device, &self.qkv.queries).by_rows(rows, self.gap),
            lend(device, &self.qkv.keys).by_rows(of_keys, self.gap),
            lend(device, &self.qkv.values).by_rows(of_keys, self.gap),
        );
        let qkv = Qkv { queries: queries.matrix(), keys: keys.matrix(), values: values.matrix() };
        let (first_keys, positions) = (lend(device, &self.first_keys), lend(device, &self.positions));
        let is_usual = self.positions.iter().all(|at| *at as usize + self.shape.queries == self.shape.keys);
        let positions = (!is_usual).then_some(positions.view());
        operator(qkv, VisibleKeys { first_keys: first_keys.view(), positions });
    }

    fn check(&self, device: &Device) {
        self.check_results(device, self.run(device));
    }

    fn check_results(&self, device: &Device, results: Results<E>) {
        let AttentionShape { heads, kv_heads, head_dim, .. } = self.shape;
        let name = format!("{} {} {:?}", device.instructions(), E::NAME, self.shape);
        let stride = |heads: usize| heads * head_dim + self.gap;
        let qkv = Qkv {
            queries: Grid { values: &self.qkv.queries, stride: stride(heads) },
            keys: Grid { values: &self.qkv.keys, stride: stride(kv_heads) },
            values: Grid { values: &self.qkv.values, stride: stride(kv_heads) },
        };
        let d_out = Grid { values: &self.d_out, stride: heads * head_dim };
        let sight = Sight { first_keys: &self.first_keys, positions: &self.positions };
        let expected = reference::attention(&self.shape, qkv, sight);
        let expected_d = reference::attention_backward(&self.shape, qkv, sight, d_out);
        // Weights, gradients of scores and results are rounded to bf16 on the way.
        let (tolerance, of_sums) = if E::NAME == "bf16" { (0.02, 1e-4) } else { (1e-5, 1e-5) };
        assert_close(&results.out, &expected.out, tolerance, &format!("output of {name}"));
        assert_close(&results.log_sums, &expected.log_sums, of_sums, &format!("sums of {name}"));
        // Gradients of queries and keys are sums of terms of the size of the values' gradient, which may cancel: where a
        // row sees one key they are nothing but what rounding leaves.
        let most = largest(&expected_d.values);
        for (what, got, expected) in [
            ("queries", &results.d_qkv.queries, &expected_d.queries),
            ("keys", &results.d_qkv.keys, &expected_d.keys),
            ("values", &results.d_qkv.values, &expected_d.values),
        ] {
            let allowed = tolerance * most.max(largest(expected));
            assert_within(got, expected, allowed, &format!("gradient of {what}, {name}"));
        }
    }
}

/// The largest error must be small against the largest number.
fn assert_close<E: Element>(got: &[E], expected: &[f64], tolerance: f64, what: &str) {
    assert_within(got, expected, tolerance * largest(expected), what);
}

fn largest(elements: &[f64]) -> f64 {
    elements.iter().map(|number| number.abs()).fold(1e-3, f64::max)
}

fn assert_within<E: Element>(got: &[E], expected: &[f64], allowed: f64, what: &str) {
    assert_eq!(got.len(), expected.len());
    for (index, (got, expected)) in got.iter().zip(expected).enumerate() {
        let error = (f64::from(got.widen()) - expected).abs();
        assert!(error <= allowed, "{what}: {got:?} instead of {expected} at {index}");
    }
}

fn shape(sequence: usize, heads: usize, kv_heads: usize, head_dim: usize) -> AttentionShape {
    let scale = 1.0 / (head_dim as f32).sqrt();
    AttentionShape { queries: sequence, keys: sequence, heads, kv_heads, head_dim, scale, cap: 0.0 }
}

#[test]
fn every_level_agrees_with_the_definition() {
    for device in devices() {
        for (sequence, heads, kv_heads, head_dim) in
            [(1, 1, 1, 1), (64, 2, 2, 64), (130, 4, 2, 16), (201, 3, 1, 33), (70, 2, 1, 80)]
        {
            Case::<f32>::new(shape(sequence, heads, kv_heads, head_dim), 2, 3, |_| 0).check(&device);
            Case::<Bf16>::new(shape(sequence, heads, kv_heads, head_dim), 2, 0, |_| 0).check(&device);
        }
    }
}

#[test]
fn windows_and_documents_hide_earlier_keys() {
    for device in devices() {
        let window = |row: usize| row.saturating_sub(20);
        Case::<f32>::new(shape(300, 2, 1, 24), 1, 0, window).check(&device);
        let documents = |row: usize| if row < 140 { 0 } else { 140 };
        Case::<f32>::new(shape(290, 2, 2, 8), 1, 0, documents).check(&device);
        Case::<Bf16>::new(shape(290, 2, 2, 8), 1, 0, documents).check(&device);
    }
}

#[test]
fn large_scores_do_not_overflow() {
    let wild = AttentionShape { scale: 200.0, ..shape(90, 1, 1, 8) };
    for device in devices() {
        let results = Case::<f32>::new(wild, 1, 0, |_| 0).run(&device);
        let (out, _, [queries, keys, values]) = results.into_all();
        assert!([out, queries, keys, values].iter().flatten().all(|value| value.is_finite()));
    }
}

#[test]
fn what_is_no_number_stays_none() {
    for device in devices() {
        let mut case = Case::<f32>::new(shape(70, 1, 1, 8), 1, 0, |_| 0);
        case.qkv.queries[0] = f32::NAN;
        assert!(case.run(&device).out[..8].iter().all(|value| value.is_nan()), "{}", device.instructions());
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let case = Case::<f32>::new(shape(150, 4, 2, 32), 2, 0, |_| 0);
    let (one, three) = (case.run(&Device::cpu(1)), case.run(&Device::cpu(3)));
    assert_eq!(one.into_all(), three.into_all());
    let case = Case::<Bf16>::new(shape(150, 4, 2, 32), 2, 0, |_| 0);
    let (one, three) = (case.run(&Device::cpu(1)), case.run(&Device::cpu(3)));
    assert_eq!(one.into_all(), three.into_all());
}

#[test]
fn gradients_are_those_of_finite_differences() {
    let case = Case::<f32>::new(shape(6, 2, 1, 4), 1, 0, |row| row.saturating_sub(3));
    let device = Device::cpu(1);
    type Part = fn(&mut Qkv<Vec<f32>>) -> &mut Vec<f32>;
    let loss = |part: Part, index: usize, by: f32| -> f64 {
        let mut moved = Case::<f32>::new(case.shape, 1, 0, |row| row.saturating_sub(3));
        part(&mut moved.qkv)[index] += by;
        let out = moved.run(&device).out;
        out.iter().zip(&case.d_out).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    };
    let mut gradients = case.run(&device).d_qkv;
    let parts: [Part; 3] = [|qkv| &mut qkv.queries, |qkv| &mut qkv.keys, |qkv| &mut qkv.values];
    for part in parts {
        for (index, d) in part(&mut gradients).iter().enumerate() {
            let slope = (loss(part, index, 0.01) - loss(part, index, -0.01)) / 0.02;
            assert!((f64::from(*d) - slope).abs() < 1e-3, "{d} instead of {slope} at {index}");
        }
    }
}

#[test]
fn fewer_queries_than_keys_see_the_keys_up_to_their_positions() {
    for device in devices() {
        let over = |queries, keys| AttentionShape { queries, keys, ..shape(1, 4, 2, 16) };
        // A decoded token, chunks of prompts, and the keys of an earlier rank, of which all are seen.
        Case::<f32>::new(over(1, 150), 3, 0, |_| 0).check(&device);
        Case::<Bf16>::new(over(1, 150), 3, 0, |_| 0).check(&device);
        Case::<f32>::new(over(70, 201), 2, 3, |position| position.saturating_sub(90)).check(&device);
        Case::<f32>::at(over(40, 200), vec![0, 30, 160], 0, |_| 0).check(&device);
        Case::<Bf16>::at(over(40, 200), vec![5, 130], 0, |_| 0).check(&device);
        Case::<f32>::at(over(100, 64), vec![64, 100], 1, |_| 0).check(&device);
        Case::<f32>::at(over(100, 64), vec![30], 0, |_| 3).check(&device);
    }
}

#[test]
fn a_chunk_of_queries_gives_what_all_queries_give_for_it() {
    let device = Device::cpu(2);
    let whole = Case::<f32>::new(shape(160, 4, 2, 16), 1, 0, |_| 0);
    let mut chunk = Case::<f32>::new(AttentionShape { queries: 32, ..whole.shape }, 1, 0, |_| 0);
    chunk.qkv.keys.clone_from(&whole.qkv.keys);
    chunk.qkv.values.clone_from(&whole.qkv.values);
    chunk.qkv.queries = whole.qkv.queries[128 * 64..].to_vec();
    let (whole, chunk) = (whole.run(&device), chunk.run(&device));
    assert_eq!(whole.out[128 * 64..], chunk.out);
    assert_eq!(whole.log_sums[128 * 4..], chunk.log_sums);
}

/// Attention over two sets of keys, as ranks have them, in the order `[late, early]`.
fn in_two_parts<E: Element>(device: &Device, case: &Case<E>, border: usize) -> Results<E> {
    let AttentionShape { queries, keys, heads, kv_heads, head_dim, .. } = case.shape;
    let (inner, outer) = (heads * head_dim, kv_heads * head_dim);
    let (mut whole, mut log_sums) = (vec![0.0f32; queries * inner], vec![f32::NEG_INFINITY; queries * heads]);
    let part = |keys: std::ops::Range<usize>, position: u32| Case::<E> {
        shape: AttentionShape { keys: keys.len(), ..case.shape },
        gap: 0,
        first_keys: case.first_keys.iter().map(|first| first.saturating_sub(keys.start as u32)).collect(),
        positions: vec![position],
        qkv: Qkv {
            queries: case.qkv.queries.clone(),
            keys: case.qkv.keys[keys.start * outer..keys.end * outer].to_vec(),
            values: case.qkv.values[keys.start * outer..keys.end * outer].to_vec(),
        },
        d_out: case.d_out.clone(),
    };
    // All queries stand behind the early keys; of the late ones they see those up to their own.
    let parts = [part(border..keys, 0), part(0..border, border as u32)];
    for part in &parts {
        let Results { out, log_sums: more, .. } = part.run(device);
        device.merge(
            lend(device, &out).by_rows(queries, 0).matrix(),
            lend(device, &more).view(),
            lend_mut(device, &mut whole).by_rows(queries, 0).matrix_mut(),
            lend_mut(device, &mut log_sums).view_mut(),
        );
    }
    let out: Vec<E> = whole.iter().map(|number| E::narrow(*number)).collect();
    let [late, early] = parts.map(|part| part.backward(device, &out, &log_sums));
    let sums = late.queries.iter().zip(&early.queries).map(|(a, b)| E::narrow(a.widen() + b.widen()));
    let d_qkv = Qkv {
        queries: sums.collect(),
        keys: [early.keys, late.keys].concat(),
        values: [early.values, late.values].concat(),
    };
    Results { out, log_sums, d_qkv }
}

#[test]
fn attention_over_parts_of_the_keys_merges_to_attention_over_all() {
    let over = |queries, keys| AttentionShape { queries, keys, ..shape(1, 4, 2, 16) };
    for device in devices() {
        // Everything is seen, windows that end in the early keys, and documents that begin in the late ones.
        for first_key in [|_| 0, |position: usize| position.saturating_sub(20), |position| position / 90 * 90]
        {
            let case = Case::<f32>::new(over(90, 150), 1, 0, first_key);
            case.check_results(&device, in_two_parts(&device, &case, 60));
            let case = Case::<Bf16>::new(over(90, 150), 1, 0, first_key);
            case.check_results(&device, in_two_parts(&device, &case, 60));
        }
    }
}

#[test]
fn queries_that_see_no_key_give_nothing() {
    let shape = AttentionShape { queries: 70, keys: 40, ..shape(1, 2, 1, 16) };
    for device in devices() {
        let seen = 23 * 2;
        let case = Case::<f32>::at(shape, vec![40], 0, |position| if position < 63 { 3 } else { 40 });
        let Results { out, log_sums, d_qkv } = case.run(&device);
        assert!(log_sums[..seen].iter().all(|sum| sum.is_finite()));
        assert!(log_sums[seen..].iter().all(|sum| *sum == f32::NEG_INFINITY));
        assert!(out[seen * 16..].iter().chain(&d_qkv.queries[seen * 16..]).all(|number| *number == 0.0));
        assert!(d_qkv.keys.iter().chain(&d_qkv.values).all(|number| number.is_finite()));
    }
}

#[test]
fn columns_of_one_matrix_give_the_bits_of_matrices_of_their_own() {
    let device = Device::cpu(2);
    let case = Case::<f32>::new(shape(130, 4, 2, 16), 2, 0, |_| 0);
    let (rows, shape) = (260, case.shape);
    let row = |row: usize| {
        let part = |of: &[f32], width: usize| of[row * width..(row + 1) * width].to_vec();
        [part(&case.qkv.queries, 64), part(&case.qkv.keys, 32), part(&case.qkv.values, 32)].concat()
    };
    let joined: Vec<f32> = (0..rows).flat_map(row).collect();
    let apart = case.run(&device);
    let (qkv, first_keys) = (lend(&device, &joined).by_rows(rows, 0), lend(&device, &case.first_keys));
    let (mut out, mut log_sums) = (device.zeros(rows * 64), device.zeros(rows * 4));
    let mut d_qkv = vec![7.0f32; rows * 128];
    let (qkv, seen) =
        (Qkv::columns(&shape, qkv.matrix()), VisibleKeys { first_keys: first_keys.view(), positions: None });
    device.attention(&shape, qkv, seen, out.view_mut().matrix(rows, 64), log_sums.view_mut());
    device.attention_backward(
        &shape,
        qkv,
        seen,
        out.view().matrix(rows, 64),
        log_sums.view(),
        lend(&device, &case.d_out).by_rows(rows, 0).matrix(),
        Qkv::columns_mut(&shape, lend_mut(&device, &mut d_qkv).by_rows(rows, 0).matrix_mut()),
    );
    for (row, d) in d_qkv.chunks(128).enumerate() {
        assert_eq!(d[..64], apart.d_qkv.queries[row * 64..][..64]);
        assert_eq!(d[64..96], apart.d_qkv.keys[row * 32..][..32]);
        assert_eq!(d[96..], apart.d_qkv.values[row * 32..][..32]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn any_shape_agrees_with_the_definition(
        sequence in 1usize..150,
        group in 1usize..4,
        kv_heads in 1usize..3,
        head_dim in 1usize..70,
        window in 1usize..150,
    ) {
        for device in devices() {
            let shape = shape(sequence, group * kv_heads, kv_heads, head_dim);
            Case::<f32>::new(shape, 1, 1, |row| row.saturating_sub(window)).check(&device);
            Case::<Bf16>::new(shape, 1, 0, |row| row.saturating_sub(window)).check(&device);
            let shape = AttentionShape { keys: sequence + window, ..shape };
            Case::<f32>::new(shape, 1, 1, |row| row.saturating_sub(sequence)).check(&device);
        }
    }
}
