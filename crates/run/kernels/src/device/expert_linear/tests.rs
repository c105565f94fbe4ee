//! Experts against a linear layer for each, at every level.

use proptest::prelude::*;

use crate::reference::{devices, random};
use crate::testing::lend;
use crate::{Accumulate, Bf16, Device, Element};

const INPUTS: usize = 37;
const OUTPUTS: usize = 45;

/// Experts with a number of rows each.
struct Case<E> {
    offsets: Vec<u32>,
    x: Vec<E>,
    d_out: Vec<E>,
    weights: Vec<E>,
}

#[derive(Debug, PartialEq)]
struct Results {
    out: Vec<f32>,
    d_x: Vec<f32>,
    d_weights: Vec<f32>,
}

impl<E: Element> Case<E> {
    fn new(counts: &[usize]) -> Self {
        let mut offsets = vec![0];
        counts.iter().for_each(|count| offsets.push(offsets[offsets.len() - 1] + *count as u32));
        let rows: usize = counts.iter().sum();
        let (x, d_out) = (random(1, rows * INPUTS), random(2, rows * OUTPUTS));
        Self { offsets, x, d_out, weights: random(3, counts.len() * OUTPUTS * INPUTS) }
    }

    fn rows(&self) -> usize {
        self.x.len() / INPUTS
    }

    fn together(&self, device: &Device) -> Results {
        let rows = self.rows();
        let mut out = lend(device, &vec![E::default(); rows * OUTPUTS]);
        let mut d_x = lend(device, &vec![E::default(); rows * INPUTS]);
        let mut d_weights = lend(device, &vec![0.5; self.weights.len()]);
        let [x, d_out, weights] = [&self.x, &self.d_out, &self.weights].map(|values| lend(device, values));
        let offsets = lend(device, &self.offsets);
        let (offsets, weights) = (offsets.view(), weights.view());
        let (x, d_out) = (x.view().matrix(rows, INPUTS), d_out.view().matrix(rows, OUTPUTS));
        device.expert_linear(x, offsets, weights, out.view_mut().matrix(rows, OUTPUTS));
        device.expert_linear_backward_input(d_out, offsets, weights, d_x.view_mut().matrix(rows, INPUTS));
        device.expert_linear_backward_weight(d_out, x, offsets, d_weights.view_mut());
        Results { out: widen(&out.elements()), d_x: widen(&d_x.elements()), d_weights: d_weights.elements() }
    }

    fn one_by_one(&self, device: &Device) -> Results {
        let rows = self.rows();
        let mut out = lend(device, &vec![E::default(); rows * OUTPUTS]);
        let mut d_x = lend(device, &vec![E::default(); rows * INPUTS]);
        let mut d_weights = lend(device, &vec![0.5; self.weights.len()]);
        let [x, d_out, weights] = [&self.x, &self.d_out, &self.weights].map(|values| lend(device, values));
        for expert in 0..self.offsets.len() - 1 {
            let range = self.offsets[expert] as usize..self.offsets[expert + 1] as usize;
            let of_expert = expert * OUTPUTS * INPUTS..(expert + 1) * OUTPUTS * INPUTS;
            let weight = weights.view().range(of_expert.clone());
            let x = x.view().matrix(rows, INPUTS).rows(range.clone());
            let d_out = d_out.view().matrix(rows, OUTPUTS).rows(range.clone());
            let to = out.view_mut().matrix(rows, OUTPUTS).rows(range.clone());
            device.linear(x, weight, None, None, to);
            let to = d_x.view_mut().matrix(rows, INPUTS).rows(range);
            device.linear_backward_input(d_out, weight, Accumulate::Replace, to);
            device.linear_backward_weight(d_out, x, d_weights.view_mut().range(of_expert), None);
        }
        Results { out: widen(&out.elements()), d_x: widen(&d_x.elements()), d_weights: d_weights.elements() }
    }
}

fn widen<E: Element>(values: &[E]) -> Vec<f32> {
    values.iter().map(|value| value.widen()).collect()
}

#[test]
fn experts_without_rows_are_left_alone() {
    let case = Case::<f32>::new(&[0, 3, 0]);
    let results = case.together(&Device::cpu(2));
    assert!(results.d_weights[..OUTPUTS * INPUTS].iter().all(|value| *value == 0.5));
    assert_eq!(results, case.one_by_one(&Device::cpu(1)));
}

#[test]
fn no_rows_at_all_give_nothing() {
    assert!(Case::<f32>::new(&[0, 0]).together(&Device::cpu(2)).out.is_empty());
}

#[test]
fn gradients_are_those_of_finite_differences() {
    let case = Case::<f32>::new(&[2, 0, 3]);
    let device = Device::cpu(1);
    let loss = |x: &[f32], weights: &[f32]| -> f64 {
        let moved = Case { x: x.to_vec(), weights: weights.to_vec(), ..Case::<f32>::new(&[2, 0, 3]) };
        let out = moved.together(&device).out;
        out.iter().zip(&case.d_out).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    };
    let results = case.together(&device);
    let moved = |values: &[f32], index: usize, by: f32| {
        let mut moved = values.to_vec();
        moved[index] += by;
        moved
    };
    for index in (0..case.x.len()).step_by(7) {
        let slope = loss(&moved(&case.x, index, 0.5), &case.weights)
            - loss(&moved(&case.x, index, -0.5), &case.weights);
        assert!((f64::from(results.d_x[index]) - slope).abs() < 1e-4);
    }
    for index in (0..case.weights.len()).step_by(101) {
        let slope = loss(&case.x, &moved(&case.weights, index, 0.5))
            - loss(&case.x, &moved(&case.weights, index, -0.5));
        assert!((f64::from(results.d_weights[index]) - 0.5 - slope).abs() < 1e-4);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn all_experts_at_once_are_what_each_alone_gives(counts in prop::collection::vec(0usize..80, 1..6)) {
        for device in devices() {
            let case = Case::<f32>::new(&counts);
            prop_assert_eq!(case.together(&device), case.one_by_one(&device));
            let case = Case::<Bf16>::new(&counts);
            prop_assert_eq!(case.together(&device), case.one_by_one(&device));
        }
    }
}
