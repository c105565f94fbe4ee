//! Error bars: 80 % intervals around a prediction, from rows held out of the fit.
//!
//! Residuals of similar rows, each predicted without its publication, give empirical quantiles; they are
//! skewed and have heavy tails, so no Gaussian is assumed. A publication counts by the square root of its rows,
//! because its residuals are correlated. [`ErrorBars::coverage`] checks the bars on held-out publications.

use bedplate_diag::Source;
use bedplate_document::{DocumentError, Table};
use bedplate_layout::{Layout, Sharding};
use bedplate_transformer::Transformer;

use crate::Case;

/// Rows with similar errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Similar {
    Dense,
    /// Dense with sharded weights: FSDP, ZeRO-3.
    DenseSharded,
    Mixture,
}

impl Similar {
    pub const ALL: [(&'static str, Similar); 3] =
        [("dense", Similar::Dense), ("dense-sharded", Similar::DenseSharded), ("mixture", Similar::Mixture)];

    pub fn of(model: &Transformer, layout: &Layout) -> Self {
        let is_sharded = matches!(layout.sharding, Sharding::Weights | Sharding::WeightsWithin(_));
        match (model.is_mixture(), is_sharded) {
            (true, _) => Similar::Mixture,
            (false, true) => Similar::DenseSharded,
            (false, false) => Similar::Dense,
        }
    }

    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].0
    }
}

/// The 80 % interval of measured throughput, as factors of the predicted one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    pub low: f64,
    pub high: f64,
}

/// The share of rows between the two quantiles. More than the nominal 80 %: residuals of one publication are
/// correlated, so quantiles of few publications are too narrow for another one; mixtures have the fewest.
fn share(similar: Similar) -> f64 {
    match similar {
        Similar::Mixture => 0.86,
        Similar::Dense | Similar::DenseSharded => 0.82,
    }
}

/// Intervals by kind of row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ErrorBars {
    intervals: [Interval; Similar::ALL.len()],
}

impl ErrorBars {
    /// The bars that belong to the checked-in constants.
    pub fn builtin() -> Self {
        let text = include_str!("../../../../data/training/intervals.toml");
        Self::read(Source::new("data/training/intervals.toml", text))
            .expect("the embedded intervals are valid: checked by a test")
    }

    pub fn read(source: Source<'_>) -> Result<Self, DocumentError> {
        let file = Table::parse(source)?.titled("the intervals");
        let mut intervals = [Interval { low: 1.0, high: 1.0 }; Similar::ALL.len()];
        for (name, similar) in Similar::ALL {
            let table = file.table(name)?.ok_or_else(|| file.bad_value(name, "this table is missing"))?;
            intervals[similar as usize] =
                Interval { low: table.required("low")?, high: table.required("high")? };
            table.finish()?;
        }
        file.finish()?;
        Ok(Self { intervals })
    }

    pub fn to_toml(&self) -> String {
        let table = |(name, similar): (&str, Similar)| {
            let Interval { low, high } = self.interval(similar);
            format!("[{name}]\nlow = {low:.4}\nhigh = {high:.4}\n")
        };
        Similar::ALL.map(table).join("\n")
    }

    pub fn interval(&self, similar: Similar) -> Interval {
        self.intervals[similar as usize]
    }

    /// Bars from the signed errors of held-out rows.
    pub fn from_holdout(cases: &[Case], errors: &[f64]) -> Self {
        Self { intervals: Similar::ALL.map(|(_, similar)| interval_without("", similar, cases, errors)) }
    }

    /// The share of rows within bars made without their own publication.
    pub fn coverage(cases: &[Case], errors: &[f64]) -> f64 {
        let held = Self::held(cases, errors);
        held.iter().filter(|is_held| **is_held).count() as f64 / cases.len().max(1) as f64
    }

    /// For each row, whether bars made without its publication hold it.
    pub fn held(cases: &[Case], errors: &[f64]) -> Vec<bool> {
        let is_held = |(case, error): (&Case, &f64)| {
            let similar = Similar::of(&case.model, &case.layout);
            let interval = interval_without(&case.source, similar, cases, errors);
            (interval.low..=interval.high).contains(&(1.0 / (1.0 + error)))
        };
        cases.iter().zip(errors).map(is_held).collect()
    }
}

/// The interval of similar rows of other publications; of all other publications where too few are similar.
fn interval_without(source: &str, similar: Similar, cases: &[Case], errors: &[f64]) -> Interval {
    const ENOUGH: usize = 40;
    let others = || cases.iter().zip(errors).filter(|(case, _)| case.source != source);
    let alike = |case: &Case| Similar::of(&case.model, &case.layout) == similar;
    let is_enough = others().filter(|(case, _)| alike(case)).count() >= ENOUGH;
    let chosen: Vec<(&Case, f64)> = others()
        .filter(|(case, _)| !is_enough || alike(case))
        .map(|(case, error)| (case, 1.0 / (1.0 + error)))
        .collect();
    let rows = |source: &str| chosen.iter().filter(|(case, _)| case.source == source).count() as f64;
    let mut truths: Vec<(f64, f64)> =
        chosen.iter().map(|(case, truth)| (*truth, rows(&case.source).powf(-0.5))).collect();
    truths.sort_by(|a, b| a.0.total_cmp(&b.0));
    Interval {
        low: weighted_quantile(&truths, (1.0 - share(similar)) / 2.0),
        high: weighted_quantile(&truths, (1.0 + share(similar)) / 2.0),
    }
}

/// The weighted quantile of sorted `(value, weight)` pairs; 1 for none.
fn weighted_quantile(sorted: &[(f64, f64)], share: f64) -> f64 {
    let whole: f64 = sorted.iter().map(|(_, weight)| weight).sum();
    let mut below = 0.0;
    for (value, weight) in sorted {
        below += weight;
        if below >= share * whole {
            return *value;
        }
    }
    sorted.last().map_or(1.0, |(value, _)| *value)
}
