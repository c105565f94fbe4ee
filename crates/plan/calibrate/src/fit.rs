//! Fitting: constants that make the logarithm of predicted over measured throughput small.
//!
//! Minimises `sum_i w_i rho(r_i / s) + sum_j ((ln c_j - ln p_j) / sigma_j)^2` where `r_i` is the log error
//! of a row, `rho(x) = 2 (sqrt(1 + x^2) - 1)` is soft-L1 with scale `s` = 8 %, `w_i` makes a publication of
//! many rows count less per row, and the second sum is a log-normal prior around the start, or around
//! published and tabulated values. Levenberg–Marquardt in logarithms with forward differences; no randomness, so the same rows give
//! the same constants.

use std::collections::BTreeMap;

use bedplate_perf::{Constants, Field, Origin};

use crate::Case;

/// What the prior of a fit is centred on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prior {
    /// The constants it starts from: few rows move them only as far as they speak clearly.
    Start,
    /// The published and tabulated values of [`Constants::FIELDS`]: how the built-in constants are made.
    Fields,
}

/// How a fit goes.
#[derive(Debug, Clone, Copy)]
pub struct FitOptions {
    /// Log error up to which a row pulls with its square.
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
    /// How the built-in constants are made.
    pub fn builtin() -> Self {
        Self { prior: Prior::Fields, ..Self::default() }
    }
}

/// Fits the constants of `options.origin` to `cases`, from `start`. Without cases it stays there.
pub fn fit(cases: &[&Case], start: &Constants, options: &FitOptions) -> Constants {
    let free: Vec<usize> =
        (0..Constants::COUNT).filter(|index| Constants::FIELDS[*index].origin == options.origin).collect();
    let weights = weights(cases);
    let centre = match options.prior {
        Prior::Start => *start,
        Prior::Fields => Constants::priors(),
    };
    let mut problem =
        Search { cases, weights: &weights, free: &free, base: *start, centre: centre.values(), options };
    let mut point: Vec<f64> = free.iter().map(|index| start.values()[*index].max(1e-12).ln()).collect();
    let mut residuals = problem.residuals(&point);
    let mut loss = problem.loss(&residuals, &point);
    let mut damping = 1e-3;
    for _ in 0..options.iterations {
        let jacobian = problem.jacobian(&point, &residuals);
        let mut improved = false;
        for _ in 0..6 {
            let step = problem.step(&jacobian, &residuals, &point, damping);
            let candidate: Vec<f64> =
                point.iter().zip(&step).map(|(at, by)| at + by.clamp(-0.5, 0.5)).collect();
            let next = problem.residuals(&candidate);
            let next_loss = problem.loss(&next, &candidate);
            if next_loss < loss {
                let gain = (loss - next_loss) / loss;
                (point, residuals, loss) = (candidate, next, next_loss);
                damping = (damping * 0.3).max(1e-7);
                improved = gain > 1e-5;
                break;
            }
            damping *= 5.0;
        }
        if !improved {
            break;
        }
    }
    problem.constants(&point)
}

/// Fits the constants of memory: a search by halving steps over their logarithms.
///
/// Rows that print memory count with their absolute log error. All rows have run, so one that is predicted
/// not to fit counts with half of what it is over, up to 30 %: beyond that its layout is filled in wrongly.
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

/// The constants of one origin at a least value of `loss`: the best of all single steps up or down, with
/// steps halved where none helps.
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

struct Search<'a> {
    cases: &'a [&'a Case],
    weights: &'a [f64],
    free: &'a [usize],
    base: Constants,
    /// What the prior is centred on, for all constants.
    centre: [f64; Constants::COUNT],
    options: &'a FitOptions,
}

