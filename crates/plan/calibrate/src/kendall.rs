//! Kendall's tau: how well predicted order agrees with measured order.

use std::collections::BTreeMap;

use crate::Case;

/// Agreement over all groups that can be ranked.
pub(crate) struct Agreement {
    pub(crate) tau: Option<f64>,
    pub(crate) rows: usize,
}

/// Pairs of rows of one model, GPU, GPU count and batch, counted as agreeing or not, in `n log n`. Rows that differ
/// by less than 2 % are ties, as repeats differ by that much; so are equal predictions, which are one layout
/// under two releases.
pub(crate) fn agreement(cases: &[Case], errors: &[f64]) -> Agreement {
    let mut groups: BTreeMap<_, Vec<Point>> = BTreeMap::new();
    for (case, error) in cases.iter().zip(errors) {
        let measured = case.tokens_per_second.ln();
        let predicted = measured + (1.0 + error).ln();
        if predicted.is_finite() {
            groups.entry(comparable(case)).or_default().push(Point { measured, predicted });
        }
    }
    let (mut agreeing, mut disagreeing, mut rows) = (0, 0, 0);
    for points in groups.into_values() {
        let below = pairs_below(&points);
        let mirrored = points.iter().map(|point| Point { measured: -point.measured, ..*point });
        let above = pairs_below(&mirrored.collect::<Vec<_>>());
        agreeing += below.iter().map(|pairs| pairs.lower).sum::<usize>();
        disagreeing += below.iter().map(|pairs| pairs.higher).sum::<usize>();
        rows += below.iter().zip(&above).filter(|(below, above)| below.any() || above.any()).count();
    }
    let pairs = agreeing + disagreeing;
    let tau = (pairs > 0).then(|| (agreeing as f64 - disagreeing as f64) / pairs as f64);
    Agreement { tau, rows }
}

/// Rows with equal keys can be ranked against each other. A sweep over the number of heads or the vocabulary has many models.
fn comparable(case: &Case) -> (&str, &str, u32, u64, u64, String) {
    let (model, gpus) = (&case.model, case.hardware.gpus);
    let shape = format!("{} {} {:?}", model.hidden, model.vocab, model.runs);
    (&case.source, &case.accelerator, gpus, case.workload.sequence, case.workload.global_batch, shape)
}

/// Logarithms of a row's throughput.
#[derive(Debug, Clone, Copy)]
struct Point {
    measured: f64,
    predicted: f64,
}

/// Rows measured below a row, by whether they are predicted below or above it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Pairs {
    lower: usize,
    higher: usize,
}

impl Pairs {
    fn any(self) -> bool {
        self.lower + self.higher > 0
    }
}

const MEASURED_TIE: f64 = 0.02;
const PREDICTED_TIE: f64 = 1e-9;

/// The pairs of each point with points measured below it; the order of the points is kept.
fn pairs_below(points: &[Point]) -> Vec<Pairs> {
    let mut order: Vec<usize> = (0..points.len()).collect();
    order.sort_by(|a, b| points[*a].measured.total_cmp(&points[*b].measured));
    let mut sorted: Vec<f64> = points.iter().map(|point| point.predicted).collect();
    sorted.sort_by(f64::total_cmp);
    let below = |value: f64| sorted.partition_point(|other| *other < value);
    let mut seen = Counts(vec![0; points.len() + 1]);
    let mut pairs = vec![Pairs::default(); points.len()];
    let mut taken = 0;
    for at in &order {
        let point = points[*at];
        while points[order[taken]].measured <= point.measured - MEASURED_TIE {
            seen.add(below(points[order[taken]].predicted));
            taken += 1;
        }
        pairs[*at] = Pairs {
            lower: seen.before(below(point.predicted - PREDICTED_TIE)),
            higher: taken - seen.before(below(point.predicted + PREDICTED_TIE)),
        };
    }
    pairs
}

/// Counts by rank with prefix sums: a Fenwick tree.
struct Counts(Vec<usize>);

impl Counts {
    fn add(&mut self, rank: usize) {
        let mut at = rank + 1;
        while at < self.0.len() {
            self.0[at] += 1;
            at += at & at.wrapping_neg();
        }
    }

    /// The number of entries with a lower rank.
    fn before(&self, rank: usize) -> usize {
        let (mut at, mut sum) = (rank, 0);
        while at > 0 {
            sum += self.0[at];
            at -= at & at.wrapping_neg();
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn counts_equal_those_of_all_pairs(
            values in prop::collection::vec((0u32..40, 0u32..20), 0..60),
        ) {
            let points: Vec<Point> = values
                .iter()
                .map(|(measured, predicted)| Point {
                    measured: f64::from(*measured) * 0.013,
                    predicted: f64::from(*predicted),
                })
                .collect();
            let slow = |a: &Point| {
                let below = points.iter().filter(|b| b.measured <= a.measured - MEASURED_TIE);
                let (lower, higher): (Vec<&Point>, Vec<&Point>) =
                    below.filter(|b| b.predicted != a.predicted).partition(|b| b.predicted < a.predicted);
                Pairs { lower: lower.len(), higher: higher.len() }
            };
            prop_assert_eq!(pairs_below(&points), points.iter().map(slow).collect::<Vec<_>>());
        }
    }
}
