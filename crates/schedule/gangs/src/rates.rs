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
}

impl Rates {
    /// Nodes and throughput, by ascending nodes.
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
        Ok(Self { points: points.into() })
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