impl Search<'_> {
    fn constants(&self, point: &[f64]) -> Constants {
        let mut values = self.base.values();
        for (index, logarithm) in self.free.iter().zip(point) {
            let (least, most) = Constants::FIELDS[*index].limits();
            values[*index] = logarithm.exp().clamp(least, most);
        }
        Constants::from_values(&values)
    }

    fn residuals(&self, point: &[f64]) -> Vec<f64> {
        let constants = self.constants(point);
        self.cases.iter().map(|case| case.log_error(&constants)).collect()
    }

    /// Distance from the prior, in its own widths.
    fn prior(&self, index: usize, point: f64) -> f64 {
        let constant = self.free[index];
        (point - self.centre[constant].max(1e-12).ln()) / Constants::FIELDS[constant].spread
    }

    fn loss(&self, residuals: &[f64], point: &[f64]) -> f64 {
        let rows: f64 = residuals
            .iter()
            .zip(self.weights)
            .map(|(residual, weight)| {
                let scaled = residual / self.options.scale;
                weight * 2.0 * ((1.0 + scaled * scaled).sqrt() - 1.0)
            })
            .sum();
        let priors: f64 = point.iter().enumerate().map(|(index, at)| self.prior(index, *at).powi(2)).sum();
        rows + priors
    }

    /// Columns of derivatives, one for each free constant.
    fn jacobian(&mut self, point: &[f64], residuals: &[f64]) -> Vec<Vec<f64>> {
        const STEP: f64 = 1e-4;
        (0..point.len())
            .map(|index| {
                let mut moved = point.to_vec();
                moved[index] += STEP;
                let changed = self.residuals(&moved);
                changed.iter().zip(residuals).map(|(after, before)| (after - before) / STEP).collect()
            })
            .collect()
    }

    /// Solves the damped normal equations, rows weighted by the slope of soft-L1.
    fn step(&self, jacobian: &[Vec<f64>], residuals: &[f64], point: &[f64], damping: f64) -> Vec<f64> {
        let count = point.len();
        let scale = self.options.scale;
        let pull: Vec<f64> = residuals
            .iter()
            .zip(self.weights)
            .map(|(residual, weight)| {
                let scaled = residual / scale;
                weight / (scale * scale * (1.0 + scaled * scaled).sqrt())
            })
            .collect();
        let mut matrix = vec![vec![0.0; count]; count];
        let mut right = vec![0.0; count];
        for row in 0..count {
            for column in row..count {
                let sum: f64 =
                    pull.iter().zip(&jacobian[row]).zip(&jacobian[column]).map(|((p, a), b)| p * a * b).sum();
                matrix[row][column] = sum;
                matrix[column][row] = sum;
            }
            let gradient: f64 =
                pull.iter().zip(&jacobian[row]).zip(residuals).map(|((p, a), r)| p * a * r).sum();
            let spread = Constants::FIELDS[self.free[row]].spread;
            right[row] = -gradient - self.prior(row, point[row]) / spread;
            matrix[row][row] += 1.0 / (spread * spread);
        }
        for (row, line) in matrix.iter_mut().enumerate() {
            line[row] *= 1.0 + damping;
        }
        solve(matrix, right)
    }
}

/// Gaussian elimination with pivoting; the prior keeps the matrix regular.
fn solve(mut matrix: Vec<Vec<f64>>, mut right: Vec<f64>) -> Vec<f64> {
    let count = right.len();
    for at in 0..count {
        let pivot =
            (at..count).max_by(|a, b| matrix[*a][at].abs().total_cmp(&matrix[*b][at].abs())).unwrap_or(at);
        matrix.swap(at, pivot);
        right.swap(at, pivot);
        let (head, tail) = matrix.split_at_mut(at + 1);
        let line = &head[at];
        for (offset, other) in tail.iter_mut().enumerate() {
            let factor = other[at] / line[at];
            for (cell, above) in other[at..].iter_mut().zip(&line[at..]) {
                *cell -= factor * above;
            }
            right[at + 1 + offset] -= factor * right[at];
        }
    }
    for at in (0..count).rev() {
        let known: f64 = (at + 1..count).map(|other| matrix[at][other] * right[other]).sum();
        right[at] = (right[at] - known) / matrix[at][at];
    }
    right
}
