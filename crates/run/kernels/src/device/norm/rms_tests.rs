//! RMS norms against their definition and its differences.

use proptest::prelude::*;

use crate::testing::{
    Spaced, TestRandom, assert_close, dot, gradient, lend, lend_mut, on_any_processor, tolerance, wide,
};
use crate::{Accumulate, Bf16, Device, Element, Heads};

const EPSILON: f32 = 1e-5;

#[derive(Debug, Clone, Copy)]
struct Shape {
    rows: usize,
    columns: usize,
    gap: usize,
    seed: u64,
}

struct Inputs<E> {
    x: Spaced<E>,
    d: Spaced<E>,
    weight: Vec<E>,
    d_x: Spaced<E>,
    d_weight: Vec<f32>,
}

impl<E: Element> Inputs<E> {
    fn new(Shape { rows, columns, gap, seed }: Shape, width: usize) -> Self {
        let random = &mut TestRandom::new(seed);
        Self {
            x: Spaced::random(rows, columns, gap, random),
            d: Spaced::random(rows, columns, gap + 1, random),
            weight: random.numbers(width),
            d_x: Spaced::random(rows, columns, gap, random),
            d_weight: random.numbers(width),
        }
    }
}

/// Output, gradient of the input (replaced and added), gradient of the weight.
fn run<E: Element>(device: &Device, shape: Shape) -> [Vec<f32>; 4] {
    let Inputs { x, d, weight, d_x, mut d_weight } = Inputs::<E>::new(shape, shape.columns);
    let mut out = Spaced::zeros(shape.rows, shape.columns, 3);
    let mut inverses = lend(device, &vec![0.0; shape.rows]);
    let (x, weight, to) = (x.on(device), lend(device, &weight), inverses.view_mut());
    device.rms_norm(x.matrix(), weight.view(), EPSILON, out.on_mut(device).matrix_mut(), to);
    let backward = |mode, d_weight: &mut [f32]| {
        let mut d_x = d_x.clone();
        device.rms_norm_backward(
            d.on(device).matrix(),
            x.matrix(),
            weight.view(),
            inverses.view(),
            mode,
            d_x.on_mut(device).matrix_mut(),
            Some(lend_mut(device, d_weight).view_mut()),
        );
        d_x.elements()
    };
    let replaced = backward(Accumulate::Replace, &mut d_weight);
    let added = backward(Accumulate::Add, &mut d_weight.clone());
    [out.elements(), replaced, added, d_weight]
}

fn definition(x: &[f64], weight: &[f64]) -> Vec<f64> {
    let row = |x: &[f64]| {
        let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        x.iter().zip(weight).map(|(x, w)| x * w / (mean + f64::from(EPSILON)).sqrt()).collect::<Vec<f64>>()
    };
    x.chunks(weight.len()).flat_map(row).collect()
}

fn check<E: Element>(shape: Shape) {
    let inputs = Inputs::<E>::new(shape, shape.columns);
    let (x, d, weight) = (inputs.x.wide(), inputs.d.wide(), wide(&inputs.weight));
    let [out, replaced, added, d_weight] = on_any_processor(|device| run::<E>(device, shape));
    assert_close(&out, &definition(&x, &weight), tolerance::<E>());
    let d_x = gradient(|x| dot(&d, &definition(x, &weight)), &x);
    let sum = |a: Vec<f64>, b: &[f64]| a.iter().zip(b).map(|(a, b)| a + b).collect::<Vec<f64>>();
    assert_close(&replaced, &d_x, 4.0 * tolerance::<E>());
    assert_close(&added, &sum(inputs.d_x.wide(), &d_x), 4.0 * tolerance::<E>());
    let by_weight = gradient(|weight| dot(&d, &definition(&x, weight)), &weight);
    assert_close(&d_weight, &sum(wide(&inputs.d_weight), &by_weight), 4.0 * tolerance::<f32>());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn output_and_gradients_are_those_of_the_definition(
        rows in 1usize..5, columns in 1usize..40, gap in 0usize..4, seed in 0u64..1000
    ) {
        let shape = Shape { rows, columns, gap, seed };
        check::<f32>(shape);
        check::<Bf16>(shape);
    }
}

#[test]
fn large_matrices_give_the_same_on_any_processor() {
    for (rows, columns) in [(1, 5000), (300, 130), (2000, 33)] {
        let shape = Shape { rows, columns, gap: 1, seed: 7 };
        on_any_processor(|device| run::<f32>(device, shape));
        on_any_processor(|device| run::<Bf16>(device, shape));
    }
}

/// Heads of width `dim` are rows of a norm of their own; the columns around them stay.
fn check_heads<E: Element>(before: usize, count: usize, dim: usize, after: usize, rows: usize, seed: u64) {
    let heads = Heads { first: before, count, dim };
    let columns = (before + count + after) * dim;
    let inputs = Inputs::<E>::new(Shape { rows, columns, gap: 2, seed }, dim);
    let [out, d_x, d_weight] = on_any_processor(|device| run_heads(device, &heads, &inputs));
    let [x, d, as_given] = [&inputs.x, &inputs.d, &inputs.d_x].map(Spaced::wide);
    let weight = wide(&inputs.weight);
    let with_heads = |elements: &[f64], outside: &[f64]| {
        let mut all = outside.to_vec();
        for row in 0..rows {
            let range = row * columns + heads.columns().start..row * columns + heads.columns().end;
            all[range.clone()].copy_from_slice(&elements[range]);
        }
        all
    };
    let definition = |x: &[f64], weight: &[f64]| with_heads(&definition(x, weight), &as_given);
    assert_close(&out, &definition(&x, &weight), tolerance::<E>());
    let by_x = gradient(|x| dot(&d, &definition(x, &weight)), &x);
    assert_close(&d_x, &with_heads(&by_x, &d), 4.0 * tolerance::<E>());
    let by_weight = gradient(|weight| dot(&d, &definition(&x, weight)), &weight);
    assert_close(&d_weight, &by_weight, 4.0 * tolerance::<f32>());
}

fn run_heads<E: Element>(device: &Device, heads: &Heads, inputs: &Inputs<E>) -> [Vec<f32>; 3] {
    let (x, weight) = (inputs.x.on(device), lend(device, &inputs.weight));
    let (mut out, mut d) = (inputs.d_x.clone(), inputs.d.clone());
    let mut inverses = lend(device, &vec![0.0; inputs.x.rows * heads.count]);
    let mut d_weight = lend(device, &vec![0.0; heads.dim]);
    let to = (&mut out, inverses.view_mut());
    device.head_norm(heads, x.matrix(), weight.view(), EPSILON, to.0.on_mut(device).matrix_mut(), to.1);
    device.head_norm_backward(
        heads,
        d.on_mut(device).matrix_mut(),
        x.matrix(),
        weight.view(),
        inverses.view(),
        Some(d_weight.view_mut()),
    );
    [out.elements(), d.elements(), d_weight.elements()]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn a_head_norm_is_a_norm_of_each_head_and_leaves_the_other_columns(
        before in 0usize..3, count in 1usize..4, dim in 1usize..9, after in 0usize..2, rows in 1usize..4, seed in 0u64..1000
    ) {
        check_heads::<f32>(before, count, dim, after, rows, seed);
        check_heads::<Bf16>(before, count, dim, after, rows, seed);
    }
}
