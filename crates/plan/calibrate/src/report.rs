//! The model's errors: scores over all rows and by kind of row.

use std::collections::BTreeMap;

use bedplate_catalog::Catalog;
use bedplate_perf::Constants;
use bedplate_units::statistics::quantile;

use crate::case::{Case, Cases, Skipped};
use crate::{CalibrateError, kendall};

/// Errors of a set of rows, as fractions of the measured value.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Score {
    pub rows: usize,
    pub median_abs_error: f64,
    pub p90_abs_error: f64,
    /// Median of the signed errors.
    pub bias: f64,
}

impl Score {
    /// Scores signed errors, `predicted / measured - 1`.
    pub fn of(errors: &[f64]) -> Self {
        let absolute: Vec<f64> = errors.iter().map(|error| error.abs()).collect();
        Self {
            rows: errors.len(),
            median_abs_error: quantile(&absolute, 0.5),
            p90_abs_error: quantile(&absolute, 0.9),
            bias: quantile(errors, 0.5),
        }
    }
}

/// The result for one row.
#[derive(Debug, Clone, PartialEq)]
pub struct RowOutcome {
    pub id: String,
    pub source: String,
    pub predicted: f64,
    pub measured: f64,
    /// `predicted / measured - 1`.
    pub error: f64,
}

/// The result of `plan validate`.
#[derive(Debug, Clone, PartialEq)]
pub struct ValidationReport {
    pub outcomes: Vec<RowOutcome>,
    pub rows_skipped: Vec<Skipped>,
    pub total: Score,
    pub by_source: BTreeMap<String, Score>,
    pub by_gpu: BTreeMap<String, Score>,
    pub by_parallelism: BTreeMap<&'static str, Score>,
    /// Mean agreement of predicted with measured order among rows of one model and GPU count: 1 is
    /// perfect, 0 is chance. Groups of at least three rows.
    pub kendall_tau: Option<f64>,
    /// Rows that `kendall_tau` is based on.
    pub ranked_rows: usize,
    pub memory: Score,
    /// The share of predicted over measured memory within 0.85 to 1.15.
    pub memory_within: f64,
    /// Rows predicted not to fit although they ran.
    pub false_refusals: usize,
    /// Rows whose layouts the rules of `layout` refuse although they ran.
    pub illegal: Vec<String>,
}

impl ValidationReport {
    pub fn rows_used(&self) -> usize {
        self.outcomes.len()
    }
}

/// Scores the constants on the rows of a CSV file.
pub fn validate(
    text: &str,
    constants: &Constants,
    catalog: &Catalog,
) -> Result<ValidationReport, CalibrateError> {
    Ok(report(&Cases::read(text, catalog)?, constants))
}

/// Scores the constants on rows already read.
pub fn report(cases: &Cases, constants: &Constants) -> ValidationReport {
    report_by(cases, |_| constants)
}

/// A report in which each row is predicted by its own constants, such as those fitted without it.
pub(crate) fn report_by<'a>(cases: &Cases, constants: impl Fn(&Case) -> &'a Constants) -> ValidationReport {
    let error = |case: &Case| case.log_error(constants(case)).exp() - 1.0;
    let errors: Vec<f64> = cases.used.iter().map(error).collect();
    let memory = |case: &Case| case.memory_log_error(constants(case)).map(|error| error.exp() - 1.0);
    let memory: Vec<f64> = cases.used.iter().filter_map(memory).collect();
    let refused = cases.used.iter().filter(|case| case.memory_over(constants(case)) > 0.0).count();
    let errors = errors.as_slice();
    let outcome = |(case, error): (&Case, &f64)| RowOutcome {
        id: case.id.clone(),
        source: case.source.clone(),
        predicted: case.tokens_per_second * (1.0 + error),
        measured: case.tokens_per_second,
        error: *error,
    };
    let by = |key: &dyn Fn(&Case) -> String| {
        let mut groups: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for (case, error) in cases.used.iter().zip(errors) {
            groups.entry(key(case)).or_default().push(*error);
        }
        groups.into_iter().map(|(name, errors)| (name, Score::of(&errors))).collect::<BTreeMap<_, _>>()
    };
    let parallelism = PARALLELISMS.iter().map(|(name, applies)| {
        let chosen = cases.used.iter().zip(errors).filter(|(case, _)| applies(case));
        (*name, Score::of(&chosen.map(|(_, error)| *error).collect::<Vec<_>>()))
    });
    let order = kendall::agreement(&cases.used, errors);
    ValidationReport {
        outcomes: cases.used.iter().zip(errors).map(outcome).collect(),
        rows_skipped: cases.skipped.clone(),
        total: Score::of(errors),
        by_source: by(&|case| case.source.clone()),
        by_gpu: by(&|case| case.accelerator.clone()),
        by_parallelism: parallelism.collect(),
        kendall_tau: order.tau,
        ranked_rows: order.rows,
        memory: Score::of(&memory),
        memory_within: memory.iter().filter(|error| error.abs() <= 0.15).count() as f64
            / memory.len().max(1) as f64,
        false_refusals: refused,
        illegal: cases.used.iter().filter(|case| !case.is_legal()).map(|case| case.id.clone()).collect(),
    }
}

type Applies = fn(&Case) -> bool;

const PARALLELISMS: [(&str, Applies); 9] = [
    ("dense", |case| !case.is_mixture()),
    ("mixture", |case| case.is_mixture()),
    ("data only", |case| case.layout.tensor * case.layout.pipeline * case.layout.context == 1),
    ("tensor", |case| case.layout.tensor > 1),
    ("pipeline", |case| case.layout.pipeline > 1),
    ("context", |case| case.layout.context > 1),
    ("expert", |case| case.layout.expert > 1),
    ("sharded weights", |case| {
        matches!(
            case.layout.sharding,
            bedplate_layout::Sharding::Weights | bedplate_layout::Sharding::WeightsWithin(_)
        )
    }),
    ("sequences of 16k and more", |case| case.workload.sequence >= 16_384),
];
