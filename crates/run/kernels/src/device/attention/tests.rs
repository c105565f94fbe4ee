//! Attention against its definition, at every level.

use proptest::prelude::*;

use crate::reference::{self, Grid, devices, random};
use crate::testing::{lend, lend_mut};
use crate::{AttentionShape, Bf16, Device, Element};

/// Sequences one after the other, with room between rows, and which keys their queries see.
struct Case<E> {
    shape: AttentionShape,
    gap: usize,
    first_keys: Vec<u32>,
    qkv: Vec<E>,
    d_out: Vec<E>,
}

struct Results<E> {
    out: Vec<E>,
    log_sums: Vec<f32>,
    d_qkv: Vec<E>,
}

impl<E: Element> Case<E> {
    fn new(shape: AttentionShape, sequences: usize, gap: usize, first_key: impl Fn(usize) -> usize) -> Self {
        let rows = sequences * shape.sequence;
        Self {
            shape,
            gap,
            first_keys: (0..rows).map(|row| first_key(row % shape.sequence) as u32).collect(),
            qkv: random(1, rows * (shape.columns() + gap)),
            d_out: random(2, rows * (shape.heads * shape.head_dim)),
        }
    }

    fn rows(&self) -> usize {
        self.first_keys.len()
    }

    fn run(&self, device: &Device) -> Results<E> {
        let (rows, columns, inner) =
            (self.rows(), self.shape.columns(), self.shape.heads * self.shape.head_dim);
        let mut out = vec![E::default(); rows * inner];
        let mut log_sums = vec![0.0; rows * self.shape.heads];
        let mut d_qkv = vec![E::narrow(7.0); rows * columns];
        let qkv = lend(device, &self.qkv).by_rows(rows, self.gap);
        let first_keys = lend(device, &self.first_keys);
        device.attention(
            &self.shape,
            qkv.matrix(),
            first_keys.view(),
            lend_mut(device, &mut out).by_rows(rows, 0).matrix_mut(),
            lend_mut(device, &mut log_sums).view_mut(),
        );
        device.attention_backward(
            &self.shape,
            qkv.matrix(),
            first_keys.view(),
            lend(device, &out).by_rows(rows, 0).matrix(),
            lend(device, &log_sums).view(),
            lend(device, &self.d_out).by_rows(rows, 0).matrix(),
            lend_mut(device, &mut d_qkv).by_rows(rows, 0).matrix_mut(),
        );
        Results { out, log_sums, d_qkv }
    }

    fn check(&self, device: &Device) {
        let name = format!("{} {} {:?}", device.instructions(), E::NAME, self.shape);
        let qkv = Grid { values: &self.qkv, stride: self.shape.columns() + self.gap };
        let d_out = Grid { values: &self.d_out, stride: self.shape.heads * self.shape.head_dim };
        let expected = reference::attention(&self.shape, qkv, &self.first_keys);
        let expected_d = reference::attention_backward(&self.shape, qkv, &self.first_keys, d_out);
        let results = self.run(device);
        // Weights, gradients of scores and results are rounded to bf16 on the way.
        let (tolerance, of_sums) = if E::NAME == "bf16" { (0.02, 1e-4) } else { (1e-5, 1e-5) };
        assert_close(&results.out, &expected.out, tolerance, &format!("output of {name}"));
        assert_close(&results.log_sums, &expected.log_sums, of_sums, &format!("sums of {name}"));
        assert_close(&results.d_qkv, &expected_d, tolerance, &format!("gradient of {name}"));
    }
}

/// The largest error must be small against the largest number.
fn assert_close<E: Element>(got: &[E], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(got.len(), expected.len());
    let most = expected.iter().map(|value| value.abs()).fold(1e-3, f64::max);
    for (index, (got, expected)) in got.iter().zip(expected).enumerate() {
        let error = (f64::from(got.widen()) - expected).abs();
        assert!(error <= tolerance * most, "{what}: {got:?} instead of {expected} at {index}");
    }
}

fn shape(sequence: usize, heads: usize, kv_heads: usize, head_dim: usize) -> AttentionShape {
    AttentionShape { sequence, heads, kv_heads, head_dim, scale: 1.0 / (head_dim as f32).sqrt() }
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
        assert!(results.out.iter().chain(&results.d_qkv).all(|value| value.is_finite()));
    }
}

#[test]
fn what_is_no_number_stays_none() {
    for device in devices() {
        let mut case = Case::<f32>::new(shape(70, 1, 1, 8), 1, 0, |_| 0);
        case.qkv[0] = f32::NAN;
        assert!(case.run(&device).out[..8].iter().all(|value| value.is_nan()), "{}", device.instructions());
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let case = Case::<f32>::new(shape(150, 4, 2, 32), 2, 0, |_| 0);
    let (one, three) = (case.run(&Device::cpu(1)), case.run(&Device::cpu(3)));
    assert_eq!((one.out, one.log_sums, one.d_qkv), (three.out, three.log_sums, three.d_qkv));
    let case = Case::<Bf16>::new(shape(150, 4, 2, 32), 2, 0, |_| 0);
    let (one, three) = (case.run(&Device::cpu(1)), case.run(&Device::cpu(3)));
    assert_eq!((one.out, one.log_sums, one.d_qkv), (three.out, three.log_sums, three.d_qkv));
}

#[test]
fn gradients_are_those_of_finite_differences() {
    let case = Case::<f32>::new(shape(6, 2, 1, 4), 1, 0, |row| row.saturating_sub(3));
    let device = Device::cpu(1);
    let loss = |index: usize, by: f32| -> f64 {
        let mut moved = Case::<f32>::new(case.shape, 1, 0, |row| row.saturating_sub(3));
        moved.qkv[index] += by;
        let out = moved.run(&device).out;
        out.iter().zip(&case.d_out).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    };
    for (index, d) in case.run(&device).d_qkv.iter().enumerate() {
        let slope = (loss(index, 0.01) - loss(index, -0.01)) / 0.02;
        assert!((f64::from(*d) - slope).abs() < 1e-3, "{d} instead of {slope} at {index}");
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
        }
    }
}
