//! Fits the serving constants to a table of measurements: `serving_fit FILE [ITERATIONS]`, with `--write` into
//! data/serving/constants.toml, with `--warm` from there, with `--every 3` to a third of the rows, with `--holdout` scored on sources left
//! out, with `--held-out` those fits and their errors into held_out.toml and intervals.toml beside it. All rows are scored.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "an example prints and may stop")]
use std::collections::BTreeMap;

use bedplate_calibrate::Score;
use bedplate_calibrate::serving::{
    HeldOut, ServingCase, ServingCases, ServingErrors, fit_serving, fit_without_each, held_out_errors,
    held_out_report,
};
use bedplate_catalog::Catalog;
use bedplate_perf::Origin;
use bedplate_perf::serving::ServingConstants;

fn main() {
    let path = std::env::args().nth(1).unwrap();
    let iterations = std::env::args().nth(2).map_or(8, |text| text.parse().unwrap());
    let cases = ServingCases::read(&std::fs::read_to_string(path).unwrap(), &Catalog::builtin()).unwrap();
    let rows: Vec<&ServingCase> = cases.used.iter().filter(|case| case.suspicion.is_none()).collect();
    let start = if std::env::args().any(|a| a == "--warm") {
        ServingConstants::builtin()
    } else {
        ServingConstants::priors()
    };
    let every = std::env::args().skip_while(|argument| argument != "--every").nth(1);
    let every: usize = every.map_or(1, |text| text.parse().unwrap());
    let seen: Vec<&ServingCase> = rows.iter().copied().step_by(every).collect();
    let fitted = fit_serving(&seen, &start, iterations).rounded();
    for (value, field) in fitted.values().iter().zip(ServingConstants::FIELDS) {
        if field.origin == Origin::Serving {
            println!(
                "{:<24} {:>10.3e}  prior {:>10.3e}  {:+.1} widths",
                field.name,
                value,
                field.prior,
                (value / field.prior).ln() / field.spread
            );
        }
    }
    let aggregated: Vec<&ServingCase> = rows.iter().copied().filter(|case| case.pools.is_none()).collect();
    let pools: Vec<&ServingCase> = rows.iter().copied().filter(|case| case.pools.is_some()).collect();
    print("fitted", &aggregated, |_| &fitted);
    print("fitted, pools", &pools, |_| &fitted);
    let has = |flag: &str| std::env::args().any(|argument| argument == flag);
    if has("--write") {
        std::fs::write(format!("{ROOT}/constants.toml"), fitted.to_toml()).unwrap();
    }
    if has("--holdout") || has("--held-out") {
        let groups: Vec<String> = rows.iter().map(|case| case.source()).collect();
        let seen_groups: Vec<String> = seen.iter().map(|case| case.source()).collect();
        let fits = fit_without_each(&seen, &seen_groups, &fitted, 4);
        if has("--held-out") {
            write_held_out(&cases, &fits, &fitted);
        }
        // A source of which no row was seen is held out of all fits.
        let of = |case: &ServingCase| fits.get(&case.source()).unwrap_or(&fitted);
        print("held out", &aggregated, of);
        print("held out, pools", &pools, of);
        let mut names = groups.clone();
        names.sort();
        names.dedup();
        for name in names {
            let members: Vec<&ServingCase> =
                rows.iter().copied().filter(|case| case.source() == name && case.pools.is_none()).collect();
            if members.is_empty() {
                continue;
            }
            print(&format!("  {name:<26}"), &members, of);
        }
    }
}

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../data/serving");

/// Keeps the fits without each source and the errors that follow, and prints how many rows 80 % intervals hold.
fn write_held_out(
    cases: &ServingCases,
    fits: &BTreeMap<String, ServingConstants>,
    fitted: &ServingConstants,
) {
    let made = "# Made by `cargo run --release -p bedplate-calibrate --example serving_fit -- data/serving/measured.csv 0 --warm --every 3 --held-out`";
    let held_out =
        HeldOut::new(*fitted, fits.iter().map(|(name, fit)| (name.clone(), fit.rounded())).collect());
    let about = "from measured serving rows: the fitted serving constants, without each source (a model on a GPU) in turn.";
    std::fs::write(format!("{ROOT}/held_out.toml"), format!("{made}\n# {about}\n{}", held_out.to_toml()))
        .unwrap();
    let rows = held_out_errors(cases, &held_out, fitted);
    let errors = ServingErrors::from_held_out(&rows);
    let about = "from measured serving rows: logarithms of measured over predicted, each source predicted by constants fitted\n\
                 # without it, in rising order. `near`: what two deployments of a source differ by wrongly, in the median.";
    std::fs::write(format!("{ROOT}/intervals.toml"), format!("{made}\n# {about}\n{}", errors.to_toml()))
        .unwrap();
    for (kind, groups) in held_out_report(&rows, &errors).coverage {
        for (name, coverage) in groups {
            println!(
                "80 % intervals hold of {kind} {name} ({} rows): itl {:.1} thr {:.1} ttft {:.1}",
                coverage.rows,
                100.0 * coverage.inter_token,
                100.0 * coverage.throughput,
                100.0 * coverage.first_token
            );
        }
    }
}

fn print<'a>(title: &str, rows: &[&ServingCase], constants: impl Fn(&ServingCase) -> &'a ServingConstants) {
    let errors: Vec<_> = rows.iter().map(|case| case.log_errors(constants(case))).collect();
    let line = |values: Vec<f64>| {
        let score = Score::of(&values.iter().map(|value| value.exp() - 1.0).collect::<Vec<_>>());
        format!(
            "{:+5.1} {:5.1}/{:5.1}",
            100.0 * score.bias,
            100.0 * score.median_abs_error,
            100.0 * score.p90_abs_error
        )
    };
    println!(
        "{title} {} rows: itl {} thr {} ttft {}",
        rows.len(),
        line(errors.iter().map(|error| error.inter_token).collect()),
        line(errors.iter().map(|error| error.throughput).collect()),
        line(errors.iter().map(|error| error.first_token).collect())
    );
}
