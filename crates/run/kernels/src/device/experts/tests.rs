//! Tokens on their way to experts and back, against the definitions.

use proptest::prelude::*;

use super::*;
use crate::Bf16;
use crate::testing::{
    Spaced, TestRandom, assert_close, dot, gradient, lend, on_any_processor, tolerance, wide,
};

#[derive(Debug, PartialEq)]
struct Dispatched {
    order: Vec<u32>,
    slots: Vec<u32>,
    offsets: Vec<u32>,
}

fn dispatch(device: &Device, experts: &[u32], count: usize) -> Dispatched {
    let [mut order, mut slots] = [0, 1].map(|_| lend(device, &vec![7; experts.len()]));
    let (experts, mut offsets) = (lend(device, experts), lend(device, &vec![7; count + 1]));
    let to = (order.view_mut(), slots.view_mut(), offsets.view_mut());
    device.dispatch(experts.view(), count, to.0, to.1, to.2);
    Dispatched { order: order.elements(), slots: slots.elements(), offsets: offsets.elements() }
}

fn check_dispatch(experts: &[u32], count: usize) {
    let found = on_any_processor(|device| dispatch(device, experts, count));
    let mut order: Vec<u32> = (0..experts.len() as u32).collect();
    order.sort_by_key(|choice| experts[*choice as usize]);
    assert_eq!(found.order, order);
    for (slot, choice) in order.iter().enumerate() {
        assert_eq!(found.slots[*choice as usize] as usize, slot);
    }
    for expert in 0..=count {
        let before = experts.iter().filter(|chosen| (**chosen as usize) < expert).count();
        assert_eq!(found.offsets[expert] as usize, before);
    }
}

struct Case<E> {
    tokens: usize,
    per_token: usize,
    columns: usize,
    dispatched: Dispatched,
    x: Spaced<E>,
    y: Spaced<E>,
    before: Spaced<E>,
    d_slots: Spaced<E>,
    d_tokens: Spaced<E>,
    weights: Vec<f32>,
}

impl<E: Element> Case<E> {
    fn new(tokens: usize, per_token: usize, columns: usize, count: usize, seed: u64) -> Self {
        let random = &mut TestRandom::new(seed);
        let choices = tokens * per_token;
        Self {
            tokens,
            per_token,
            columns,
            dispatched: dispatch(&Device::cpu(1), &random.tokens(choices, count), count),
            x: Spaced::random(tokens, columns, 1, random),
            y: Spaced::random(choices, columns, 2, random),
            before: Spaced::random(tokens, columns, 1, random),
            d_slots: Spaced::random(choices, columns, 0, random),
            d_tokens: Spaced::random(tokens, columns, 3, random),
            weights: random.numbers(choices),
        }
    }

    fn gathered(&self, x: &[f64]) -> Vec<f64> {
        let token = |choice: &u32| *choice as usize / self.per_token;
        self.dispatched
            .order
            .iter()
            .flat_map(|choice| x[token(choice) * self.columns..][..self.columns].to_vec())
            .collect()
    }

    fn combined(&self, y: &[f64], weights: &[f64]) -> Vec<f64> {
        let number = |token: usize, column: usize| {
            let choices = token * self.per_token..(token + 1) * self.per_token;
            let slot = |choice: usize| self.dispatched.slots[choice] as usize;
            choices.map(|choice| weights[choice] * y[slot(choice) * self.columns + column]).sum::<f64>()
        };
        (0..self.tokens * self.columns)
            .map(|index| number(index / self.columns, index % self.columns))
            .collect()
    }

    /// Gathering, its gradient added to what was before, combining (likewise), gradients of rows and of weights.
    fn run(&self, device: &Device) -> [Vec<f32>; 5] {
        let slots = lend(device, &self.dispatched.slots);
        let (slots, order) = (slots.view(), lend(device, &self.dispatched.order));
        let (choices, per_token) = (self.y.rows, self.per_token);
        let weights = lend(device, &self.weights);
        let (weights, mode) = (weights.view(), Accumulate::Add);
        let (x, y) = (self.x.on(device), self.y.on(device));

        let mut gathered = Spaced::zeros(choices, self.columns, 1);
        let to = &mut gathered;
        device.gather_rows(x.matrix(), order.view(), per_token, to.on_mut(device).matrix_mut());
        let mut d_x = self.before.clone();
        let (d_slots, to) = (self.d_slots.on(device), &mut d_x);
        device.gather_rows_backward(d_slots.matrix(), slots, per_token, mode, to.on_mut(device).matrix_mut());
        let mut combined = self.before.clone();
        let to = &mut combined;
        device.combine(y.matrix(), slots, weights, per_token, mode, to.on_mut(device).matrix_mut());
        let mut d_y = Spaced::<E>::zeros(choices, self.columns, 1);
        let mut d_weights = lend(device, &vec![0.0; choices]);
        device.combine_backward(
            self.d_tokens.on(device).matrix(),
            y.matrix(),
            slots,
            weights,
            per_token,
            d_y.on_mut(device).matrix_mut(),
            d_weights.view_mut(),
        );
        [gathered.elements(), d_x.elements(), combined.elements(), d_y.elements(), d_weights.elements()]
    }

