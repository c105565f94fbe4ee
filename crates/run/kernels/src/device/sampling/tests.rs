//! Tokens sampled by chance.

use super::SampleParams;
use crate::NONE;
use crate::testing::{TestRandom, lend, lend_mut, on_any_processor};

const PLAIN: SampleParams = SampleParams { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, chance: 0 };

/// How often each token comes, over evenly spread chances.
fn shares(params: SampleParams, logits: &[f32]) -> Vec<f64> {
    let mut counts = vec![0.0; logits.len()];
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    for part in 0..10_000u64 {
        let chance = part * (u64::MAX / 10_000);
        let token = SampleParams { chance, ..params }.token(logits, most).expect("there is a token");
        counts[token as usize] += 1e-4;
    }
    counts
}

fn assert_shares(params: SampleParams, logits: &[f32], expected: &[f64]) {
    let shares = shares(params, logits);
    let is_near = shares.iter().zip(expected).all(|(share, expected)| (share - expected).abs() < 1e-3);
    assert!(is_near, "{params:?}: {shares:?}, not {expected:?}");
}

#[test]
fn shares_follow_temperature_and_cuts() {
    let logits = [0.0, 1.0, 2.0, f32::NEG_INFINITY];
    assert_shares(PLAIN, &logits, &[0.0900, 0.2447, 0.6652, 0.0]);
    assert_shares(SampleParams { temperature: 0.5, ..PLAIN }, &logits, &[0.0159, 0.1173, 0.8668, 0.0]);
    assert_shares(SampleParams { top_k: 2, ..PLAIN }, &logits, &[0.0, 0.2689, 0.7311, 0.0]);
    assert_shares(SampleParams { top_p: 0.9, ..PLAIN }, &logits, &[0.0, 0.2689, 0.7311, 0.0]);
    assert_shares(SampleParams { top_p: 0.5, ..PLAIN }, &logits, &[0.0, 0.0, 1.0, 0.0]);
    assert_shares(SampleParams { min_p: 0.2, ..PLAIN }, &logits, &[0.0, 0.2689, 0.7311, 0.0]);
    assert_shares(SampleParams { top_p: 0.0, ..PLAIN }, &logits, &[0.0, 0.0, 1.0, 0.0]);
}

#[test]
fn of_equal_tokens_the_first_ones_are_kept() {
    assert_shares(
        SampleParams { top_k: 3, ..PLAIN },
        &[1.0; 5],
        &[1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0, 0.0, 0.0],
    );
    assert_shares(SampleParams { top_p: 0.35, ..PLAIN }, &[1.0; 5], &[0.5, 0.5, 0.0, 0.0, 0.0]);
    assert_shares(SampleParams { top_k: 4, top_p: 0.5, ..PLAIN }, &[1.0; 5], &[0.5, 0.5, 0.0, 0.0, 0.0]);
}

#[test]
fn rows_are_sampled_from_where_they_lie_and_others_stay() {
    let random = &mut TestRandom::new(5);
    let mut logits: Vec<f32> = random.numbers(3 * 40);
    logits[80..].fill(f32::NEG_INFINITY);
    let params = SampleParams { temperature: 0.7, top_k: 9, top_p: 0.9, min_p: 0.01, chance: 3 << 62 };
    let words = [params.words(2), params.words(0)].concat();
    let sampled = on_any_processor(|device| {
        let mut to = vec![77; 3];
        let (logits, words) = (lend(device, &logits), lend(device, &words));
        device.sample(logits.view().matrix(3, 40), words.view(), lend_mut(device, &mut to).view_mut());
        to
    });
    let most = logits[..40].iter().copied().fold(f32::NEG_INFINITY, f32::max);
    assert_eq!(sampled, [params.token(&logits[..40], most).expect("there is a token"), 77, NONE]);
}
