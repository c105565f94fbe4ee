//! Offers that no other offer dominates.

/// Indices of the points that no other point matches or beats in all three values, where smaller is better.
/// Of equal points the first is kept.
pub fn pareto(points: &[[f64; 3]]) -> Vec<usize> {
    let beats = |a: &[f64; 3], b: &[f64; 3]| a.iter().zip(b).all(|(a, b)| a <= b);
    let is_beaten = |index: usize| {
        points.iter().enumerate().any(|(other, point)| {
            let comes_first = other < index || point != &points[index];
            other != index && comes_first && beats(point, &points[index])
        })
    };
    (0..points.len()).filter(|index| !is_beaten(*index)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_beaten_in_all_three_falls() {
        let points = [[1.0, 5.0, 5.0], [2.0, 2.0, 2.0], [2.0, 3.0, 2.0], [5.0, 1.0, 5.0], [1.0, 5.0, 5.0]];
        assert_eq!(pareto(&points), [0, 1, 3]);
        assert!(pareto(&[]).is_empty());
    }
}
