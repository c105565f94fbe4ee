//! Products with packed weights against their definition, at every level, and that rows do not depend on each other.

use proptest::prelude::*;

use crate::reference::{self, Grid, devices, random};
use crate::testing::{Spaced, TestRandom, lend, lend_mut};
use crate::{Bf16, Device, Element, Packed, WeightFormat};

fn pack<W: Element>(device: &Device, weight: &[W], outputs: usize, format: WeightFormat) -> Packed {
    device.pack(lend(device, weight).view(), outputs, format)
}

/// The elements that a packed matrix stands for.
fn unpacked(device: &Device, weight: &Packed) -> Vec<f32> {
    let tokens: Vec<u32> = (0..weight.outputs() as u32).collect();
    let mut out = Spaced::<f32>::zeros(weight.outputs(), weight.inputs(), 3);
    device.unpack_rows(lend(device, &tokens).view(), weight, out.on_mut(device).matrix_mut());
    out.elements()
}

/// `x W^T` without more.
fn product<X: Element>(device: &Device, x: &Spaced<X>, weight: &Packed) -> Vec<f32> {
    let mut out = Spaced::<f32>::zeros(x.rows, weight.outputs(), 5);
    device.linear_packed(x.on(device).matrix(), weight, None, None, out.on_mut(device).matrix_mut());
    out.elements()
}

/// Some rows of a matrix, in a matrix of their own.
fn rows_of<X: Element>(x: &Spaced<X>, rows: &[usize], gap: usize) -> Spaced<X> {
    let elements = x.elements();
    let mut picked = rows.iter().flat_map(|row| &elements[row * x.columns..][..x.columns]);
    Spaced::new(rows.len(), x.columns, gap, || *picked.next().expect("a number for each place"))
}

/// The rows as they are multiplied: with whole numbers on tiles they are rounded to 8 bits, 32 inputs with a scale.
fn as_multiplied<X: Element>(
    device: &Device,
    format: WeightFormat,
    mut x: Vec<f32>,
    inputs: usize,
) -> Vec<f32> {
    let is_whole = matches!(format, WeightFormat::Int8 | WeightFormat::Int4);
    if is_whole && X::NAME == "bf16" && device.has_tiles() {
        for x in x.chunks_mut(inputs.max(1)).flat_map(|row| row.chunks_mut(32)) {
            let most = x.iter().fold(f32::MIN_POSITIVE, |most, x| most.max(x.abs()));
            x.iter_mut().for_each(|x| *x = (*x * (127.0 / most)).round_ties_even() * (most / 127.0));
        }
    }
    x
}

fn check<X: Element>(device: &Device, (rows, inputs, outputs): (usize, usize, usize), format: WeightFormat) {
    let what = format!("{} {rows}x{inputs}x{outputs} {} {}", device.instructions(), X::NAME, format.name());
    let mut seed = TestRandom::new(7);
    let x = Spaced::<X>::random(rows, inputs, 3, &mut seed);
    let weight = pack(device, &random::<f32>(2, outputs * inputs), outputs, format);
    let (bias, under) = (random::<X>(3, outputs), Spaced::<X>::random(rows, outputs, 2, &mut seed));
    let mut out = Spaced::<X>::zeros(rows, outputs, 1);
    device.linear_packed(
        x.on(device).matrix(),
        &weight,
        Some(lend(device, &bias).view()),
        Some(under.on(device).matrix()),
        out.on_mut(device).matrix_mut(),
    );
    let elements = as_multiplied::<X>(device, format, x.elements(), inputs);
    let x = Grid { values: &elements, stride: inputs };
    let weight = unpacked(device, &weight);
    let expected = reference::linear(x, Grid { values: &weight, stride: inputs }, (rows, inputs, outputs));
    for (index, (got, expected)) in out.wide().into_iter().zip(expected).enumerate() {
        let expected = expected + f64::from(bias[index % outputs].widen()) + under.wide()[index];
        let rounding = if X::NAME == "bf16" { expected.abs() / 256.0 } else { 1e-6 * expected.abs() };
        let error = (got - expected).abs();
        assert!(
            error <= 2e-6 * (inputs as f64).sqrt() + 1e-6 + rounding,
            "{what}: {got}, not {expected}, at {index}"
        );
    }
}

#[test]
fn every_level_and_format_agrees_with_the_definition_at_the_edges_of_panels_and_blocks() {
    let shapes =
        [(1, 1, 1), (1, 530, 65), (2, 32, 32), (16, 33, 31), (17, 520, 70), (33, 140, 40), (3, 0, 5)];
    for device in devices() {
        for format in WeightFormat::ALL {
            for shape in shapes {
                check::<f32>(&device, shape, format);
                check::<Bf16>(&device, shape, format);
            }
        }
    }
}

