//! Axes: from numbers to positions, linear or logarithmic, with round ticks.

/// The mapping of numbers to positions.
#[derive(Clone, Copy)]
pub(crate) struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    is_logarithmic: bool,
}

impl Axis {
    /// An axis over the given numbers, between two positions. Linear axes begin at zero.
    pub(super) fn over(numbers: impl Iterator<Item = f64>, from: f64, to: f64, is_logarithmic: bool) -> Self {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for number in numbers.filter(|number| number.is_finite()) {
            low = low.min(number);
            high = high.max(number);
        }
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        if is_logarithmic {
            (low, high) = (low.max(1e-12), high.max(1e-12));
            if low == high {
                high = low * 2.0;
            }
        } else {
            low = low.min(0.0);
            high = if high > low { high * 1.05 } else { low + 1.0 };
        }
        Self { low, high, from, to, is_logarithmic }
    }

    pub(super) fn place(&self, number: f64) -> f64 {
        let share = match self.is_logarithmic {
            true => (number.max(1e-12) / self.low).ln() / (self.high / self.low).ln(),
            false => (number - self.low) / (self.high - self.low),
        };
        self.from + share * (self.to - self.from)
    }

    /// Ticks: powers of two, or about five round steps.
    pub(super) fn marks(&self) -> Vec<f64> {
        if self.is_logarithmic {
            let first = self.low.log2().ceil() as i32;
            let last = self.high.log2().floor() as i32;
            let every = ((last - first) / 8).max(1) as usize;
            return (first..=last).step_by(every).map(|power| 2f64.powi(power)).collect();
        }
        let rough = (self.high - self.low) / 5.0;
        let magnitude = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].iter().map(|factor| factor * magnitude).find(|step| *step >= rough);
        let step = step.unwrap_or(rough);
        let first = (self.low / step).ceil() as i64;
        let last = (self.high / step).floor() as i64;
        (first..=last).map(|index| index as f64 * step).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_land_between_the_ends_and_marks_are_round() {
        let axis = Axis::over([3.0, 97.0].into_iter(), 0.0, 100.0, false);
        assert!(axis.place(0.0) == 0.0 && axis.place(97.0) < 100.0);
        assert_eq!(axis.marks(), [0.0, 50.0, 100.0]);
        let powers = Axis::over([8.0, 64.0].into_iter(), 0.0, 90.0, true);
        assert_eq!(powers.marks(), [8.0, 16.0, 32.0, 64.0]);
        assert!((powers.place(16.0) - 30.0).abs() < 1e-9);
        assert!(Axis::over(std::iter::empty(), 0.0, 1.0, false).marks().len() > 1);
    }
}
