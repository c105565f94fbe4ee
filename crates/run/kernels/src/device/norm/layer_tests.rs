//! Layer norm against its definition and its differences.

use proptest::prelude::*;

use crate::testing::{
    Lent, Spaced, TestRandom, assert_close, dot, gradient, lend, on_any_processor, tolerance, wide,
};
use crate::{Accumulate, Bf16, Device, Element};

const EPSILON: f32 = 1e-3;

struct Inputs<E> {
    x: Spaced<E>,
    d: Spaced<E>,
    weight: Vec<E>,
    bias: Option<Vec<E>>,
    d_x: Spaced<E>,
}

impl<E: Element> Inputs<E> {
    fn new(rows: usize, columns: usize, has_bias: bool, seed: u64) -> Self {
        let random = &mut TestRandom::new(seed);
        Self {
            x: Spaced::random(rows, columns, 2, random),
            d: Spaced::random(rows, columns, 1, random),
            weight: random.numbers(columns),
            bias: has_bias.then(|| random.numbers(columns)),
            d_x: Spaced::random(rows, columns, 3, random),
        }
    }
}

/// Output, gradient of the input added to what is there, gradients of weight and bias.
fn run<E: Element>(device: &Device, inputs: &Inputs<E>, mode: Accumulate) -> [Vec<f32>; 4] {
    let Inputs { x, d, weight, bias, d_x } = inputs;
    let mut out = Spaced::zeros(x.rows, x.columns, 0);
    let mut statistics = lend(device, &vec![0.0; 2 * x.rows]);
    let (x, weight) = (x.on(device), lend(device, weight));
    let bias = bias.as_deref().map(|bias| lend(device, bias));
    let of_bias = bias.as_ref().map(Lent::view);
    let to = &mut out;
    let kept = statistics.view_mut();
    device.layer_norm(x.matrix(), weight.view(), of_bias, EPSILON, to.on_mut(device).matrix_mut(), kept);
    let mut d_x = d_x.clone();
    let [mut d_weight, mut d_bias] = [0, 1].map(|_| lend(device, &vec![0.0; out.columns]));
    device.layer_norm_backward(
        d.on(device).matrix(),
        x.matrix(),
        weight.view(),
        statistics.view(),
        mode,
        d_x.on_mut(device).matrix_mut(),
        Some(d_weight.view_mut()),
        bias.is_some().then(|| d_bias.view_mut()),
    );
    [out.elements(), d_x.elements(), d_weight.elements(), d_bias.elements()]
}

fn definition(x: &[f64], weight: &[f64], bias: &[f64]) -> Vec<f64> {
    let row = |x: &[f64]| {
        let mean = x.iter().sum::<f64>() / x.len() as f64;
        let variance = x.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / x.len() as f64;
        let inverse = 1.0 / (variance + f64::from(EPSILON)).sqrt();
        x.iter().zip(weight).zip(bias).map(|((x, w), b)| (x - mean) * inverse * w + b).collect::<Vec<f64>>()
    };
    x.chunks(weight.len()).flat_map(row).collect()
}

fn check<E: Element>(rows: usize, columns: usize, has_bias: bool, seed: u64) {
    let inputs = Inputs::<E>::new(rows, columns, has_bias, seed);
    let (x, d, weight) = (inputs.x.wide(), inputs.d.wide(), wide(&inputs.weight));
    let bias = inputs.bias.as_deref().map_or_else(|| vec![0.0; columns], wide);
    // A row of numbers that are nearly equal is multiplied by a large number, and its rounding with it.
    let (close, closer) = (30.0 * tolerance::<E>(), 30.0 * tolerance::<f32>());

    let [out, replaced, d_weight, d_bias] =
        on_any_processor(|device| run(device, &inputs, Accumulate::Replace));
    assert_close(&out, &definition(&x, &weight, &bias), tolerance::<E>());
    let by_x = gradient(|x| dot(&d, &definition(x, &weight, &bias)), &x);
    assert_close(&replaced, &by_x, close);
    assert_close(&d_weight, &gradient(|weight| dot(&d, &definition(&x, weight, &bias)), &weight), closer);
    let by_bias = gradient(|bias| dot(&d, &definition(&x, &weight, bias)), &bias);
    assert_close(&d_bias, &if has_bias { by_bias } else { vec![0.0; columns] }, closer);

    let [_, added, ..] = on_any_processor(|device| run(device, &inputs, Accumulate::Add));
    let sum: Vec<f64> = inputs.d_x.wide().iter().zip(&by_x).map(|(a, b)| a + b).collect();
    assert_close(&added, &sum, close);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn output_and_gradients_are_those_of_the_definition(
        rows in 1usize..5, columns in 1usize..40, has_bias: bool, seed in 0u64..1000
    ) {
        check::<f32>(rows, columns, has_bias, seed);
        check::<Bf16>(rows, columns, has_bias, seed);
    }
}

#[test]
fn large_matrices_give_the_same_on_any_processor() {
    for (rows, columns) in [(1, 5000), (300, 130), (2000, 33)] {
        let inputs = Inputs::<f32>::new(rows, columns, true, 3);
        on_any_processor(|device| run(device, &inputs, Accumulate::Add));
        let inputs = Inputs::<Bf16>::new(rows, columns, false, 3);
        on_any_processor(|device| run(device, &inputs, Accumulate::Add));
    }
}
