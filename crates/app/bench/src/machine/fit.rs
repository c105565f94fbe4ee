//! From times of several sizes to a rate and the loss on small sizes.
//!
//! Seconds per FLOP of a size are `(1 + half s) / rate`, where `s` grows as the size shrinks. Both are found by least
//! squares over relative errors, so that a small size counts as much as a large one.

/// Measured seconds per FLOP, and how small the size is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Point {
    pub(super) per_flop: f64,
    pub(super) smallness: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Line {
    /// FLOP/s of very large sizes.
    pub(super) rate: f64,
    pub(super) half: f64,
}

/// The line through points; never falling, and at most ten times the measured rate.
pub(super) fn line(points: &[Point]) -> Line {
    let sum = |of: &dyn Fn(&Point) -> f64| points.iter().map(of).sum::<f64>();
    let (u, v) = (|p: &Point| 1.0 / p.per_flop, |p: &Point| p.smallness / p.per_flop);
    let (uu, uv, vv) = (sum(&|p| u(p) * u(p)), sum(&|p| u(p) * v(p)), sum(&|p| v(p) * v(p)));
    let determinant = uu * vv - uv * uv;
    let offset = (sum(&u) * vv - sum(&v) * uv) / determinant;
    let slope = (sum(&v) * uu - sum(&u) * uv) / determinant;
    let fastest = points.iter().map(u).fold(0.0, f64::max);
    let is_sound = determinant > 1e-9 * uu * vv && slope >= 0.0 && offset > 0.1 / fastest;
    if is_sound {
        return Line { rate: 1.0 / offset, half: slope / offset };
    }
    Line { rate: rate(points, 0.0), half: 0.0 }
}

/// The rate alone, where the loss on small sizes is known.
pub(super) fn rate(points: &[Point], half: f64) -> f64 {
    let weight = |p: &Point| (1.0 + half * p.smallness) / p.per_flop;
    let (one, two) =
        points.iter().fold((0.0, 0.0), |(one, two), p| (one + weight(p), two + weight(p).powi(2)));
    two / one
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(rate: f64, half: f64) -> Vec<Point> {
        let smallness = [0.002, 0.01, 0.05, 0.2];
        smallness.map(|s| Point { per_flop: (1.0 + half * s) / rate, smallness: s }).to_vec()
    }

    #[test]
    fn exact_points_give_back_their_line() {
        let found = line(&points(300e9, 16.0));
        assert!((found.rate / 300e9 - 1.0).abs() < 1e-9 && (found.half / 16.0 - 1.0).abs() < 1e-9);
        assert!((rate(&points(120e9, 24.0), 24.0) / 120e9 - 1.0).abs() < 1e-12);
    }

    #[test]
    fn a_machine_that_is_faster_on_small_sizes_loses_nothing_on_them() {
        let found = line(&points(300e9, -3.0));
        assert_eq!(found.half, 0.0);
        assert!((300e9..800e9).contains(&found.rate), "{}", found.rate);
    }

    #[test]
    fn one_size_alone_gives_its_rate() {
        let found = line(&[Point { per_flop: 1e-11, smallness: 0.01 }]);
        assert_eq!(found.half, 0.0);
        assert!((found.rate / 1e11 - 1.0).abs() < 1e-12);
    }
}
