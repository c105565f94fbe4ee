//! Medians, quantiles and percentiles of measured values, in the two usual definitions.

/// The quantile of a list by linear interpolation between the values around it; zero for an empty list.
pub fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let at = share.clamp(0.0, 1.0) * last as f64;
    let (low, high) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    low + (high - low) * at.fract()
}

/// The median; between the two values in the middle of an even number. Zero for an empty list.
pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// The percentile by nearest rank: the smallest value that at least this share of the list does not exceed, so one that occurred.
pub fn nearest_rank(sorted: &[f64], share: f64) -> Option<f64> {
    // A hundredth is not exact in binary: 0.07 of 100 values is the 7th, not the 8th.
    let at = (share.clamp(0.0, 1.0) * sorted.len() as f64 - 1e-9).ceil() as usize;
    sorted.get(at.max(1) - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_between_values_and_nearest_ranks_occurred() {
        let values = [4.0, 1.0, 3.0, 2.0];
        assert_eq!((median(&values), quantile(&values, 0.0), quantile(&values, 1.0)), (2.5, 1.0, 4.0));
        assert_eq!((median(&[7.0]), median(&[])), (7.0, 0.0));
        let sorted = [1.0, 2.0, 3.0, 4.0];
        for (share, expected) in [(0.0, 1.0), (0.25, 1.0), (0.5, 2.0), (0.51, 3.0), (0.99, 4.0), (2.0, 4.0)] {
            assert_eq!(nearest_rank(&sorted, share), Some(expected), "{share}");
        }
        assert_eq!(nearest_rank(&[], 0.5), None);
    }
}
