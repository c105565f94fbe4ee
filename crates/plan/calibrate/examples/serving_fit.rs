//! Fits the serving constants to a table of measurements: `serving_fit FILE [ITERATIONS]`, with `--write` into
//! data/serving/constants.toml, with `--warm` from there, with `--holdout` scored on held-out groups.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "an example prints and may stop")]
use bedplate_calibrate::Score;
use bedplate_calibrate::serving::{ServingCase, ServingCases, fit_serving, fit_without_each};
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
    let fitted = fit_serving(&rows, &start, iterations).rounded();
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
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../data/serving/constants.toml");
    if std::env::args().any(|argument| argument == "--write") {
        std::fs::write(root, fitted.to_toml()).unwrap();
    }
    if std::env::args().any(|argument| argument == "--holdout") {
        let groups: Vec<String> = rows.iter().map(|case| case.group()).collect();
        let fits = fit_without_each(&rows, &groups, &fitted, 3);
        print("left out", &aggregated, |case| &fits[&case.group()]);
        print("left out, pools", &pools, |case| &fits[&case.group()]);
        let mut names = groups.clone();
        names.sort();
        names.dedup();
        for name in names {
            let members: Vec<&ServingCase> =
                rows.iter().copied().filter(|case| case.group() == name && case.pools.is_none()).collect();
            if members.is_empty() {
                continue;
            }
            print(&format!("  {name:<26}"), &members, |case| &fits[&case.group()]);
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
