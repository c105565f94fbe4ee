//! GPUs: what their counters and the rules say after a few readings, and under load.

use std::thread;
use std::time::Duration;

use bedplate_exporter::{Exporter, ExporterOptions};
use bedplate_finding::Severity;

use super::Outcome;
use super::burn_in::{GpuBurnIn, burn_in};
use crate::CheckVerdict;

const READINGS: u32 = 3;
const INTERVAL: Duration = Duration::from_millis(300);

/// Works the GPUs only where it is said how.
pub(super) fn check(node: &str, load: Option<(&GpuBurnIn, Duration)>) -> Vec<Outcome> {
    let mut options = ExporterOptions::new(node);
    options.interval = INTERVAL;
    let outcome = |verdict, remark: String| Outcome { name: "GPUs".to_owned(), verdict, rate: None, remark };
    let exporter = match Exporter::start(options) {
        Ok(exporter) => exporter,
        Err(error) => return vec![outcome(Some(CheckVerdict::Fail), error.to_string())],
    };
    thread::sleep(INTERVAL * READINGS);
    let burned = load.map_or_else(Vec::new, |(options, lasts)| burn_in(options, lasts, Some(&exporter)));
    let text = exporter.text();
    let gpus = text
        .lines()
        .find_map(|line| line.strip_prefix("bedplate_gpus_answering{")?.rsplit_once(' ')?.1.parse().ok());
    let gpus: f64 = gpus.unwrap_or(0.0);
    let mut outcomes: Vec<Outcome> = exporter
        .findings()
        .into_iter()
        .map(|open| Outcome {
            name: open.finding.rule.clone(),
            verdict: Some(match open.finding.severity {
                Severity::Critical => CheckVerdict::Fail,
                _ => CheckVerdict::Warn,
            }),
            rate: None,
            remark: format!("{}: {}", open.finding.subject, open.finding.summary),
        })
        .collect();
    match (gpus, outcomes.is_empty()) {
        (0.0, true) => outcomes.push(outcome(None, "no GPU answers NVML".to_owned())),
        (_, true) => outcomes
            .push(outcome(Some(CheckVerdict::Pass), format!("{gpus} GPUs, nothing found in their counters"))),
        _ => {}
    }
    outcomes.extend(burned);
    outcomes
}
