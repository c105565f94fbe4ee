//! Operators that pass over memory once, and the optimizer.

use super::sample::CheckInputs;
use super::{Check, checks};
use crate::{Accumulate, AdamW, Element, SampleParams};

pub(super) const CHECKS: &[Check] =
    checks![fill, fill_normal, argmax in f32, sample in f32, add, scale, put_rows, sums, adamw];

fn fill<E: Element>(s: &CheckInputs<'_>) -> Vec<f32> {
    let mut buffer = s.vector::<E>(1003);
    s.device.fill(buffer.range_mut(s.gap..1003), 0.5);
    s.read(&buffer)
}

fn fill_normal<E: Element>(s: &CheckInputs<'_>) -> Vec<f32> {
    let mut buffer = s.vector::<E>(1003);
    s.device.fill_normal(buffer.range_mut(s.gap..1003), 0x1234_5678, 17, 0.02);
    s.read(&buffer)
}

fn argmax(s: &CheckInputs<'_>) -> Vec<f32> {
    let (rows, columns) = (9, 5003);
    let (logits, mut places) = (s.grid::<f32>(rows, columns), s.device.zeros(rows));
    s.device.argmax(logits.matrix(), places.view_mut());
    s.read_whole(&places)
}

/// Numbers are multiples of 1/128, so that there are many equal ones at every edge.
fn sample(s: &CheckInputs<'_>) -> Vec<f32> {
    let (rows, columns) = (12, 5003);
    let (logits, mut tokens) = (s.grid::<f32>(rows, columns), s.device.zeros(rows));
    let plain = SampleParams { temperature: 0.7, top_k: 0, top_p: 1.0, min_p: 0.0, chance: 0 };
    let kinds = [
        plain,
        SampleParams { top_k: 40, ..plain },
        SampleParams { top_p: 0.9, ..plain },
        SampleParams { top_k: 700, top_p: 0.5, temperature: 0.2, ..plain },
        SampleParams { min_p: 0.3, ..plain },
        SampleParams { top_k: 6000, top_p: 0.0, ..plain },
    ];
    let words = (0..rows).flat_map(|row| {
        let chance = (s.below(1 << 30) as u64) << 34;
        SampleParams { chance, ..kinds[row % kinds.len()] }.words(row)
    });
    let words = s.given(&words.collect::<Vec<u32>>());
    s.device.sample(logits.matrix(), words.view(), tokens.view_mut());
    s.read_whole(&tokens)
}

fn add<E: Element>(s: &CheckInputs<'_>) -> Vec<f32> {
    let (from, mut to, mut wide) = (s.vector::<E>(1003), s.vector::<E>(1003), s.vector::<f32>(1003));
    s.device.add(from.range(s.gap..1003), to.range_mut(s.gap..1003));
    s.device.add(from.view(), wide.view_mut());
    [s.read(&to), s.read(&wide)].concat()
}

fn scale<E: Element>(s: &CheckInputs<'_>) -> Vec<f32> {
    let (from, mut to) = (s.vector::<f32>(1003), s.vector::<E>(1003));
    s.device.scale(from.range(s.gap..1003), 0.37, to.range_mut(s.gap..1003));
    let mut copy = s.vector::<E>(1003);
    s.device.copy(to.view(), copy.view_mut());
    s.read(&copy)
}

fn put_rows<E: Element>(s: &CheckInputs<'_>) -> Vec<f32> {
    let (from, mut to) = (s.grid::<f32>(17, 40), s.grid::<E>(17, 40));
    s.device.put_rows(from.matrix(), Accumulate::Add, to.matrix_mut());
    let mut second = s.grid::<f32>(17, 40);
    s.device.put_rows(to.matrix(), Accumulate::Replace, second.matrix_mut());
    [to.read(), second.read()].concat()
}

fn sums<E: Element>(s: &CheckInputs<'_>) -> Vec<f32> {
    let (x, wide) = (s.vector::<E>(70_001), s.vector::<f32>(70_001));
    let none = s.device.first_non_finite(x.view()).map_or(-1.0, |place| place as f32);
    let mut numbers = vec![E::default(); 1000];
    (numbers[700], numbers[900]) = (E::narrow(f32::INFINITY), E::narrow(f32::NAN));
    let some = s.device.first_non_finite(s.given(&numbers).view()).map_or(-1.0, |place| place as f32);
    vec![s.device.sum_of_squares(x.view()) as f32, s.device.sum(wide.view()) as f32, none, some]
}

fn adamw<E: Element>(s: &CheckInputs<'_>) -> Vec<f32> {
    let len = 1000 + s.gap;
    let [mut weights, gradient, mut first] = [(); 3].map(|()| s.vector::<f32>(len));
    let second: Vec<f32> = (0..len).map(|_| s.number().abs()).collect();
    let (mut second, mut copy) = (s.given(&second), s.device.zeros(len));
    let step = AdamW {
        learning_rate: 0.01,
        beta1: 0.9,
        beta2: 0.95,
        epsilon: 1e-8,
        weight_decay: 0.1,
        step: 3,
        gradient_scale: 0.5,
    };
    let copied = (E::NAME == "bf16").then(|| copy.view_mut());
    s.device.adamw(&step, weights.view_mut(), gradient.view(), first.view_mut(), second.view_mut(), copied);
    let copy = if E::NAME == "bf16" { s.read(&copy) } else { s.read(&weights) };
    [s.read(&weights), s.read(&first), s.read(&second), copy].concat()
}
