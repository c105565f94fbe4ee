//! How long collectives between the ranks of a host take, as `bedplate bench comm --save` measured them.

use bedplate_units::{Bytes, Seconds};

/// One operation with one number of ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct CollectiveTimes {
    /// As `all_reduce`.
    pub operation: String,
    pub ranks: u32,
    pub curve: CollectiveCurve,
}

/// Times by size, with nothing on the heap: prices are made of it many times.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CollectiveCurve {
    points: [(f64, f64); CollectiveCurve::MOST],
    len: usize,
}

impl CollectiveCurve {
    /// Sizes that a curve can have.
    pub const MOST: usize = 16;

    /// Sizes and times that belong together. Refuses what no measurement gives, with the reason.
    pub fn new(sizes: &[Bytes], times: &[Seconds]) -> Result<Self, &'static str> {
        if sizes.len() != times.len() {
            return Err("there must be a time for each size");
        }
        if sizes.is_empty() || sizes.len() > Self::MOST {
            return Err("there must be 1 to 16 sizes");
        }
        let mut curve = Self { points: [(0.0, 0.0); Self::MOST], len: sizes.len() };
        for (point, (size, time)) in curve.points.iter_mut().zip(sizes.iter().zip(times)) {
            *point = (size.get(), time.get());
        }
        let is_positive = |(size, time): &(f64, f64)| *size > 0.0 && *time > 0.0 && time.is_finite();
        if !curve.known().iter().all(is_positive) {
            return Err("sizes and times must be above zero");
        }
        if !curve.known().is_sorted_by(|a, b| a.0 < b.0) {
            return Err("sizes must rise");
        }
        Ok(curve)
    }

    pub fn points(&self) -> impl Iterator<Item = (Bytes, Seconds)> {
        self.known().iter().map(|(size, time)| (Bytes::new(*size), Seconds::new(*time)))
    }

    fn known(&self) -> &[(f64, f64)] {
        &self.points[..self.len]
    }

    /// The time of a size: that of the smallest one below it, in proportion above the largest, and on a straight line between
    /// logarithms otherwise, because latency, cache and memory each have a slope of their own.
    pub fn seconds(&self, size: Bytes) -> Seconds {
        let (size, known) = (size.get(), self.known());
        let after = known.partition_point(|(known, _)| *known < size);
        if after == 0 {
            return Seconds::new(known[0].1);
        }
        let (below, time) = known[after - 1];
        let Some((above, longer)) = known.get(after) else { return Seconds::new(time * size / below) };
        let share = (size / below).ln() / (above / below).ln();
        Seconds::new(time * (longer / time).powf(share))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(points: &[(f64, f64)]) -> Result<CollectiveCurve, &'static str> {
        let sizes: Vec<Bytes> = points.iter().map(|point| Bytes::new(point.0)).collect();
        let times: Vec<Seconds> = points.iter().map(|point| Seconds::us(point.1)).collect();
        CollectiveCurve::new(&sizes, &times)
    }

    #[test]
    fn sizes_between_two_are_on_the_line_between_their_logarithms() {
        let curve = curve(&[(1e3, 2.0), (1e5, 8.0), (1e7, 800.0)]).unwrap();
        for (size, us) in [(1.0, 2.0), (1e3, 2.0), (1e4, 4.0), (1e5, 8.0), (1e6, 80.0), (1e8, 8000.0)] {
            let found = curve.seconds(Bytes::new(size)).get() * 1e6;
            assert!((found / us - 1.0).abs() < 1e-9, "{size}: {found}");
        }
    }

    #[test]
    fn what_no_measurement_gives_is_refused() {
        assert!(curve(&[]).is_err());
        assert!(curve(&[(2.0, 1.0), (1.0, 1.0)]).is_err());
        assert!(curve(&[(1.0, 0.0)]).is_err());
        assert!(curve(&[(1.0, 1.0); 17]).is_err());
        assert!(CollectiveCurve::new(&[Bytes::new(1.0)], &[]).is_err());
    }
}
