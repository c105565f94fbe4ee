//! Least squares with a log-normal prior, for any residuals as a function of constants.
//!
//! Minimises `sum_i w_i rho(r_i) + sum_j ((x_j - centre_j) / sigma_j)^2` over logarithms `x` of constants,
//! with `rho(r) = 2 (sqrt(1 + r^2) - 1)` (soft-L1) of residuals in units of their scale. Levenberg–Marquardt with
//! differences; no randomness, so the same rows give the same constants.

use bedplate_perf::Field;

/// A constant that a fit may move.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Free {
    /// The index of the constant among all of them.
    pub(crate) index: usize,
    pub(crate) centre: f64,
    pub(crate) spread: f64,
    /// The logarithm of its largest value, beyond which nothing changes any more.
    most: f64,
}

impl Free {
    pub(crate) fn new(index: usize, centre: f64, field: &Field) -> Self {
        Self { index, centre: centre.max(1e-12).ln(), spread: field.spread, most: field.limits().1.ln() }
    }
}

/// The loss to minimise.
pub(crate) struct LeastSquares<'a> {
    pub(crate) free: &'a [Free],
    /// One for each residual.
    pub(crate) weights: &'a [f64],
    /// Residuals, in units of their scale, at logarithms of the free constants.
    pub(crate) residuals: &'a dyn Fn(&[f64]) -> Vec<f64>,
    /// Distance of forward differences.
    pub(crate) difference: f64,
    pub(crate) iterations: u32,
}

impl LeastSquares<'_> {
    /// The best point found from `start`.
    pub(crate) fn solve(&self, start: Vec<f64>) -> Vec<f64> {
        let mut point = start;
        let mut residuals = (self.residuals)(&point);
        let mut loss = self.loss(&residuals, &point);
        let mut damping = 1e-3;
        for _ in 0..self.iterations {
            let jacobian = self.jacobian(&point, &residuals);
            let mut improved = false;
            for _ in 0..6 {
                let step = self.step(&jacobian, &residuals, &point, damping);
                let candidate: Vec<f64> =
                    point.iter().zip(&step).map(|(at, by)| at + by.clamp(-0.5, 0.5)).collect();
                let next = (self.residuals)(&candidate);
                let next_loss = self.loss(&next, &candidate);
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
        point
    }

    /// Distance from the prior, in its own widths.
    fn prior(&self, index: usize, at: f64) -> f64 {
        (at - self.free[index].centre) / self.free[index].spread
    }

    pub(crate) fn loss(&self, residuals: &[f64], point: &[f64]) -> f64 {
        let row =
            |(residual, weight): (&f64, &f64)| weight * 2.0 * ((1.0 + residual * residual).sqrt() - 1.0);
        let rows: f64 = residuals.iter().zip(self.weights).map(row).sum();
        let priors: f64 = point.iter().enumerate().map(|(index, at)| self.prior(index, *at).powi(2)).sum();
        rows + priors
    }

    /// Columns of derivatives, one for each free constant.
    pub(crate) fn jacobian(&self, point: &[f64], residuals: &[f64]) -> Vec<Vec<f64>> {
        (0..point.len())
            .map(|index| {
                let mut moved = point.to_vec();
                // At its limit a constant is moved down: up would look as if it did not matter.
                let is_at_limit = point[index] + self.difference > self.free[index].most;
                let difference = if is_at_limit { -self.difference } else { self.difference };
                moved[index] += difference;
                let changed = (self.residuals)(&moved);
                changed.iter().zip(residuals).map(|(after, before)| (after - before) / difference).collect()
            })
            .collect()
    }

    /// Solves the damped normal equations, rows weighted by the slope of soft-L1.
    pub(crate) fn step(
        &self,
        jacobian: &[Vec<f64>],
        residuals: &[f64],
        point: &[f64],
        damping: f64,
    ) -> Vec<f64> {
        let count = point.len();
        let pull = |(residual, weight): (&f64, &f64)| weight / (1.0 + residual * residual).sqrt();
        let pull: Vec<f64> = residuals.iter().zip(self.weights).map(pull).collect();
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
            let spread = self.free[row].spread;
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
