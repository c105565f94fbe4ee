//! Layers in fp8 against products of what the sides were rounded to, by the definition of the format.

use proptest::prelude::*;

use crate::reference::{self, Grid, devices, random};
use crate::testing::{lend, lend_mut};
use crate::{Accumulate, Bf16, Device, Element};

/// A number with a line's largest one, as the format's definition has it.
fn rounded(number: f64, most: f64) -> f64 {
    if most == 0.0 {
        return 0.0;
    }
    let scale = (most / 448.0).log2().ceil().exp2();
    let size = (number / scale).abs();
    let step = (size.max(f64::MIN_POSITIVE).log2().floor().max(-6.0) - 3.0).exp2();
    (size / step).round_ties_even() * step * scale * number.signum()
}

/// Every line of `line` neighbours rounded.
fn in_fp8(elements: &[Bf16], line: usize) -> Vec<f32> {
    let lines = elements.chunks(line).flat_map(|line| {
        let wide: Vec<f64> = line.iter().map(|number| f64::from(number.widen())).collect();
        let most = wide.iter().fold(0.0f64, |most, number| most.max(number.abs()));
        wide.into_iter().map(move |number| rounded(number, most) as f32)
    });
    lines.collect()
}

fn turned<E: Copy>(elements: &[E], columns: usize) -> Vec<E> {
    let rows = elements.len() / columns.max(1);
    (0..columns).flat_map(|column| (0..rows).map(move |row| elements[row * columns + column])).collect()
}

fn grid(values: &[f32], stride: usize) -> Grid<'_, f32> {
    Grid { values, stride }
}

/// Largest distance over the size of what is expected.
fn assert_near(found: &[f32], expected: &[f64], name: &str) {
    let size = expected.iter().fold(1e-3f64, |most, number| most.max(number.abs()));
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!(
            (f64::from(*found) - expected).abs() <= 1e-5 * size,
            "{name} {index}: {found} for {expected}"
        );
    }
}

fn check(device: &Device, (rows, inputs, outputs): (usize, usize, usize)) {
    let name = format!("{} {:?}", device.instructions(), (rows, inputs, outputs));
    let (x, weight): (Vec<Bf16>, Vec<Bf16>) = (random(1, rows * inputs), random(2, outputs * inputs));
    let (d_out, bias): (Vec<Bf16>, Vec<Bf16>) = (random(3, rows * outputs), random(4, outputs));
    let mut out = vec![0.0f32; rows * outputs];
    device.linear_fp8(
        lend(device, &x).by_rows(rows, 0).matrix(),
        lend(device, &weight).view(),
        Some(lend(device, &bias).view()),
        None,
        lend_mut(device, &mut out).by_rows(rows, 0).matrix_mut(),
    );
    let (x8, w8) = (in_fp8(&x, inputs), in_fp8(&weight, inputs));
    let mut expected = reference::linear(grid(&x8, inputs), grid(&w8, inputs), (rows, inputs, outputs));
    for (index, sum) in expected.iter_mut().enumerate() {
        *sum += f64::from(bias[index % outputs].widen());
    }
    assert_near(&out, &expected, &format!("forward {name}"));

    let (d8, turned8) = (in_fp8(&d_out, outputs), in_fp8(&turned(&weight, inputs), outputs));
    let w8 = turned(&turned8, outputs);
    let expected =
        reference::linear_backward_input(grid(&d8, outputs), grid(&w8, inputs), (rows, inputs, outputs));
    for (mode, before) in [(Accumulate::Replace, 0.0), (Accumulate::Add, 0.5)] {
        let mut d_x = vec![0.5f32; rows * inputs];
        let (d_out, weight) = (lend(device, &d_out), lend(device, &weight));
        device.linear_fp8_backward_input(
            d_out.by_rows(rows, 0).matrix(),
            weight.view(),
            mode,
            lend_mut(device, &mut d_x).by_rows(rows, 0).matrix_mut(),
        );
        let expected: Vec<f64> = expected.iter().map(|sum| sum + before).collect();
        assert_near(&d_x, &expected, &format!("input gradient {name}"));
    }
}

#[test]
fn layers_multiply_what_their_sides_are_rounded_to() {
    for device in devices() {
        for sizes in [(1, 16, 16), (5, 7, 3), (33, 64, 48), (130, 96, 200)] {
            check(&device, sizes);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn at_any_size(rows in 1usize..40, inputs in 1usize..80, outputs in 1usize..80) {
        check(&Device::cpu(2), (rows, inputs, outputs));
    }
}

#[test]
fn what_is_not_finite_stays_so() {
    for bad in [f32::NAN, f32::INFINITY] {
        let device = Device::cpu(1);
        let (mut x, weight): (Vec<Bf16>, Vec<Bf16>) = (random(1, 3 * 32), random(2, 16 * 32));
        x[40] = Bf16::from_f32(bad);
        let mut out = vec![0.0f32; 3 * 16];
        let to = &mut lend_mut(&device, &mut out).by_rows(3, 0);
        let x = lend(&device, &x).by_rows(3, 0);
        device.linear_fp8(x.matrix(), lend(&device, &weight).view(), None, None, to.matrix_mut());
        let rows: Vec<bool> =
            to.elements().chunks(16).map(|row| row.iter().all(|sum| sum.is_finite())).collect();
        assert_eq!(rows, [true, false, true], "{bad}");
    }
}
