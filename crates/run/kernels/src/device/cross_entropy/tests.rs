//! Cross-entropy against its definition and its differences.

use proptest::prelude::*;

use super::*;
use crate::Bf16;
use crate::testing::{
    Spaced, TestRandom, assert_close, gradient, lend, lend_mut, on_any_processor, on_any_threads, tolerance,
    wide,
};

fn losses_by_definition(logits: &[f64], targets: &[u32]) -> Vec<f64> {
    let columns = logits.len() / targets.len();
    let loss = |(logits, target): (&[f64], &u32)| {
        if *target == IGNORED {
            return 0.0;
        }
        let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = logits.iter().map(|logit| (logit - most).exp()).sum();
        sum.ln() + most - logits[*target as usize]
    };
    logits.chunks(columns).zip(targets).map(loss).collect()
}

/// Losses, and the gradients that replace the logits.
fn run(device: &Device, logits: &Spaced<f32>, targets: &[u32], scale: f32) -> (Vec<f32>, Vec<f32>) {
    let mut logits = logits.clone();
    let mut losses = vec![f32::NAN; targets.len()];
    device.cross_entropy(
        logits.on_mut(device).matrix_mut(),
        lend(device, targets).view(),
        Some(scale),
        lend_mut(device, &mut losses).view_mut(),
    );
    (losses, logits.elements())
}

fn targets(rows: usize, vocabulary: usize, random: &mut TestRandom) -> Vec<u32> {
    (0..rows).map(|_| if random.below(4) == 0 { IGNORED } else { random.below(vocabulary) as u32 }).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn losses_and_gradients_are_those_of_the_definition(
        rows in 1usize..5, vocabulary in 1usize..150, size in 0.1f32..40.0, seed in 0u64..1000
    ) {
        let random = &mut TestRandom::new(seed);
        let logits = Spaced::<f32>::new(rows, vocabulary, 2, || size * random.number());
        let targets = targets(rows, vocabulary, random);
        let (losses, d_logits) = on_any_processor(|device| run(device, &logits, &targets, 0.25));
        assert_close(&losses, &losses_by_definition(&logits.wide(), &targets), tolerance::<f32>());
        let sum = |logits: &[f64]| 0.25 * losses_by_definition(logits, &targets).iter().sum::<f64>();
        assert_close(&d_logits, &gradient(sum, &logits.wide()), tolerance::<f32>());
    }
}

fn logits_of(x: &[f64], weight: &[f64], columns: usize) -> Vec<f64> {
    let row = |x: &[f64]| {
        weight.chunks(columns).map(|w| w.iter().zip(x).map(|(w, x)| w * x).sum::<f64>()).collect()
    };
    x.chunks(columns).flat_map(|x| -> Vec<f64> { row(x) }).collect()
}

struct Layer<E> {
    x: Spaced<E>,
    weight: Vec<E>,
    targets: Vec<u32>,
    workspace: usize,
}

impl<E: Element> Layer<E> {
    /// Losses, gradient of the input, gradient of the weight.
    fn run(&self, device: &Device) -> [Vec<f32>; 3] {
        let mut losses = vec![f32::NAN; self.targets.len()];
        let mut workspace = vec![f32::NAN; self.workspace];
        let mut d_x = Spaced::<E>::zeros(self.x.rows, self.x.columns, 1);
        let mut d_weight = vec![0.5; self.weight.len()];
        let (mut to_x, mut to_weight) = (d_x.on_mut(device), lend_mut(device, &mut d_weight));
        let gradients = HeadGradients { d_x: to_x.matrix_mut(), d_weight: Some(to_weight.view_mut()) };
        self.call(device, &mut losses, Some(gradients), &mut workspace);
        drop((to_x, to_weight));
        let mut again = vec![f32::NAN; self.targets.len()];
        self.call(device, &mut again, None, &mut workspace);
        assert_eq!(losses, again, "losses do not depend on whether gradients are wanted");
        [losses, d_x.elements(), d_weight]
    }

