//! GPUs: what their counters and the rules say after a few readings.

use std::thread;
use std::time::Duration;

use bedplate_exporter::{Exporter, ExporterOptions};
use bedplate_finding::Severity;

use super::Outcome;
use crate::CheckVerdict;

const READINGS: u32 = 3;
const INTERVAL: Duration = Duration::from_millis(300);

pub(super) fn check(node: &str) -> Vec<Outcome> {
    let mut options = ExporterOptions::new(node);
    options.interval = INTERVAL;
    let outcome = |verdict, remark: String| Outcome { name: "GPUs".to_owned(), verdict, rate: None, remark };
    let exporter = match Exporter::start(options) {
        Ok(exporter) => exporter,
        Err(error) => return vec![outcome(Some(CheckVerdict::Fail), error.to_string())],
    };
    thread::sleep(INTERVAL * READINGS);
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
    outcomes
}
