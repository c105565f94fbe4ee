//! Activations against their definitions and the differences of these.

use proptest::prelude::*;

use super::*;
use crate::Bf16;
use crate::testing::{Spaced, TestRandom, assert_close, dot, gradient, on_any_processor, tolerance};

/// Numbers from -8 to 8, where activations bend.
fn spread<E: Element>(rows: usize, columns: usize, random: &mut TestRandom) -> Spaced<E> {
    Spaced::new(rows, columns, 2, || 8.0 * random.number())
}

fn swiglu(x: &[f64], columns: usize) -> Vec<f64> {
    let row = |row: &[f64]| {
        let (gates, ups) = row.split_at(columns);
        gates.iter().zip(ups).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect::<Vec<f64>>()
    };
    x.chunks(2 * columns).flat_map(row).collect()
}

fn check_swiglu<E: Element>(rows: usize, columns: usize, seed: u64) {
    let random = &mut TestRandom::new(seed);
    let (x, d) = (spread::<E>(rows, 2 * columns, random), spread::<E>(rows, columns, random));
    let (out, d_x) = on_any_processor(|device| run_swiglu(device, &x, &d));
    assert_close(&out, &swiglu(&x.wide(), columns), tolerance::<E>());
    let by_x = gradient(|x| dot(&d.wide(), &swiglu(x, columns)), &x.wide());
    assert_close(&d_x, &by_x, 2.0 * tolerance::<E>());
}

fn run_swiglu<E: Element>(device: &Device, x: &Spaced<E>, d: &Spaced<E>) -> (Vec<f32>, Vec<f32>) {
    let (mut out, mut d_x) = (Spaced::zeros(d.rows, d.columns, 1), Spaced::zeros(x.rows, x.columns, 1));
    device.swiglu(x.on(device).matrix(), out.on_mut(device).matrix_mut());
    device.swiglu_backward(x.on(device).matrix(), d.on(device).matrix(), d_x.on_mut(device).matrix_mut());
    (out.elements(), d_x.elements())
}

fn gelu(kind: Gelu, x: f64) -> f64 {
    match kind {
        Gelu::Tanh => {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
        }
        Gelu::Exact => x * share(x),
    }
}

/// The integral of the density from 0, by Simpson's rule.
fn share(x: f64) -> f64 {
    let density = |x: f64| (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let step = x / 1000.0;
    let middle: f64 = (0..1000).map(|i| 4.0 * density((f64::from(i) + 0.5) * step)).sum();
    let inner: f64 = (1..1000).map(|i| 2.0 * density(f64::from(i) * step)).sum();
    0.5 + step / 6.0 * (density(0.0) + density(x) + middle + inner)
}

fn check_gelu<E: Element>(kind: Gelu, rows: usize, columns: usize, seed: u64) {
    let random = &mut TestRandom::new(seed);
    let (x, d) = (spread::<E>(rows, columns, random), spread::<E>(rows, columns, random));
    let (out, d_x) = on_any_processor(|device| run_gelu(device, kind, &x, &d));
    let expected: Vec<f64> = x.wide().into_iter().map(|x| gelu(kind, x)).collect();
    assert_close(&out, &expected, tolerance::<E>());
    let slope = |x: f64| (gelu(kind, x + 1e-5) - gelu(kind, x - 1e-5)) / 2e-5;
    let expected: Vec<f64> = x.wide().into_iter().zip(d.wide()).map(|(x, d)| d * slope(x)).collect();
    assert_close(&d_x, &expected, 2.0 * tolerance::<E>());
}

fn run_gelu<E: Element>(device: &Device, kind: Gelu, x: &Spaced<E>, d: &Spaced<E>) -> (Vec<f32>, Vec<f32>) {
    let (mut out, mut d_x) = (Spaced::zeros(d.rows, d.columns, 0), Spaced::zeros(x.rows, x.columns, 5));
    device.gelu(kind, x.on(device).matrix(), out.on_mut(device).matrix_mut());
    device.gelu_backward(kind, x.on(device).matrix(), d.on(device).matrix(), d_x.on_mut(device).matrix_mut());
    (out.elements(), d_x.elements())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn swiglu_and_its_gradient_are_those_of_the_definition(
        rows in 1usize..4, columns in 1usize..35, seed in 0u64..1000
    ) {
        check_swiglu::<f32>(rows, columns, seed);
        check_swiglu::<Bf16>(rows, columns, seed);
    }

    #[test]
    fn both_kinds_of_gelu_and_their_slopes_are_those_of_the_definition(
        rows in 1usize..4, columns in 1usize..35, seed in 0u64..1000
    ) {
        for kind in [Gelu::Tanh, Gelu::Exact] {
            check_gelu::<f32>(kind, rows, columns, seed);
            check_gelu::<Bf16>(kind, rows, columns, seed);
        }
    }
}

#[test]
fn large_matrices_give_the_same_on_any_processor() {
    let random = &mut TestRandom::new(5);
    let (x, d) = (spread::<Bf16>(100, 1000, random), spread::<Bf16>(100, 500, random));
    on_any_processor(|device| run_swiglu(device, &x, &d));
    let d = spread::<Bf16>(100, 1000, random);
    on_any_processor(|device| run_gelu(device, Gelu::Exact, &x, &d));
}

#[test]
fn huge_inputs_stay_finite() {
    let x = Spaced::<f32>::new(1, 4, 0, {
        let mut elements = [1e30, -1e30, 3e4, -3e4].into_iter().cycle();
        move || elements.next().unwrap()
    });
    let d = Spaced::<f32>::new(1, 4, 0, || 1.0);
    for kind in [Gelu::Tanh, Gelu::Exact] {
        let (out, d_x) = on_any_processor(|device| run_gelu(device, kind, &x, &d));
        assert_eq!(out, [1e30, 0.0, 3e4, 0.0]);
        assert_eq!(d_x, [1.0, 0.0, 1.0, 0.0]);
    }
}
