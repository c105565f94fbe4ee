//! Prints the scores; `--holdout` leaves out one source at a time, `--rows` lists every row.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "an example prints and may stop")]
use bedplate_calibrate::{
    Cases, ErrorBars, FitOptions, Score, Similar, ValidationReport, holdout_report, leave_one_source_out,
    report,
};
use bedplate_catalog::Catalog;
use bedplate_perf::Constants;

fn main() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../data/training");
    let file = std::env::args().nth(1).filter(|argument| !argument.starts_with("--"));
    let text = std::fs::read_to_string(file.unwrap_or(format!("{root}/measured.csv"))).unwrap();
    let cases = Cases::read(&text, &Catalog::builtin()).unwrap();
    let has = |flag: &str| std::env::args().any(|argument| argument == flag);
    let constants = Constants::builtin();
    let fitted = report(&cases, &constants);
    print("fitted", &fitted);
    if has("--rows") {
        for (outcome, case) in fitted.outcomes.iter().zip(&cases.used) {
            let step = case.predict(&constants).unwrap();
            println!(
                "{:<14} {:>7.3} {:<22} {:<9} n{:<5} {:<45} gbs{:<5} s{:<6} {:>9.1} {:>9.1} mem {:>6.1} {:?} {:?}",
                outcome.id,
                1.0 + outcome.error,
                case.model.name,
                case.accelerator,
                case.hardware.gpus,
                case.layout.to_string(),
                case.workload.global_batch,
                case.workload.sequence,
                outcome.predicted,
                outcome.measured,
                step.memory.total().get() / 1.0737e9,
                case.memory_gb,
                case.workload.stack,
            );
        }
    }
    if has("--memory") {
        for case in &cases.used {
            let step = case.predict(&constants).unwrap();
            let parts: Vec<String> = step
                .memory
                .parts()
                .iter()
                .map(|(name, bytes)| format!("{name}={:.2}", bytes.get() / 1.073_741_824e9))
                .collect();
            println!(
                "{}\t{}\t{}\t{}\t{}\t{:?}\ttotal={:.1}\tcap={:.1}\tmeasured={:?}\t{}\t{}",
                case.id,
                case.model.name,
                case.accelerator,
                case.layout,
                case.workload.sequence,
                case.workload.stack,
                step.memory.total().get() / 1.073_741_824e9,
                case.hardware.memory / 1.073_741_824e9,
                case.memory_gb,
                parts.join(" "),
                if case.is_legal() { "" } else { "refused" },
            );
        }
    }
    if has("--skipped") {
        for row in &fitted.rows_skipped {
            println!("{} {}", row.id, row.reason);
        }
    }
    if has("--coverage") {
        let errors = leave_one_source_out(&cases, &constants, &FitOptions::builtin());
        let held = ErrorBars::held(&cases.used, &errors);
        let mut groups: std::collections::BTreeMap<String, (usize, usize)> =
            std::collections::BTreeMap::new();
        for (case, is_held) in cases.used.iter().zip(held) {
            let kind = Similar::of(&case.model, &case.layout).name().to_owned();
            for name in ["all".to_owned(), kind, case.accelerator.clone()] {
                let group = groups.entry(name).or_default();
                *group = (group.0 + usize::from(is_held), group.1 + 1);
            }
        }
        for (name, (inside, rows)) in groups {
            println!(
                "80 % interval holds {:>5.1} % of {rows:>4} {name}",
                100.0 * inside as f64 / rows as f64
            );
        }
    }
    if has("--holdout") {
        print(
            "one source held out",
            &holdout_report(&cases, &constants, &FitOptions { iterations: 8, ..FitOptions::builtin() }),
        );
    }
}

fn print(title: &str, report: &ValidationReport) {
    println!("{title}: {} used, {} skipped", report.rows_used(), report.rows_skipped.len());
    line("all", &report.total);
    for (name, score) in &report.by_parallelism {
        line(name, score);
    }
    for (name, score) in &report.by_gpu {
        line(name, score);
    }
    for (name, score) in &report.by_source {
        line(name, score);
    }
    line("memory", &report.memory);
    println!(
        "  rows that ran but are predicted not to fit: {}; but are refused: {}; memory within 15 %: {:.0} %",
        report.false_refusals,
        report.illegal.len(),
        100.0 * report.memory_within
    );
    println!("  kendall tau {:?} over {} rows", report.kendall_tau, report.ranked_rows);
}

fn line(name: &str, score: &Score) {
    println!(
        "  {name:<28} n {:>4}  median {:>5.1}  p90 {:>5.1}  bias {:>5.1}",
        score.rows,
        100.0 * score.median_abs_error,
        100.0 * score.p90_abs_error,
        100.0 * score.bias
    );
}
