//! The records of a run while it runs: which steps are done, and when that was seen.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use serde_json::Value;

use super::NotMeasured;

/// What a run has recorded so far. It is read as a whole each time, because a rank that becomes the first writes it anew.
pub(super) struct Records {
    path: PathBuf,
    length: u64,
    /// The newest step, and when it was first seen.
    pub(super) newest: u64,
    pub(super) seen: Instant,
    /// The steps from which the run went on in another world.
    pub(super) went_on: Vec<u64>,
    /// Ranks of the worlds that it went on in.
    pub(super) ranks: Vec<u64>,
}

impl Records {
    pub(super) fn of(path: PathBuf) -> Self {
        Self { path, length: 0, newest: 0, seen: Instant::now(), went_on: Vec::new(), ranks: Vec::new() }
    }

    /// Looks for new steps.
    pub(super) fn look(&mut self) {
        let length = fs::metadata(&self.path).map_or(0, |metadata| metadata.len());
        if length == self.length {
            return;
        }
        self.length = length;
        let lines = self.lines();
        let of = |kind: &str| -> Vec<u64> {
            let wanted = lines.iter().filter(|line| line["kind"] == kind);
            wanted.filter_map(|line| line["step"].as_u64()).collect()
        };
        self.went_on = of("ranks");
        self.ranks = lines.iter().filter_map(|line| line["ranks"].as_u64()).collect();
        let newest = of("step").into_iter().max().unwrap_or(0);
        if newest > self.newest {
            (self.newest, self.seen) = (newest, Instant::now());
        }
    }

    fn lines(&self) -> Vec<Value> {
        let text = fs::read_to_string(&self.path).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Seconds of a step, in the middle.
    pub(super) fn step_seconds(&self) -> f64 {
        let lines = self.lines();
        let seconds: Vec<f64> = lines.iter().filter_map(|line| line["seconds"].as_f64()).collect();
        super::median(&seconds)
    }

    /// An error unless every step and every sample is there exactly once. Gives the loss of each step.
    pub(super) fn check(&self, steps: u64, batch: u64) -> Result<BTreeMap<u64, f64>, NotMeasured> {
        let wrong = |what: String| NotMeasured(format!("{}: {what}", self.path.display()));
        let (mut losses, mut next) = (BTreeMap::new(), 0);
        for line in self.lines().iter().filter(|line| line["kind"] == "step") {
            let step = line["step"].as_u64().unwrap_or(0);
            if step != losses.len() as u64 + 1 {
                return Err(wrong(format!("step {step} follows step {}", losses.len())));
            }
            let (first, end) = (line["samples"][0].as_u64(), line["samples"][1].as_u64());
            if (first, end) != (Some(next), Some(next + batch)) {
                return Err(wrong(format!(
                    "step {step} used samples {first:?} to {end:?}, not from {next} on"
                )));
            }
            next += batch;
            losses.insert(step, line["loss"].as_f64().unwrap_or(f64::NAN));
        }
        match losses.len() as u64 == steps {
            true => Ok(losses),
            false => Err(wrong(format!("{} of {steps} steps are recorded", losses.len()))),
        }
    }
}
