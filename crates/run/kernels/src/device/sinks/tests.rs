//! Sinks against their definition: one more key whose value is zero.

use crate::Device;
use crate::testing::lend;

const HEADS: usize = 2;
const DIM: usize = 4;

/// Weights of three keys and of the sink, for a row and a head.
fn scores(row: usize, head: usize) -> ([f64; 3], f64) {
    let score = |key: usize| ((row * 7 + head * 5 + key * 3) % 11) as f64 * 0.5 - 2.0;
    ([score(0), score(1), score(2)], [0.75, 30.0][head])
}

fn value(row: usize, head: usize, key: usize, dim: usize) -> f64 {
    ((row * 3 + head * 2 + key * 5 + dim) % 7) as f64 - 3.0
}

/// What attention gives with the sink, or without it, and the logarithm of the sum.
fn attended(row: usize, head: usize, sink: Option<f64>) -> (Vec<f64>, f64) {
    let (scores, _) = scores(row, head);
    let total: f64 = scores.iter().chain(&sink).map(|score| score.exp()).sum();
    let out = |dim: usize| (0..3).map(|key| scores[key].exp() / total * value(row, head, key, dim)).sum();
    ((0..DIM).map(out).collect(), total.ln())
}

#[test]
fn a_sink_is_a_key_without_a_value() {
    let device = Device::cpu(2);
    let rows = 5;
    let of = |sink: bool| -> (Vec<f32>, Vec<f32>) {
        let heads = (0..rows).flat_map(|row| (0..HEADS).map(move |head| (row, head)));
        let each: Vec<_> =
            heads.map(|(row, head)| attended(row, head, sink.then_some(scores(row, head).1))).collect();
        let out = each.iter().flat_map(|(out, _)| out).map(|number| *number as f32);
        (out.collect(), each.iter().map(|(_, sum)| *sum as f32).collect())
    };
    let (plain, plain_sums) = of(false);
    let (expected, expected_sums) = of(true);
    let mut sinks = device.zeros::<f32>(HEADS);
    device.write(sinks.view_mut(), &[0.75, 30.0]);
    let (mut out, mut sums) = (lend(&device, &plain), lend(&device, &plain_sums));
    device.sink(sinks.view(), out.view_mut().matrix(rows, HEADS * DIM), sums.view_mut());
    let close = |found: &[f32], expected: &[f32]| {
        found.iter().zip(expected).all(|(a, b)| (a - b).abs() <= 1e-6 * b.abs().max(1.0))
    };
    let (mut found, mut found_sums) = (vec![0.0; expected.len()], vec![0.0; expected_sums.len()]);
    device.read(out.view(), &mut found);
    device.read(sums.view(), &mut found_sums);
    assert!(close(&found, &expected), "{found:?} {expected:?}");
    assert!(close(&found_sums, &expected_sums), "{found_sums:?} {expected_sums:?}");

    // The gradient of the sum of all outputs, by differences.
    let d_out = lend(&device, &vec![1.0f32; expected.len()]);
    let mut d_sinks = device.zeros::<f32>(HEADS);
    device.sink_backward(
        sinks.view(),
        out.view().matrix(rows, HEADS * DIM),
        d_out.view().matrix(rows, HEADS * DIM),
        sums.view(),
        d_sinks.view_mut(),
    );
    let mut slopes = [0.0; HEADS];
    device.read(d_sinks.view(), &mut slopes);
    for (head, slope) in slopes.into_iter().enumerate() {
        let all = |by: f64| -> f64 {
            (0..rows).flat_map(|row| attended(row, head, Some(scores(row, head).1 + by)).0).sum()
        };
        let expected = (all(1e-5) - all(-1e-5)) / 2e-5;
        assert!((f64::from(slope) - expected).abs() < 1e-5, "head {head}: {slope}, {expected}");
    }
}
