//! Fits the constants of collectives to data/training/collectives.csv and prints scores; `--rows` lists every row.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "an example prints and may stop")]
use bedplate_calibrate::{CollectiveReport, CollectiveRows, fit_collectives};
use bedplate_catalog::Catalog;
use bedplate_perf::{Constants, Origin};

fn main() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../data/training");
    let text = std::fs::read_to_string(format!("{root}/collectives.csv")).unwrap();
    let rows = CollectiveRows::read(&text, &Catalog::builtin()).unwrap();
    for (name, reason) in &rows.excluded {
        println!("excluded {name}: {reason}");
    }
    let fitted = fit_collectives(&rows.used.iter().collect::<Vec<_>>(), &Constants::builtin());
    for (value, field) in fitted.values().into_iter().zip(Constants::FIELDS) {
        if field.origin == Origin::Collectives {
            println!("{} = {value:.4e}", field.name);
        }
    }
    print("checked in", &rows.report(&Constants::builtin()));
    print("fitted", &rows.report(&fitted));
    print("node counts held out", &rows.holdout_report(&Constants::builtin()));
    if std::env::args().any(|argument| argument == "--rows") {
        for (name, predicted, measured) in rows.report(&fitted).outcomes {
            println!("{:>6.2} {predicted:.3e} {measured:.3e} {name}", predicted / measured);
        }
    }
}

fn print(title: &str, report: &CollectiveReport) {
    println!("{title}");
    for (name, score) in
        std::iter::once(("all", &report.total)).chain(report.by_kind.iter().map(|(k, s)| (k.as_str(), s)))
    {
        println!(
            "  {name:<36} n {:>4}  median {:>5.1}  p90 {:>5.1}  bias {:>5.1}",
            score.rows,
            100.0 * score.median_abs_error,
            100.0 * score.p90_abs_error,
            100.0 * score.bias
        );
    }
}
