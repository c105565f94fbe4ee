//! `bedplate health check`: works this machine hard for a while and compares every result.
//!
//! Matrix products with the same inputs must give the same bits every time, memory and disk must give back what was put in, and
//! a pair of ranks must agree on a sum. Rates that fall during the check are told: a machine that slows down under load
//! slows its gang down.

mod disk;
mod gpu;
mod pair;
mod processor;

use std::path::PathBuf;
use std::time::Duration;

use bedplate_diag::{Class, Diagnostic, Page};
use bedplate_terminal::present::{Column, Table};
use bedplate_terminal::{CliError, Console};
use bedplate_units::Seconds;
use serde_json::{Value, json};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  bedplate health check
  bedplate health check --for 60s --folder /scratch --json
  bedplate node drain n3 --reason check && bedplate submit --nodes 1 -- bedplate health check

Exit code 1 when a check fails. The machine should be idle: other work makes rates lower.")]
pub(super) struct Arguments {
    /// How long each part works
    #[arg(long = "for", value_name = "TIME", default_value = "5s")]
    lasts: Seconds,
    /// The folder whose disk is written to and read [default: the system's temporary one]
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// How much is written to the disk
    #[arg(long, value_name = "MIB", default_value_t = 256)]
    disk_mib: u64,
}

/// One part of the check.
pub(super) struct Outcome {
    name: String,
    verdict: Verdict,
    /// The rate, with its unit, where there is one.
    rate: Option<String>,
    remark: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Verdict {
    Pass,
    /// It works, and something is odd.
    Warn,
    Fail,
    /// There is nothing to check.
    Absent,
}

impl Verdict {
    fn name(self) -> &'static str {
        match self {
            Verdict::Pass => "pass",
            Verdict::Warn => "warn",
            Verdict::Fail => "fail",
            Verdict::Absent => "absent",
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{count} of the checks failed: {names}")]
struct CheckFailed {
    count: usize,
    names: String,
}

pub(super) static FAILED: Page = Page {
    code: "health/check-failed",
    class: Class::User,
    meaning: "A deep check of this machine found that results differ from run to run, that data did not come back as it was written, or that hardware reports faults. Training on such a machine gives wrong numbers or stops.",
    remedy: "keep the machine out of service, repeat the check to be sure, and have the part that is named replaced",
};

impl Diagnostic for CheckFailed {
    fn page(&self) -> &'static Page {
        &FAILED
    }
}

pub(super) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    let lasts = Duration::from_secs_f64(arguments.lasts.get().clamp(0.05, 86_400.0));
    let folder = arguments.folder.clone().unwrap_or_else(std::env::temp_dir);
    let mut outcomes = Vec::new();
    console.say("matrix products");
    outcomes.push(processor::products(lasts));
    console.say("memory");
    outcomes.push(processor::memory(lasts));
    console.say("a pair of ranks");
    outcomes.push(pair::check(lasts));
    console.say("the disk");
    outcomes.extend(disk::check(&folder, arguments.disk_mib));
    console.say("GPUs");
    outcomes.extend(gpu::check());
    show(&outcomes, console)?;
    let failed: Vec<&str> = outcomes
        .iter()
        .filter(|outcome| outcome.verdict == Verdict::Fail)
        .map(|outcome| outcome.name.as_str())
        .collect();
    if failed.is_empty() {
        return Ok(());
    }
    Err(CheckFailed { count: failed.len(), names: failed.join(", ") }.into())
}

fn show(outcomes: &[Outcome], console: &mut Console) -> Result<(), CliError> {
    if console.is_json() {
        let json = |outcome: &Outcome| {
            json!({
                "check": outcome.name,
                "verdict": outcome.verdict.name(),
                "rate": outcome.rate,
                "remark": outcome.remark,
            })
        };
        return console.json(&Value::Array(outcomes.iter().map(json).collect()));
    }
    let mut table = Table::new(vec![
        Column::left("CHECK", 0),
        Column::left("VERDICT", 0),
        Column::right("RATE", 0),
        Column::left("REMARK", 1),
    ]);
    for outcome in outcomes {
        table.row(vec![
            outcome.name.clone(),
            outcome.verdict.name().to_owned(),
            outcome.rate.clone().unwrap_or_else(|| "-".to_owned()),
            outcome.remark.clone(),
        ]);
    }
    console.table(&table)
}

/// A verdict on rates over time: the last third against the first.
pub(super) fn steadiness(rates: &[f64]) -> (Verdict, String) {
    const SLOWER: f64 = 0.7;
    let third = rates.len() / 3;
    if third == 0 {
        return (Verdict::Pass, "too short to see whether it slows down".to_owned());
    }
    let median = |rates: &[f64]| {
        let mut sorted = rates.to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted[sorted.len() / 2]
    };
    let (first, last) = (median(&rates[..third]), median(&rates[rates.len() - third..]));
    match last < SLOWER * first {
        true => (Verdict::Warn, format!("slowed down to {:.0} % of its first rate", 100.0 * last / first)),
        false => (Verdict::Pass, "steady".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_slows_down_is_told_from_one_that_does_not() {
        assert_eq!(steadiness(&[10.0, 10.0, 9.0, 9.5, 10.0, 9.9]).0, Verdict::Pass);
        assert_eq!(steadiness(&[10.0, 10.0, 8.0, 7.0, 6.0, 6.0]).0, Verdict::Warn);
        assert_eq!(steadiness(&[1.0]).0, Verdict::Pass);
    }
}
