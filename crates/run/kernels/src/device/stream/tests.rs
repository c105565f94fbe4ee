//! Passing over memory.

use proptest::prelude::*;

use crate::testing::{Spaced, TestRandom, lend, lend_mut, on_any_processor};
use crate::{Accumulate, Bf16, Device, Element};

fn check_sum<E: Element>(len: usize) {
    let random = &mut TestRandom::new(len as u64);
    let (x, to): (Vec<E>, Vec<E>) = (random.numbers(len), random.numbers(len));
    let [copied, added] = on_any_processor(|device| {
        let (mut copied, mut added) = (to.clone(), to.clone());
        device.copy(lend(device, &x).view(), lend_mut(device, &mut copied).view_mut());
        device.add(lend(device, &x).view(), lend_mut(device, &mut added).view_mut());
        [copied, added]
    });
    let expected: Vec<E> = x.iter().zip(&to).map(|(a, b)| E::narrow(a.widen() + b.widen())).collect();
    assert_eq!((copied, added), (x, expected));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]
    #[test]
    fn copies_and_sums_cover_every_number(len in 0usize..100_000) {
        check_sum::<f32>(len);
        check_sum::<Bf16>(len);
    }

    #[test]
    fn the_first_number_that_is_none_is_found(
        len in 1usize..100_000, places in prop::collection::vec(0usize..100_000, 0..4)
    ) {
        let mut elements = vec![f32::MAX; len];
        let bad = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
        for (place, bad) in places.iter().zip(bad) {
            elements[*place % len] = bad;
        }
        let first = elements.iter().position(|number| !number.is_finite());
        prop_assert_eq!(on_any_processor(|device| device.first_non_finite(lend(device, &elements).view())), first);
        let rounded: Vec<Bf16> = elements.iter().map(|number| Bf16::from_f32(number * 0.5)).collect();
        prop_assert_eq!(on_any_processor(|device| device.first_non_finite(lend(device, &rounded).view())), first);
    }
}

#[test]
fn rows_are_put_where_they_belong_in_either_format() {
    let random = &mut TestRandom::new(3);
    let (x, before) = (Spaced::<Bf16>::random(70, 33, 3, random), Spaced::<f32>::random(70, 33, 5, random));
    let [replaced, added] = on_any_processor(|device| {
        [Accumulate::Replace, Accumulate::Add].map(|mode| {
            let mut to = before.clone();
            device.put_rows(x.on(device).matrix(), mode, to.on_mut(device).matrix_mut());
            to.elements()
        })
    });
    let x = x.elements();
    assert_eq!(replaced, x);
    let sums: Vec<f32> = x.iter().zip(before.elements()).map(|(x, before)| before + x).collect();
    assert_eq!(added, sums);
}

#[test]
fn sums_do_not_depend_on_the_number_of_threads() {
    let values: Vec<f32> = (0..300_000).map(|index| (index as f32).sin()).collect();
    let sum = |threads| {
        let device = Device::cpu(threads);
        let mut buffer = device.zeros::<f32>(values.len());
        device.write(buffer.view_mut(), &values);
        device.sum_of_squares(buffer.view())
    };
    assert_eq!(sum(1), sum(3));
    let plain: f64 = values.iter().map(|value| f64::from(*value).powi(2)).sum();
    assert!((sum(1) - plain).abs() < 1e-9 * plain);
}

#[test]
fn converting_there_and_back_keeps_what_bf16_can_hold() {
    let device = Device::cpu(2);
    let (mut wide, mut narrow) = (device.zeros::<f32>(100_000), device.zeros::<Bf16>(100_000));
    device.fill(wide.view_mut(), 1.5);
    device.convert(wide.view(), narrow.view_mut());
    device.fill(wide.view_mut(), 0.0);
    device.convert(narrow.view(), wide.view_mut());
    assert_eq!(device.sum_of_squares(wide.view()), 225_000.0);
}
