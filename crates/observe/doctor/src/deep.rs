//! A deep check: works a machine hard for a while and compares every result.
//!
//! Matrix products with the same inputs must give the same bits every time, memory and disk must give back what was put in,
//! a pair of ranks must agree on a sum, and GPUs are burned in. Rates that fall during the check are told: a machine that slows down under load
//! slows its gang down.

mod burn_in;
mod disk;
mod gpu;
mod pair;
mod processor;

use std::path::PathBuf;
use std::time::Duration;

use bedplate_diag::{Diagnostic, Page, pages};

use crate::CheckVerdict;
pub use burn_in::GpuBurnIn;

/// What is checked, and for how long.
#[derive(Debug, Clone)]
pub struct DeepCheck {
    /// The name of the machine.
    pub node: String,
    /// How long each part works.
    pub lasts: Duration,
    /// The folder whose disk is written to and read.
    pub folder: PathBuf,
    /// How much is written to the disk.
    pub disk_mib: u64,
    pub gpus: GpuBurnIn,
}

/// One part of the check.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    pub name: String,
    /// `None` where there is nothing to check.
    pub verdict: Option<CheckVerdict>,
    /// The rate, with its unit, where there is one.
    pub rate: Option<String>,
    pub remark: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{count} of the checks failed: {names}")]
pub struct CheckFailed {
    pub count: usize,
    pub names: String,
}

pages! { pub PAGES "health":
    FAILED "check-failed" User
        "A deep check of this machine found that results differ from run to run, that data did not come back as it was written, or that hardware reports faults. Training on such a machine gives wrong numbers or stops."
        "keep the machine out of service, repeat the check to be sure, and have the part that is named replaced"
}

impl Diagnostic for CheckFailed {
    fn page(&self) -> &'static Page {
        &FAILED
    }
}

impl DeepCheck {
    /// Only what no job on the machine can bring about: results that differ, memory that forgets, GPUs that report faults. Disks
    /// may be full and ports taken.
    pub fn run_quick(&self, begins: impl Fn(&str)) -> Vec<Outcome> {
        begins("matrix products");
        let mut outcomes = vec![processor::products(self.lasts)];
        begins("memory");
        outcomes.push(processor::memory(self.lasts));
        begins("GPUs");
        outcomes.extend(gpu::check(&self.node, None));
        outcomes
    }

    /// Checks everything, one part after the other; `begins` hears the name of each.
    pub fn run(&self, begins: impl Fn(&str)) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        begins("matrix products");
        outcomes.push(processor::products(self.lasts));
        begins("memory");
        outcomes.push(processor::memory(self.lasts));
        begins("a pair of ranks");
        outcomes.push(pair::check(self.lasts));
        begins("the disk");
        outcomes.extend(disk::check(&self.folder, self.disk_mib));
        begins("GPUs");
        outcomes.extend(gpu::check(&self.node, Some((&self.gpus, self.lasts))));
        outcomes
    }
}

/// Fails where a part of the check has.
pub fn judge_outcomes(outcomes: &[Outcome]) -> Result<(), CheckFailed> {
    let failed = outcomes.iter().filter(|outcome| outcome.verdict == Some(CheckVerdict::Fail));
    let names: Vec<&str> = failed.map(|outcome| outcome.name.as_str()).collect();
    match names.is_empty() {
        true => Ok(()),
        false => Err(CheckFailed { count: names.len(), names: names.join(", ") }),
    }
}

/// A verdict on rates over time: the last third against the first.
fn steadiness(rates: &[f64]) -> (CheckVerdict, String) {
    const SLOWER: f64 = 0.7;
    let third = rates.len() / 3;
    if third == 0 {
        return (CheckVerdict::Pass, "too short to see whether it slows down".to_owned());
    }
    let median = |rates: &[f64]| {
        let mut sorted = rates.to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted[sorted.len() / 2]
    };
    let (first, last) = (median(&rates[..third]), median(&rates[rates.len() - third..]));
    match last < SLOWER * first {
        true => {
            (CheckVerdict::Warn, format!("slowed down to {:.0} % of its first rate", 100.0 * last / first))
        }
        false => (CheckVerdict::Pass, "steady".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_slows_down_is_told_from_one_that_does_not() {
        assert_eq!(steadiness(&[10.0, 10.0, 9.0, 9.5, 10.0, 9.9]).0, CheckVerdict::Pass);
        assert_eq!(steadiness(&[10.0, 10.0, 8.0, 7.0, 6.0, 6.0]).0, CheckVerdict::Warn);
        assert_eq!(steadiness(&[1.0]).0, CheckVerdict::Pass);
    }
}
