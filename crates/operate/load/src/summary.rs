//! What all requests took together.

use std::collections::BTreeMap;
use std::time::Duration;

use bedplate_units::statistics::nearest_rank;

use crate::asking::AskedOutcome;

/// Mean and quantiles of times, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Quantiles {
    pub count: u64,
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub highest: f64,
}

impl Quantiles {
    /// By the nearest rank.
    pub(crate) fn of(mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        let Some(highest) = times.last().copied() else { return Self::default() };
        let at = |share: f64| nearest_rank(&times, share).unwrap_or(highest);
        Self {
            count: times.len() as u64,
            mean: times.iter().sum::<f64>() / times.len() as f64,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            highest,
        }
    }
}

/// The measurement of one server.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LoadSummary {
    pub model: String,
    pub requests: usize,
    pub finished: usize,
    /// Failures by what was said, with how often.
    pub failures: Vec<(String, usize)>,
    /// From the first request to the last end, in seconds.
    pub seconds: f64,
    pub prompt_tokens: u64,
    pub output_tokens: u64,
    pub cached_tokens: u64,
    pub first_token: Quantiles,
    /// Every gap between two pieces of text; most servers send a token in a piece.
    pub between: Quantiles,
    /// Of each request, its time after the first token over the other tokens.
    pub per_token: Quantiles,
    pub whole: Quantiles,
    /// How much later than planned requests were sent, for an open loop.
    pub late: Quantiles,
}

impl LoadSummary {
    pub(crate) fn of(model: String, asked: &[AskedOutcome], took: Duration, late: Vec<f64>) -> Self {
        let finished: Vec<&AskedOutcome> = asked.iter().filter(|asked| asked.failure.is_none()).collect();
        let mut failures: BTreeMap<&str, usize> = BTreeMap::new();
        for failure in asked.iter().filter_map(|asked| asked.failure.as_deref()) {
            *failures.entry(failure).or_default() += 1;
        }
        let mut failures: Vec<(String, usize)> =
            failures.into_iter().map(|(why, count)| (why.to_owned(), count)).collect();
        failures.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let sum = |tokens: fn(&AskedOutcome) -> u64| finished.iter().map(|asked| tokens(asked)).sum();
        let times = |time: fn(&AskedOutcome) -> Option<f64>| {
            Quantiles::of(finished.iter().filter_map(|asked| time(asked)).collect())
        };
        let gaps = finished.iter().flat_map(|asked| &asked.gaps).map(Duration::as_secs_f64).collect();
        Self {
            model,
            requests: asked.len(),
            finished: finished.len(),
            failures,
            seconds: took.as_secs_f64(),
            prompt_tokens: sum(|asked| asked.prompt_tokens),
            output_tokens: sum(|asked| asked.output_tokens),
            cached_tokens: sum(|asked| asked.cached_tokens),
            first_token: times(|asked| asked.first.map(|first| first.as_secs_f64())),
            between: Quantiles::of(gaps),
            per_token: times(per_token),
            whole: times(|asked| Some(asked.whole.as_secs_f64())),
            late: Quantiles::of(late),
        }
    }

    pub fn requests_per_second(&self) -> f64 {
        self.finished as f64 / self.seconds.max(1e-9)
    }

    pub fn output_tokens_per_second(&self) -> f64 {
        self.output_tokens as f64 / self.seconds.max(1e-9)
    }

    pub fn prompt_tokens_per_second(&self) -> f64 {
        self.prompt_tokens as f64 / self.seconds.max(1e-9)
    }
}

fn per_token(asked: &AskedOutcome) -> Option<f64> {
    let after = asked.whole.checked_sub(asked.first?)?;
    (asked.output_tokens > 1).then(|| after.as_secs_f64() / (asked.output_tokens - 1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_occurred() {
        let quantiles = Quantiles::of((1..=200).rev().map(f64::from).collect());
        assert_eq!(
            quantiles,
            Quantiles { count: 200, mean: 100.5, p50: 100.0, p90: 180.0, p99: 198.0, highest: 200.0 }
        );
        assert_eq!(Quantiles::of(vec![3.0]).p99, 3.0);
        assert_eq!(Quantiles::of(Vec::new()), Quantiles::default());
    }
}
