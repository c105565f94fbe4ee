//! aiconfigurator asked about every row that we predict.

use std::collections::BTreeMap;

use bedplate_calibrate::serving::{BesideReport, HeldOut, PeerLatency, ServingCase, ServingCases, beside};
use bedplate_perf::serving::ServingConstants;
use bedplate_terminal::Console;
use bedplate_units::grouped;

use super::question::{About, Answer, Outcome, question};
use crate::cpu_clock::CpuClock;
use crate::peer::{Companion, PeerFailed, Script};

/// Both on the same rows.
pub(super) struct Compared {
    pub(super) about: About,
    pub(super) report: BesideReport,
    /// Rows of the file that cannot be asked; `plan validate --kind serving` says why.
    pub(super) skipped: usize,
    /// Rows that the peer cannot answer, by reason.
    pub(super) refused: BTreeMap<String, usize>,
    /// Answers for which the peer filled in missing kernels.
    pub(super) filled: usize,
    /// Answers with a warning that users wait for room.
    pub(super) queued: usize,
    /// Systems of the peer's database on which no row was measured.
    pub(super) unmeasured: Vec<String>,
    pub(super) time: Time,
}

/// CPU-seconds per prediction.
pub(super) struct Time {
    pub(super) ours: f64,
    /// Once the tables are read.
    pub(super) peer: f64,
    /// With starting it and reading tables, over all rows.
    pub(super) peer_from_start: f64,
}

/// Asks the peer about all rows, and compares.
pub(super) fn compare(cases: &ServingCases, python: &str, console: &Console) -> Result<Compared, PeerFailed> {
    let (constants, held_out) = (ServingConstants::builtin(), HeldOut::builtin());
    let mut companion = Companion::start(&Script {
        python,
        text: include_str!("aiconfigurator.py"),
        arguments: Vec::new(),
        directory: ".",
    })?;
    let line = companion.ask_text("{}")?;
    let about = About::read(&line).ok_or_else(|| PeerFailed::not_figures(&line))?;
    let rows = grouped(cases.used.len() as u64);
    console.say(&format!("asking aiconfigurator {} about {rows} rows", about.version));
    let mut answers = Vec::new();
    for case in &cases.used {
        let asked = question(case, held_out.constants(case, &constants)).to_string();
        let line = companion.ask_text(&asked)?;
        answers.push(Answer::read(&line, &case.id).ok_or_else(|| PeerFailed::not_figures(&line))?);
    }
    let latencies: Vec<Option<PeerLatency>> = answers.iter().map(Answer::latency).collect();
    let count = |is: fn(&Outcome) -> bool| answers.iter().filter(|answer| is(&answer.outcome)).count();
    Ok(Compared {
        report: beside(&cases.used, &latencies, &constants, &held_out),
        skipped: cases.skipped.len(),
        refused: refusals(&answers),
        filled: count(|outcome| matches!(outcome, Outcome::Predicted { is_filled: true, .. })),
        queued: count(|outcome| matches!(outcome, Outcome::Predicted { is_queued: true, .. })),
        unmeasured: unmeasured(&about, &cases.used),
        time: Time {
            ours: our_seconds(&cases.used, &constants),
            peer: mean(answers.iter().map(|answer| answer.seconds)),
            peer_from_start: mean(answers.iter().map(|answer| answer.first_seconds))
                + about.import_seconds / answers.len() as f64,
        },
        about,
    })
}

impl Answer {
    fn latency(&self) -> Option<PeerLatency> {
        match &self.outcome {
            Outcome::Predicted { latency, .. } => Some(*latency),
            Outcome::Refused(_) => None,
        }
    }
}

fn refusals(answers: &[Answer]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for answer in answers {
        if let Outcome::Refused(reason) = &answer.outcome {
            *counts.entry(reason.clone()).or_default() += 1;
        }
    }
    counts
}

/// The peer's names of systems begin with those of chips: `h200_sxm`, `gb200`.
fn unmeasured(about: &About, cases: &[ServingCase]) -> Vec<String> {
    let is_measured = |system: &str| {
        let chip = system.split('_').next().unwrap_or_default();
        cases.iter().any(|case| case.accelerator.eq_ignore_ascii_case(chip))
    };
    about.systems.iter().filter(|system| !is_measured(system)).cloned().collect()
}

/// CPU-seconds of a prediction of ours.
fn our_seconds(cases: &[ServingCase], constants: &ServingConstants) -> f64 {
    let clock = CpuClock::start();
    let predicted = cases.iter().filter_map(|case| case.predict(constants)).count();
    clock.elapsed_ms() / 1e3 / predicted.max(1) as f64
}

fn mean(values: impl Iterator<Item = f64> + Clone) -> f64 {
    values.clone().sum::<f64>() / values.count().max(1) as f64
}
