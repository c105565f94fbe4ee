//! Predicted throughput by size: a small curve that a job carries.
//!
//! Only ratios matter, so any unit will do: tokens per second, steps per hour. The global batch stays the same at every
//! size, so throughput is progress; what Pollux calls statistical efficiency is 1 and does not appear here.

use std::sync::Arc;

/// Throughput at some numbers of nodes, in ascending order.
///
/// ```
/// use bedplate_gangs::Rates;
///
/// let rates = Rates::new(vec![(2, 10.0), (4, 18.0)])?;
/// assert_eq!(rates.at(3), 14.0, "between two points: a straight line");
/// assert_eq!(rates.at(1), 5.0, "before the first: in proportion");
/// assert_eq!(rates.at(8), 18.0, "beyond the last nothing is promised");
/// # Ok::<(), bedplate_gangs::BadRates>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Rates {
    points: Arc<[(u32, f64)]>,
}

/// Why a list of points is no curve.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum BadRates {
    #[error("there are no points")]
    Empty,
    #[error("a point has no nodes")]
    NoNodes,
    #[error("the nodes do not ascend: {after} comes after {before}")]
    NotAscending { before: u32, after: u32 },
    #[error("the rate at {nodes} nodes is {rate}, which is not a positive number")]
    NotPositive { nodes: u32, rate: f64 },
    #[error("the rate at {nodes} nodes is {rate:e}, and rates are from 1e-9 to 1e12")]
    OutOfRange { nodes: u32, rate: f64 },
}

/// Rates outside of this are mistakes, and their ratios would not be numbers any more.
const LEAST: f64 = 1e-9;
const MOST: f64 = 1e12;

impl Rates {
    /// Nodes and throughput, by ascending nodes. Each rate is from 1e-9 to 1e12.
    pub fn new(points: Vec<(u32, f64)>) -> Result<Self, BadRates> {
        if points.is_empty() {
            return Err(BadRates::Empty);
        }
        if points.iter().any(|(nodes, _)| *nodes == 0) {
            return Err(BadRates::NoNodes);
        }
        if let Some(pair) = points.windows(2).find(|pair| pair[1].0 <= pair[0].0) {
            return Err(BadRates::NotAscending { before: pair[0].0, after: pair[1].0 });
        }
        if let Some((nodes, rate)) = points.iter().find(|(_, rate)| !rate.is_finite() || *rate <= 0.0) {
            return Err(BadRates::NotPositive { nodes: *nodes, rate: *rate });
        }
        if let Some((nodes, rate)) = points.iter().find(|(_, rate)| !(LEAST..=MOST).contains(rate)) {
            return Err(BadRates::OutOfRange { nodes: *nodes, rate: *rate });
        }
        Ok(Self { points: points.into() })
    }

    /// The curve with each point off by a factor of its own, kept within what a rate may be.
    pub fn off_by(&self, mut factor: impl FnMut() -> f64) -> Self {
        // `clamp` leaves what is not a number as it is, and `max` does not.
        let wrong = |(nodes, rate): &(u32, f64)| (*nodes, (rate * factor()).clamp(LEAST, MOST).max(LEAST));
        Self { points: self.points.iter().map(wrong).collect() }
    }

    pub fn points(&self) -> &[(u32, f64)] {
        &self.points
    }

    /// Throughput at a number of nodes: on a straight line between two points, in proportion before the first, and that of
    /// the last beyond it.
    pub fn at(&self, nodes: u32) -> f64 {
        let after = self.points.partition_point(|point| point.0 < nodes);
        let Some((high, fast)) = self.points.get(after) else {
            return self.points[self.points.len() - 1].1;
        };
        let (low, slow) = if after == 0 { (0, 0.0) } else { self.points[after - 1] };
        slow + (fast - slow) * f64::from(nodes - low) / f64::from(high - low)
    }

    /// Throughput at `nodes` nodes over that at `asked` nodes.
    pub fn speed(&self, nodes: u32, asked: u32) -> f64 {
        self.at(nodes) / self.at(asked.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_that_are_no_curve_are_refused_with_the_reason() {
        let said = |points: &[(u32, f64)]| Rates::new(points.to_vec()).map_err(|bad| bad.to_string());
        assert_eq!(said(&[]), Err("there are no points".into()));
        assert_eq!(said(&[(0, 1.0)]), Err("a point has no nodes".into()));
        assert_eq!(said(&[(2, 1.0), (2, 1.5)]), Err("the nodes do not ascend: 2 comes after 2".into()));
        assert_eq!(
            said(&[(1, 1.0), (2, 0.0)]),
            Err("the rate at 2 nodes is 0, which is not a positive number".into())
        );
        assert!(said(&[(1, f64::NAN)]).is_err());
        assert_eq!(
            said(&[(1, 1.0), (2, 1.7e308)]),
            Err("the rate at 2 nodes is 1.7e308, and rates are from 1e-9 to 1e12".into())
        );
        assert!(said(&[(1, 5e-324)]).is_err());
        assert_eq!(said(&[(1, LEAST), (2, MOST)]).map(|rates| rates.speed(2, 1)), Ok(1e21));
    }

    #[test]
    fn a_curve_stays_one_whatever_it_is_off_by() {
        let rates = Rates::new(vec![(1, 1e-9), (2, 1e12)]).expect("the fixture is right");
        for factor in [0.0, 1e-300, 1e300, f64::INFINITY, f64::NAN] {
            let wrong = rates.off_by(|| factor);
            assert_eq!(Rates::new(wrong.points().to_vec()), Ok(wrong), "off by {factor}");
        }
        assert_eq!(rates.off_by(|| 1.0), rates);
    }

    #[test]
    fn only_ratios_matter() {
        let slow = Rates::new(vec![(1, 1.0), (2, 1.8), (4, 3.0)]).expect("the fixture is right");
        let fast = Rates::new(vec![(1, 10.0), (2, 18.0), (4, 30.0)]).expect("the fixture is right");
        for nodes in 1..6 {
            assert!((slow.speed(nodes, 2) - fast.speed(nodes, 2)).abs() < 1e-12);
        }
        assert_eq!(slow.speed(2, 2), 1.0);
    }
}