#[test]
fn a_row_is_the_same_alone_and_among_others_at_any_place_and_on_any_number_of_threads() {
    for device in devices() {
        invariant::<f32>(&device);
        invariant::<Bf16>(&device);
    }
}

fn invariant<X: Element>(device: &Device) {
    let (inputs, outputs, rows) = (601, 100, 530);
    let x = Spaced::<X>::random(rows, inputs, 0, &mut TestRandom::new(5));
    let weight = random::<f32>(2, outputs * inputs);
    for format in WeightFormat::ALL {
        let packed = pack(device, &weight, outputs, format);
        let all = product(device, &x, &packed);
        let expect = |rows: &[usize], gap: usize| {
            let got = product(device, &rows_of(&x, rows, gap), &packed);
            for (got, row) in got.chunks(outputs).zip(rows) {
                let same = got.iter().zip(&all[row * outputs..]).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(
                    same,
                    "{} {} {}: row {row} of {}",
                    device.instructions(),
                    X::NAME,
                    format.name(),
                    rows.len()
                );
            }
        };
        expect(&[0], 0);
        expect(&[529], 7);
        expect(&(100..116).rev().collect::<Vec<_>>(), 1);
        expect(&(7..30).collect::<Vec<_>>(), 0);
        expect(&(400..500).rev().collect::<Vec<_>>(), 3);
        let one = Device::cpu(1);
        if device.instructions() == one.instructions() {
            assert!(product(&one, &x, &pack(&one, &weight, outputs, format)) == all, "threads");
        }
    }
}

#[test]
fn experts_multiply_their_rows_as_a_linear_layer_does_and_those_without_rows_are_left_alone() {
    for device in devices() {
        for format in WeightFormat::ALL {
            experts::<f32>(&device, format);
            experts::<Bf16>(&device, format);
        }
    }
}

fn experts<X: Element>(device: &Device, format: WeightFormat) {
    let (inputs, outputs, offsets) = (70, 45, [0u32, 1, 1, 21, 22, 22, 90]);
    let x = Spaced::<X>::random(90, inputs, 2, &mut TestRandom::new(9));
    let weights: Vec<Packed> = (0..offsets.len() as u64 - 1)
        .map(|expert| pack(device, &random::<X>(expert + 1, outputs * inputs), outputs, format))
        .collect();
    let weights = device.pack_experts(weights);
    let mut out = Spaced::<X>::zeros(90, outputs, 4);
    device.expert_linear_packed(
        x.on(device).matrix(),
        lend(device, &offsets).view(),
        &weights,
        out.on_mut(device).matrix_mut(),
    );
    let elements = out.elements();
    for (expert, weight) in weights.each.iter().enumerate() {
        let rows: Vec<usize> = (offsets[expert] as usize..offsets[expert + 1] as usize).collect();
        if rows.is_empty() {
            continue;
        }
        let expected = product(device, &rows_of(&x, &rows, 0), weight);
        let got = &elements[offsets[expert] as usize * outputs..][..rows.len() * outputs];
        assert!(got.iter().zip(&expected).all(|(a, b)| *a == X::narrow(*b).widen()), "expert {expert}");
    }
}

#[test]
fn unpacked_rows_are_what_was_packed_where_the_format_holds_it() {
    for device in devices() {
        let (outputs, inputs) = (45, 75);
        let weight: Vec<f32> =
            random::<Bf16>(2, outputs * inputs).iter().map(|number| number.widen()).collect();
        for format in [WeightFormat::F32, WeightFormat::Bf16, WeightFormat::F16] {
            let rounded = |number: &f32| match format {
                WeightFormat::F16 => half::f16::from_f32(*number).to_f32(),
                _ => *number,
            };
            let expected: Vec<f32> = weight.iter().map(rounded).collect();
            assert_eq!(unpacked(&device, &pack(&device, &weight, outputs, format)), expected);
        }
        let packed = pack(&device, &weight, outputs, WeightFormat::Bf16);
        let mut out = Spaced::<Bf16>::zeros(3, inputs, 1);
        device.unpack_rows(lend(&device, &[44u32, 0, 44]).view(), &packed, out.on_mut(&device).matrix_mut());
        let row = |row: usize| &weight[row * inputs..][..inputs];
        assert_eq!(out.elements(), [row(44), row(0), row(44)].concat());
    }
}

