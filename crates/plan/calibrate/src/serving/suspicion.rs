//! Rows that could be predicted but whose figures do not mean what their names say.
//!
//! The rules are physical and hold for any source. A suspicious row is left out of a fit; scores are given
//! with and without it.

use std::collections::BTreeMap;

use bedplate_perf::serving::ServingConstants;
use bedplate_transformer::Precision;

use super::{ServingCase, ServingSkip};

/// The share of large matrix products' rate that no engine sustains over whole requests.
const MOST_RATE: f64 = 0.75;
/// If this share of a series' rows is above that rate, the whole series is assumed to reuse prompts.
const MOST_ROWS: f64 = 0.25;
/// While the cache has room for all users, no request spends this share of its time before its first token.
const MOST_WAIT: f64 = 0.6;
/// Answers long enough for their time to dwarf that of prompts.
const LONG_ANSWER: u32 = 1000;

pub(super) fn mark(cases: &mut [ServingCase]) {
    let mut series: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    for case in cases.iter() {
        let (rows, beyond) = series.entry(key(case)).or_default();
        *rows += 1.0;
        *beyond += f64::from(u8::from(is_beyond_peak(case)));
    }
    for case in cases {
        let (rows, beyond) = series[&key(case)];
        case.suspicion = if is_beyond_peak(case) {
            Some(ServingSkip::FasterThanPeak)
        } else if beyond > MOST_ROWS * rows {
            Some(ServingSkip::ReusesPrompts)
        } else {
            stalled(case)
        };
    }
}

/// Runs of one model, GPU and engine version.
fn key(case: &ServingCase) -> String {
    format!("{} {}", case.group(), case.engine)
}

/// Whether prompts and answers together need more arithmetic than kernels deliver.
fn is_beyond_peak(case: &ServingCase) -> bool {
    let tables = ServingConstants::priors();
    let hardware = &case.deployment.hardware;
    let best = match case.deployment.weights.attention {
        Precision::Bf16 => hardware.peak_bf16 * tables.bf16_rate_hopper,
        Precision::Fp8 => hardware.peak_fp8 * tables.fp8_rate_hopper,
        _ => hardware.peak_fp4 * tables.fp8_rate_hopper,
    };
    let active = case.deployment.model.transformer.parameters().active_without_embedding as f64;
    let prompts = case.load.input.mean() / case.load.output.mean();
    2.0 * active * case.measured.throughput * (1.0 + prompts) > MOST_RATE * best
}

fn stalled(case: &ServingCase) -> Option<ServingSkip> {
    if case.pools.is_some() {
        return None;
    }
    let answer = case.measured.inter_token * (case.load.output.mean() - 1.0);
    let share = case.measured.first_token / (case.measured.first_token + answer);
    let everyone = (case.load.input.mean() + case.load.output.mean()) * f64::from(case.load.concurrency);
    let room = case.replica(&ServingConstants::priors()).ok()?.memory().room.tokens() as f64;
    (share > MOST_WAIT && case.load.output.longest >= LONG_ANSWER && everyone < room)
        .then(|| ServingSkip::Stalled { percent: (100.0 * share).round() as u32 })
}
