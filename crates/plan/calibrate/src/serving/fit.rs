//! Fitting the serving side: constants that jointly minimise the logs of predicted over measured inter-token
//! latency, throughput and first-token latency.
//!
//! A row has three residuals, each in units of a good row's error. Rows of one model, GPU and engine
//! share their flaws, so each row of a large group counts less.

use std::collections::BTreeMap;

use bedplate_perf::Origin;
use bedplate_perf::serving::ServingConstants;

use super::{LogErrors, ServingCase};
use crate::least_squares::{Free, LeastSquares};

/// Log errors up to which a row's loss is quadratic: inter-token, throughput, first token.
const SCALES: [f64; 3] = [0.05, 0.05, 0.15];

/// Engine steps are counted, so latencies move in small jumps; differences must be wider than those.
const DIFFERENCE: f64 = 0.03;

/// Fits the constants of [`Origin::Serving`], from `start`, with priors as tabulated.
pub fn fit_serving(cases: &[&ServingCase], start: &ServingConstants, iterations: u32) -> ServingConstants {
    let free = free();
    let residuals = |point: &[f64]| {
        let constants = moved(start, &free, point);
        cases.iter().flat_map(|case| scaled(&case.log_errors(&constants))).collect()
    };
    let weights = weights(cases);
    let problem = LeastSquares {
        free: &free,
        weights: &weights,
        residuals: &residuals,
        difference: DIFFERENCE,
        iterations,
    };
    moved(start, &free, &problem.solve(logarithms(start, &free)))
}

/// The constants fitted without each of `groups` in turn, near `fitted`, which saw all of them.
///
/// The derivatives of all rows are computed once; leaving rows out then costs a few linear solves. A step is taken only if it
/// makes the loss smaller, else the next one is shorter.
pub fn fit_without_each(
    cases: &[&ServingCase],
    groups: &[String],
    fitted: &ServingConstants,
    rounds: u32,
) -> BTreeMap<String, ServingConstants> {
    let free = free();
    let evaluate = |point: &[f64]| -> Vec<f64> {
        let constants = moved(fitted, &free, point);
        cases.iter().flat_map(|case| scaled(&case.log_errors(&constants))).collect()
    };
    let weights = weights(cases);
    let all = LeastSquares {
        free: &free,
        weights: &weights,
        residuals: &evaluate,
        difference: DIFFERENCE,
        iterations: 0,
    };
    let start = logarithms(fitted, &free);
    let residuals = evaluate(&start);
    let jacobian = all.jacobian(&start, &residuals);
    let mut fits = BTreeMap::new();
    let mut names: Vec<&String> = groups.iter().collect();
    names.sort();
    names.dedup();
    for name in names {
        let kept: Vec<f64> = weights
            .iter()
            .enumerate()
            .map(|(index, weight)| if groups[index / 3] == *name { 0.0 } else { *weight })
            .collect();
        let without = LeastSquares { weights: &kept, ..all };
        let (mut point, mut at) = (start.clone(), residuals.clone());
        let mut loss = without.loss(&at, &point);
        let mut length = 1.0;
        for _ in 0..rounds {
            let step = without.step(&jacobian, &at, &point, 1e-3);
            let next: Vec<f64> =
                point.iter().zip(&step).map(|(at, by)| at + length * by.clamp(-0.3, 0.3)).collect();
            let found = evaluate(&next);
            let next_loss = without.loss(&found, &next);
            if next_loss < loss {
                (point, at, loss) = (next, found, next_loss);
            } else {
                length *= 0.3;
            }
        }
        fits.insert(name.clone(), moved(fitted, &free, &point));
    }
    fits
}

fn free() -> Vec<Free> {
    let priors = ServingConstants::priors().values();
    ServingConstants::FIELDS
        .iter()
        .enumerate()
        .filter(|(_, field)| field.origin == Origin::Serving)
        .map(|(index, field)| Free::new(index, priors[index], field))
        .collect()
}

fn logarithms(constants: &ServingConstants, free: &[Free]) -> Vec<f64> {
    free.iter().map(|free| constants.values()[free.index].max(1e-12).ln()).collect()
}

fn moved(base: &ServingConstants, free: &[Free], point: &[f64]) -> ServingConstants {
    let mut values = base.values();
    for (free, logarithm) in free.iter().zip(point) {
        let (least, most) = ServingConstants::FIELDS[free.index].limits();
        values[free.index] = logarithm.exp().clamp(least, most);
    }
    ServingConstants::from_values(&values)
}

fn scaled(errors: &LogErrors) -> [f64; 3] {
    [errors.inter_token / SCALES[0], errors.throughput / SCALES[1], errors.first_token / SCALES[2]]
}

/// Weight of the first token of pools: it is mostly queueing, which depends on small errors of the rate.
const QUEUED: f64 = 0.1;
/// Weight of the first token of runs without a warm-up: a tenth of their requests waits for what the engine compiles and tunes.
const UNWARMED: f64 = 0.1;

/// `(n/20)^-1/4` for each of a row's residuals, where its group has `n` rows.
fn weights(cases: &[&ServingCase]) -> Vec<f64> {
    let mut rows: BTreeMap<String, f64> = BTreeMap::new();
    for case in cases {
        *rows.entry(case.series()).or_default() += 1.0;
    }
    let of = |case: &&ServingCase| {
        let weight = (rows[&case.series()] / 20.0).powf(-0.25);
        let first = match (case.pools.is_some(), case.is_warm) {
            (true, _) => QUEUED,
            (false, true) => 1.0,
            (false, false) => UNWARMED,
        };
        [weight, weight, first * weight]
    };
    cases.iter().flat_map(of).collect()
}
