//! AdamW against the published algorithm in `f64`, over several steps.

use super::*;
use crate::testing::{Lent, TestRandom, assert_close, lend, lend_mut, on_any_processor, wide};

const SETTINGS: AdamW = AdamW {
    learning_rate: 1e-2,
    beta1: 0.9,
    beta2: 0.999,
    epsilon: 1e-8,
    weight_decay: 0.1,
    step: 1,
    gradient_scale: 0.5,
};

#[derive(Debug, Clone, PartialEq)]
struct State {
    weights: Vec<f32>,
    first: Vec<f32>,
    second: Vec<f32>,
    copy: Vec<Bf16>,
}

fn take_steps(device: &Device, len: usize, steps: u64, with_copy: bool) -> State {
    let random = &mut TestRandom::new(3);
    let mut state = State {
        weights: random.numbers(len),
        first: vec![0.0; len],
        second: vec![0.0; len],
        copy: vec![Bf16::default(); len],
    };
    for step in 1..=steps {
        let gradient: Vec<f32> = random.numbers(len);
        let State { weights, first, second, copy } = &mut state;
        let mut copy = with_copy.then(|| lend_mut(device, copy));
        device.adamw(
            &AdamW { step, ..SETTINGS },
            lend_mut(device, weights).view_mut(),
            lend(device, &gradient).view(),
            lend_mut(device, first).view_mut(),
            lend_mut(device, second).view_mut(),
            copy.as_mut().map(Lent::view_mut),
        );
    }
    state
}

/// As Loshchilov and Hutter have it, and `torch.optim.AdamW`.
fn by_definition(len: usize, steps: u64) -> Vec<f64> {
    let random = &mut TestRandom::new(3);
    let mut weights = wide(&random.numbers::<f32>(len));
    let (mut first, mut second) = (vec![0.0; len], vec![0.0; len]);
    let AdamW { learning_rate: rate, beta1, beta2, epsilon, weight_decay, .. } = SETTINGS;
    for step in 1..=steps as i32 {
        let gradient = wide(&random.numbers::<f32>(len));
        for index in 0..len {
            let g: f64 = gradient[index] * 0.5;
            first[index] = beta1 * first[index] + (1.0 - beta1) * g;
            second[index] = beta2 * second[index] + (1.0 - beta2) * g * g;
            let corrected = first[index] / (1.0 - beta1.powi(step));
            let size = (second[index] / (1.0 - beta2.powi(step))).sqrt();
            weights[index] -= rate * weight_decay * weights[index];
            weights[index] -= rate * corrected / (size + epsilon);
        }
    }
    weights
}

#[test]
fn steps_are_those_of_the_algorithm() {
    for len in [1, 17, 1000] {
        let found = on_any_processor(|device| take_steps(device, len, 20, true));
        assert_close(&found.weights, &by_definition(len, 20), 2e-6);
    }
}

#[test]
fn the_copy_is_the_weights_rounded_and_changes_nothing_else() {
    let with_copy = on_any_processor(|device| take_steps(device, 100_000, 3, true));
    let without = on_any_processor(|device| take_steps(device, 100_000, 3, false));
    let rounded: Vec<Bf16> = with_copy.weights.iter().map(|weight| Bf16::from_f32(*weight)).collect();
    assert_eq!(with_copy.copy, rounded);
    assert_eq!(State { copy: rounded, ..without }, with_copy);
}

#[test]
fn a_weight_without_gradient_only_decays() {
    let mut weights = [2.0];
    let (mut first, mut second) = ([0.0], [0.0]);
    let device = &Device::cpu(1);
    device.adamw(
        &SETTINGS,
        lend_mut(device, &mut weights).view_mut(),
        lend(device, &[0.0]).view(),
        lend_mut(device, &mut first).view_mut(),
        lend_mut(device, &mut second).view_mut(),
        None,
    );
    assert_eq!(weights, [2.0 * 0.999]);
}
