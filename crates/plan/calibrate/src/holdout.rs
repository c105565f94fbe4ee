//! Held-out scores: each publication is held out of the fit in turn.

use std::collections::{BTreeMap, BTreeSet};

use bedplate_perf::Constants;

use crate::fit::{FitOptions, fit, fit_memory};
use crate::report::{ValidationReport, report_by};
use crate::{Case, Cases};

/// Every source with constants fitted to all other rows.
fn fits_without(cases: &Cases, start: &Constants, options: &FitOptions) -> BTreeMap<String, Constants> {
    let sources: BTreeSet<&str> = cases.used.iter().map(|case| case.source.as_str()).collect();
    let without = |source: &str| {
        let others: Vec<&Case> = cases.used.iter().filter(|case| case.source != source).collect();
        if others.is_empty() { *start } else { fit_memory(&others, &fit(&others, start, options)) }
    };
    sources.into_iter().map(|source| (source.to_owned(), without(source))).collect()
}

/// Signed errors of all rows, each predicted by constants fitted without its publication.
pub fn leave_one_source_out(cases: &Cases, start: &Constants, options: &FitOptions) -> Vec<f64> {
    let fits = fits_without(cases, start, options);
    cases.used.iter().map(|case| case.log_error(&fits[&case.source]).exp() - 1.0).collect()
}

/// A report with held-out errors only, memory included.
pub fn holdout_report(cases: &Cases, start: &Constants, options: &FitOptions) -> ValidationReport {
    let fits = fits_without(cases, start, options);
    report_by(cases, |case| &fits[&case.source])
}