    fn check(&self) {
        let [gathered, d_x, combined, d_y, d_weights] = on_any_processor(|device| self.run(device));
        let with_before = |elements: Vec<f64>| -> Vec<f64> {
            elements.iter().zip(self.before.wide()).map(|(number, before)| number + before).collect()
        };
        let (x, y, weights) = (self.x.wide(), self.y.wide(), wide(&self.weights));
        let (d_slots, d_tokens) = (self.d_slots.wide(), self.d_tokens.wide());
        assert_close(&gathered, &self.gathered(&x), tolerance::<E>());
        let by_x = gradient(|x| dot(&d_slots, &self.gathered(x)), &x);
        assert_close(&d_x, &with_before(by_x), tolerance::<E>());
        assert_close(&combined, &with_before(self.combined(&y, &weights)), tolerance::<E>());
        let by_y = gradient(|y| dot(&d_tokens, &self.combined(y, &weights)), &y);
        assert_close(&d_y, &by_y, tolerance::<E>());
        let by_weights = gradient(|weights| dot(&d_tokens, &self.combined(&y, weights)), &weights);
        assert_close(&d_weights, &by_weights, 4.0 * tolerance::<f32>());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn choices_are_sorted_by_expert_as_they_came(choices in 0usize..40, count in 1usize..10, seed in 0u64..1000) {
        check_dispatch(&TestRandom::new(seed).tokens(choices, count), count);
    }

    #[test]
    fn rows_go_to_experts_and_back_as_defined(
        tokens in 1usize..5, per_token in 1usize..4, columns in 1usize..12, count in 1usize..6, seed in 0u64..1000
    ) {
        Case::<f32>::new(tokens, per_token, columns, count, seed).check();
        Case::<Bf16>::new(tokens, per_token, columns, count, seed).check();
    }

    #[test]
    fn gated_rows_and_their_gradients_are_those_of_the_definition(
        rows in 1usize..5, columns in 1usize..20, seed in 0u64..1000
    ) {
        check_gate::<f32>(rows, columns, seed);
        check_gate::<Bf16>(rows, columns, seed);
    }
}

#[test]
fn an_expert_may_get_all_tokens_and_others_none() {
    check_dispatch(&[2; 9], 4);
    check_dispatch(&[], 3);
    check_dispatch(&[3, 0, 3, 0], 4);
}

#[test]
fn many_tokens_give_the_same_on_any_processor() {
    on_any_processor(|device| Case::<f32>::new(200, 3, 140, 8, 2).run(device));
    on_any_processor(|device| Case::<Bf16>::new(200, 3, 257, 8, 2).run(device));
}

#[test]
#[should_panic(expected = "slot 1 has two choices")]
fn two_choices_in_one_slot_are_refused() {
    let mut case = Case::<f32>::new(2, 1, 4, 2, 1);
    case.dispatched.slots = vec![1, 1];
    case.run(&Device::cpu(1));
}

fn check_gate<E: Element>(rows: usize, columns: usize, seed: u64) {
    let random = &mut TestRandom::new(seed);
    let (x, d) =
        (Spaced::<E>::random(rows, columns, 1, random), Spaced::<E>::random(rows, columns, 2, random));
    let before = Spaced::<E>::random(rows, columns, 1, random);
    let logits: Vec<f32> = random.numbers(rows);
    let definition = |x: &[f64], logits: &[f64]| -> Vec<f64> {
        x.iter().enumerate().map(|(index, x)| x / (1.0 + (-logits[index / columns]).exp())).collect()
    };
    let [out, d_x, d_logits] = on_any_processor(|device| {
        let (mut out, mut d_x) = (before.clone(), Spaced::<E>::zeros(rows, columns, 0));
        let mut d_logits = lend(device, &vec![0.0; rows]);
        let (gates, x) = (lend(device, &logits), x.on(device));
        device.gate_rows(x.matrix(), gates.view(), Accumulate::Add, out.on_mut(device).matrix_mut());
        device.gate_rows_backward(
            d.on(device).matrix(),
            x.matrix(),
            gates.view(),
            d_x.on_mut(device).matrix_mut(),
            d_logits.view_mut(),
        );
        [out.elements(), d_x.elements(), d_logits.elements()]
    });
    let (x, d, logits) = (x.wide(), d.wide(), wide(&logits));
    let expected: Vec<f64> = definition(&x, &logits).iter().zip(before.wide()).map(|(a, b)| a + b).collect();
    assert_close(&out, &expected, tolerance::<E>());
    assert_close(&d_x, &gradient(|x| dot(&d, &definition(x, &logits)), &x), tolerance::<E>());
    assert_close(
        &d_logits,
        &gradient(|logits| dot(&d, &definition(&x, logits)), &logits),
        2.0 * tolerance::<f32>(),
    );
}
