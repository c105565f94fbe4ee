//! Fitting: constants that minimise the log of predicted over measured throughput.
//!
//! Minimises `sum_i w_i rho(r_i / s) + sum_j ((ln c_j - ln p_j) / sigma_j)^2` where `r_i` is the log error
//! of a row, `rho(x) = 2 (sqrt(1 + x^2) - 1)` is soft-L1 with scale `s` = 8 %, `w_i` makes each row of a publication with
//! many rows count less, and the second sum is a log-normal prior around the start, or around
//! published and tabulated values.

use std::collections::BTreeMap;

use bedplate_perf::{Constants, Field, Origin};

use crate::Case;
use crate::least_squares::{Free, LeastSquares};

/// The centre of a fit's prior.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prior {
    /// The starting constants: a few rows move them only as far as the rows agree.
    Start,
    /// The published and tabulated values of [`Constants::FIELDS`]: used for the built-in constants.
    Fields,
}

/// Options of a fit.
#[derive(Debug, Clone, Copy)]
pub struct FitOptions {
    /// Log error up to which a row's loss is quadratic.
    pub scale: f64,
    pub iterations: u32,
    /// Which constants may move.
    pub origin: Origin,
    pub prior: Prior,
}

impl Default for FitOptions {
    fn default() -> Self {
        Self { scale: 0.08, iterations: 12, origin: Origin::Training, prior: Prior::Start }
    }
}

impl FitOptions {
    /// The options used for the built-in constants.
    pub fn builtin() -> Self {
        Self { prior: Prior::Fields, ..Self::default() }
    }
}

/// Fits the constants of `options.origin` to `cases`, from `start`. Without cases it stays there.
pub fn fit(cases: &[&Case], start: &Constants, options: &FitOptions) -> Constants {
    let centre = match options.prior {
        Prior::Start => *start,
        Prior::Fields => Constants::priors(),
    }
    .values();
    let free: Vec<Free> = Constants::FIELDS
        .iter()
        .enumerate()
        .filter(|(_, field)| field.origin == options.origin)
        .map(|(index, field)| Free::new(index, centre[index], field))
        .collect();
    let constants = |point: &[f64]| moved(start, &free, point);
    let residuals = |point: &[f64]| {
        let constants = constants(point);
        cases.iter().map(|case| case.log_error(&constants) / options.scale).collect()
    };
    let problem = LeastSquares {
        free: &free,
        weights: &weights(cases),
        residuals: &residuals,
        difference: 1e-4,
        iterations: options.iterations,
    };
    let point = free.iter().map(|free| start.values()[free.index].max(1e-12).ln()).collect();
    constants(&problem.solve(point))
}

/// The constants with the free ones set to these logarithms, clamped to sensible ranges.
fn moved(base: &Constants, free: &[Free], point: &[f64]) -> Constants {
    let mut values = base.values();
    for (free, logarithm) in free.iter().zip(point) {
        let (least, most) = Constants::FIELDS[free.index].limits();
        values[free.index] = logarithm.exp().clamp(least, most);
    }
    Constants::from_values(&values)
}

/// Fits the memory constants by a pattern search with halving steps over their logarithms.
///
/// Rows that print memory count with their absolute log error. All rows have run, so one that is predicted
/// not to fit counts with half of its excess, up to 30 %: beyond that its layout was filled in wrongly.
pub fn fit_memory(cases: &[&Case], start: &Constants) -> Constants {
    let loss = |constants: &Constants| -> f64 {
        let over = |case: &Case| 0.5 * case.memory_over(constants).min(0.3);
        let error = |case: &&Case| case.memory_log_error(constants).map_or_else(|| over(case), f64::abs);
        let prior = |(value, field): (f64, &Field)| {
            let is_free = field.origin == Origin::Memory;
            if is_free { ((value.ln() - field.prior.ln()) / field.spread).powi(2) } else { 0.0 }
        };
        let priors: f64 = constants.values().into_iter().zip(Constants::FIELDS).map(prior).sum();
        cases.iter().map(error).sum::<f64>() + priors
    };
    descend(start, Origin::Memory, loss)
}

/// The constants of one origin that minimise `loss`: repeatedly the best single step up or down, with steps
/// halved where none helps.
pub(crate) fn descend(start: &Constants, origin: Origin, loss: impl Fn(&Constants) -> f64) -> Constants {
    let free: Vec<usize> =
        (0..Constants::COUNT).filter(|index| Constants::FIELDS[*index].origin == origin).collect();
    let mut best = *start;
    let mut least = loss(&best);
    let mut stride = 0.4;
    while stride > 0.005 {
        let moves = free.iter().flat_map(|index| [(*index, stride), (*index, -stride)]);
        let candidate = moves
            .map(|(index, by)| {
                let mut values = best.values();
                values[index] *= f64::exp(by);
                Constants::from_values(&values)
            })
            .map(|constants| (loss(&constants), constants))
            .min_by(|a, b| a.0.total_cmp(&b.0));
        match candidate {
            Some((lower, constants)) if lower < least => (least, best) = (lower, constants),
            _ => stride /= 2.0,
        }
    }
    best
}

/// `(n/20)^-1/4` for each row of a publication of `n` rows.
fn weights(cases: &[&Case]) -> Vec<f64> {
    let mut rows: BTreeMap<&str, f64> = BTreeMap::new();
    for case in cases {
        *rows.entry(&case.source).or_default() += 1.0;
    }
    cases.iter().map(|case| (rows[case.source.as_str()] / 20.0).powf(-0.25)).collect()
}