#[test]
#[should_panic(expected = "row 45 of a matrix of 45 rows")]
fn a_token_beyond_the_table_is_refused() {
    let device = Device::cpu(1);
    let packed = pack(&device, &random::<f32>(2, 45 * 10), 45, WeightFormat::Int4);
    let mut out = lend(&device, &[0.0f32; 10]);
    device.unpack_rows(lend(&device, &[45u32]).view(), &packed, out.view_mut().matrix(1, 10));
}

/// Twelve even numbers make one that is nearly normal.
fn normal(random: &mut TestRandom) -> f32 {
    (0..12).map(|_| random.number()).sum::<f32>() / 2.0
}

/// The root of the mean square of errors over that of the elements themselves.
fn relative_error(got: &[f32], exact: &[f32]) -> f64 {
    let square = |number: f32| f64::from(number) * f64::from(number);
    let errors: f64 = got.iter().zip(exact).map(|(got, exact)| square(got - exact)).sum();
    (errors / exact.iter().map(|exact| square(*exact)).sum::<f64>()).sqrt()
}

#[test]
fn few_bits_stand_for_normal_weights_with_small_errors() {
    let (device, mut seed) = (Device::cpu(2), TestRandom::new(3));
    let (rows, inputs, outputs) = (8, 1024, 64);
    let weight: Vec<f32> = (0..outputs * inputs).map(|_| 0.02 * normal(&mut seed)).collect();
    let x = Spaced::<Bf16>::new(rows, inputs, 0, || normal(&mut seed));
    let exact = product(&device, &x, &pack(&device, &weight, outputs, WeightFormat::F32));
    for (format, of_weights, of_products) in [
        (WeightFormat::Int8, 0.008, 0.01),
        (WeightFormat::Fp8, 0.028, 0.028),
        (WeightFormat::Int4, 0.08, 0.1),
    ] {
        let packed = pack(&device, &weight, outputs, format);
        let error = relative_error(&unpacked(&device, &packed), &weight);
        assert!(error < of_weights, "weights of {}: {error}", format.name());
        let error = relative_error(&product(&device, &x, &packed), &exact);
        assert!(error < of_products, "products of {}: {error}", format.name());
    }
}

#[test]
fn whole_numbers_and_their_scales_are_exact_where_they_can_be() {
    let device = Device::cpu(1);
    let elements: Vec<f32> = (0..64).map(|number| (number % 16 - 8) as f32 * 0.25).collect();
    let packed = pack(&device, &elements, 2, WeightFormat::Int4);
    assert_eq!(unpacked(&device, &packed), elements);
    let elements: Vec<f32> = (0..64).map(|number| (4 * number - 127) as f32 * 0.5).collect();
    assert_eq!(unpacked(&device, &pack(&device, &elements[..32], 1, WeightFormat::Int8)), elements[..32]);
    let zeros = pack(&device, &[0.0f32; 64], 2, WeightFormat::Int4);
    assert_eq!(unpacked(&device, &zeros), [0.0; 64]);
}

#[test]
fn a_packed_matrix_takes_the_bytes_of_its_format() {
    let device = Device::cpu(1);
    let bytes = WeightFormat::ALL.map(|format| pack(&device, &[1.0f32; 64 * 64], 64, format).bytes());
    assert_eq!(
        bytes,
        [4, 2, 2, 2, 1, 0].map(|each| each * 64 * 64).map(|all| match all {
            0 => 64 * 64 / 2 + 64 * 64 / 16,
            4096 => 4096 + 64 * 64 / 16,
            all => all,
        })
    );
}

#[test]
fn an_output_in_another_format_is_rounded_once() {
    let device = Device::cpu(2);
    let x = Spaced::<Bf16>::random(5, 64, 0, &mut TestRandom::new(4));
    let packed = pack(&device, &random::<Bf16>(1, 40 * 64), 40, WeightFormat::Bf16);
    let mut narrow = vec![Bf16::default(); 5 * 40];
    let to = &mut lend_mut(&device, &mut narrow);
    device.linear_packed(x.on(&device).matrix(), &packed, None, None, to.view_mut().matrix(5, 40));
    let narrow = to.elements();
    let wide = product(&device, &x, &packed);
    assert!(narrow.iter().zip(&wide).all(|(narrow, wide)| *narrow == Bf16::from_f32(*wide)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn any_shape_agrees_with_the_definition(
        shape in (1usize..80, 1usize..300, 1usize..120),
        format in 0usize..6,
    ) {
        for device in devices() {
            check::<f32>(&device, shape, WeightFormat::ALL[format]);
            check::<Bf16>(&device, shape, WeightFormat::ALL[format]);
        }
    }
}
