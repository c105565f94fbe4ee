//! Prints how far the published layouts of data/training/measured.csv are from what a search proposes.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "an example prints and may stop")]
use bedplate_calibrate::Cases;
use bedplate_catalog::Catalog;
use bedplate_perf::Constants;
use bedplate_search::regrets;

fn main() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../data/training/measured.csv");
    let cases = Cases::read(&std::fs::read_to_string(path).unwrap(), &Catalog::builtin()).unwrap();
    let mut all = regrets(&cases.used, &Constants::builtin()).unwrap();
    all.sort_by(|a, b| b.ratio.total_cmp(&a.ratio));
    let within = all.iter().filter(|regret| regret.is_within()).count();
    let excused = all.iter().filter(|regret| !regret.is_within() && regret.excuse.is_some()).count();
    println!("{} setups, {within} within, {excused} excused", all.len());
    for regret in &all {
        println!(
            "{:.3} {:<14} {:<18} {:<8} n{:<5} {:<20} {:<44} -> {:<48} {:?} {}",
            regret.ratio,
            regret.id,
            regret.model,
            regret.accelerator,
            regret.gpus,
            format!("{:?}", regret.stack),
            regret.published.to_string(),
            regret.proposed.layout.to_string(),
            matches!(regret.proposed.fit, bedplate_perf::Fit::Tight { .. }),
            regret.excuse.unwrap_or("")
        );
    }
}
