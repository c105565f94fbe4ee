//! Fits the constants to data/training/{measured,collectives}.csv and writes data/training/constants.toml.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "an example prints and may stop")]
use bedplate_calibrate::{
    Case, Cases, CollectiveRows, ErrorBars, FitOptions, fit, fit_collectives, fit_efa_tcp, fit_memory,
    leave_one_source_out, report,
};
use bedplate_catalog::Catalog;
use bedplate_perf::Constants;

fn main() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../data/training");
    let text = std::fs::read_to_string(format!("{root}/measured.csv")).unwrap();
    let cases = Cases::read(&text, &Catalog::builtin()).unwrap();
    let rows: Vec<&Case> = cases.used.iter().collect();
    let before = report(&cases, &Constants::priors());
    println!("{} rows, from priors {:?}", rows.len(), before.total);
    // Collectives first, by themselves; training rows then move what remains.
    let collectives = std::fs::read_to_string(format!("{root}/collectives.csv")).unwrap();
    let collectives = CollectiveRows::read(&collectives, &Catalog::builtin()).unwrap();
    let start = fit_collectives(&collectives.used.iter().collect::<Vec<_>>(), &Constants::priors());
    let constants = fit(&rows, &start, &FitOptions { iterations: 25, ..FitOptions::builtin() });
    let constants = fit_memory(&rows, &constants);
    let constants = fit_efa_tcp(&constants, &Catalog::builtin()).rounded();
    let after = report(&cases, &constants);
    println!("fitted {:?}", after.total);
    std::fs::write(format!("{root}/constants.toml"), constants.to_toml()).unwrap();
    let errors = leave_one_source_out(&cases, &constants, &FitOptions::builtin());
    let bars = ErrorBars::from_holdout(&cases.used, &errors);
    std::fs::write(format!("{root}/intervals.toml"), bars.to_toml()).unwrap();
    println!(
        "80 % intervals hold {:.1} % of rows of other sources",
        100.0 * ErrorBars::coverage(&cases.used, &errors)
    );
}