    fn call(
        &self,
        device: &Device,
        losses: &mut [f32],
        to: Option<HeadGradients<'_, E>>,
        workspace: &mut [f32],
    ) {
        device.linear_cross_entropy(
            self.x.on(device).matrix(),
            lend(device, &self.weight).view(),
            lend(device, &self.targets).view(),
            0.5,
            lend_mut(device, losses).view_mut(),
            to,
            lend_mut(device, workspace).view_mut(),
        );
    }

    fn check(&self) {
        let columns = self.x.columns;
        let (x, weight) = (self.x.wide(), wide(&self.weight));
        let [losses, d_x, d_weight] = on_any_threads(|device| self.run(device));
        let by_definition =
            |x: &[f64], weight: &[f64]| losses_by_definition(&logits_of(x, weight, columns), &self.targets);
        assert_close(&losses, &by_definition(&x, &weight), tolerance::<E>());
        let sum = |x: &[f64], weight: &[f64]| 0.5 * by_definition(x, weight).iter().sum::<f64>();
        assert_close(&d_x, &gradient(|x| sum(x, &weight), &x), 2.0 * tolerance::<E>());
        let expected: Vec<f64> =
            gradient(|weight| sum(&x, weight), &weight).iter().map(|d| d + 0.5).collect();
        assert_close(&d_weight, &expected, 2.0 * tolerance::<E>());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]
    #[test]
    fn a_layer_with_its_loss_gives_the_same_however_few_rows_fit_the_workspace(
        rows in 1usize..8, columns in 1usize..6, vocabulary in 1usize..12, at_once in 1usize..9, spare in 0usize..3, seed in 0u64..1000
    ) {
        let random = &mut TestRandom::new(seed);
        let targets = targets(rows, vocabulary, random);
        let workspace = at_once * vocabulary + spare.min(vocabulary - 1);
        let x = Spaced::random(rows, columns, 1, random);
        let weight = random.numbers(vocabulary * columns);
        Layer::<f32> { x, weight, targets: targets.clone(), workspace }.check();
        let x = Spaced::random(rows, columns, 1, random);
        let weight = random.numbers(vocabulary * columns);
        Layer::<Bf16> { x, weight, targets, workspace }.check();
    }
}

#[test]
fn rows_without_a_target_have_no_loss_and_no_gradient() {
    let logits = Spaced::<f32>::new(3, 1000, 1, || f32::NAN);
    let (losses, d_logits) = on_any_processor(|device| run(device, &logits, &[IGNORED; 3], 1.0));
    assert_eq!(losses, [0.0; 3]);
    assert!(d_logits.iter().all(|d| *d == 0.0));
}

#[test]
fn huge_and_impossible_logits_are_what_the_limit_says() {
    let row = [3e38f32, -3e38, f32::NEG_INFINITY, 3e38];
    let logits = Spaced::<f32>::new(3, 4, 0, {
        let mut elements = row.into_iter().cycle();
        move || elements.next().unwrap()
    });
    let (losses, d_logits) = on_any_processor(|device| run(device, &logits, &[0, 3, 2], 1.0));
    assert_close(&losses[..2], &[2f64.ln(); 2], 1e-6);
    assert_eq!(losses[2], f32::INFINITY);
    assert_eq!(d_logits, [-0.5, 0.0, 0.0, 0.5, 0.5, 0.0, 0.0, -0.5, 0.5, 0.0, -1.0, 0.5]);
}

#[test]
fn many_rows_of_a_large_vocabulary_give_the_same_on_any_processor() {
    let random = &mut TestRandom::new(9);
    let logits = Spaced::<f32>::new(40, 3001, 0, || 10.0 * random.number());
    let targets = targets(40, 3001, random);
    on_any_processor(|device| run(device, &logits, &targets, 1.0));
}

#[test]
#[should_panic(expected = "target 4 is not among the 4 of the vocabulary")]
fn a_target_beyond_the_vocabulary_is_refused() {
    run(&Device::cpu(1), &Spaced::zeros(1, 4, 0), &[4], 1.0);
}
