//! Two runs side by side: where the time of the slower one goes, and what differs between them.

use std::collections::{BTreeMap, BTreeSet};

use bedplate_breakdown::{Breakdown, Measured, Part};
use serde::Serialize;

/// What is known of a run.
#[derive(Debug, Clone, Default)]
pub struct RunFacts {
    pub name: String,
    /// Median seconds of a step.
    pub step_s: Option<f64>,
    pub parts: Option<Breakdown<Measured>>,
    /// Steps, for how sure a difference is.
    pub steps: u64,
    pub settings: BTreeMap<String, String>,
    pub nodes: BTreeSet<String>,
    pub losses: BTreeMap<u64, f64>,
}

/// What differs between two runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunDifference {
    /// A step of the second over one of the first.
    pub ratio: Option<f64>,
    /// Where the difference lies, the largest first.
    pub parts: Vec<PartDifference>,
    /// Settings that differ, the ones that concern speed first.
    pub settings: Vec<SettingDifference>,
    pub only_first_nodes: Vec<String>,
    pub only_second_nodes: Vec<String>,
    pub loss: Option<LossDifference>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PartDifference {
    pub part: &'static str,
    pub first_s: f64,
    pub second_s: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SettingDifference {
    pub name: String,
    pub first: Option<String>,
    pub second: Option<String>,
    /// Whether it is known to change the time of a step.
    pub concerns_speed: bool,
}

/// Losses at steps that both runs have.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LossDifference {
    pub steps: usize,
    /// The last step that both have.
    pub last_step: u64,
    pub first: f64,
    pub second: f64,
    /// From which step on they lie further apart than before by much.
    pub apart_since: Option<u64>,
}

/// Words of settings that change how long a step takes.
const OF_SPEED: [&str; 34] = [
    "batch",
    "seq",
    "length",
    "layers",
    "hidden",
    "ffn",
    "intermediate",
    "heads",
    "expert",
    "vocab",
    "parallel",
    "tensor",
    "pipeline",
    "recompute",
    "checkpointing",
    "overlap",
    "precision",
    "dtype",
    "fp8",
    "bf16",
    "fp16",
    "attention",
    "flash",
    "compile",
    "fused",
    "workers",
    "prefetch",
    "offload",
    "shard",
    "zero",
    "version of",
    "nccl",
    "world",
    "nproc",
];

/// Compares the second run with the first.
pub fn compare(first: &RunFacts, second: &RunFacts) -> RunDifference {
    RunDifference {
        ratio: first.step_s.zip(second.step_s).map(|(first, second)| second / first),
        parts: parts(first, second),
        settings: settings(first, second),
        only_first_nodes: first.nodes.difference(&second.nodes).cloned().collect(),
        only_second_nodes: second.nodes.difference(&first.nodes).cloned().collect(),
        loss: losses(first, second),
    }
}

fn parts(first: &RunFacts, second: &RunFacts) -> Vec<PartDifference> {
    let Some((one, other)) = first.parts.zip(second.parts) else { return Vec::new() };
    let seconds = |parts: &Breakdown<Measured>, part: Part| parts[part].exposed.get();
    let mut all: Vec<PartDifference> = Part::ALL
        .into_iter()
        .map(|part| PartDifference {
            part: part.name(),
            first_s: seconds(&one, part),
            second_s: seconds(&other, part),
        })
        .filter(|part| part.first_s > 0.0 || part.second_s > 0.0)
        .collect();
    let lost = |part: &PartDifference| (part.second_s - part.first_s).abs();
    all.sort_by(|one, other| lost(other).total_cmp(&lost(one)));
    all
}

fn settings(first: &RunFacts, second: &RunFacts) -> Vec<SettingDifference> {
    let names: BTreeSet<&String> = first.settings.keys().chain(second.settings.keys()).collect();
    let mut all: Vec<SettingDifference> = names
        .into_iter()
        .filter(|name| first.settings.get(*name) != second.settings.get(*name))
        .map(|name| SettingDifference {
            name: name.clone(),
            first: first.settings.get(name).cloned(),
            second: second.settings.get(name).cloned(),
            concerns_speed: OF_SPEED.iter().any(|word| name.to_ascii_lowercase().contains(word)),
        })
        .collect();
    all.sort_by_key(|each| (!each.concerns_speed, each.first.is_none() || each.second.is_none()));
    all
}

fn losses(first: &RunFacts, second: &RunFacts) -> Option<LossDifference> {
    /// Steps whose distance is what is usual, and how many times that is far.
    const USUAL: usize = 20;
    const FAR: f64 = 4.0;
    let both: Vec<(u64, f64, f64)> = first
        .losses
        .iter()
        .filter_map(|(step, loss)| Some((*step, *loss, *second.losses.get(step)?)))
        .collect();
    let (last_step, one, other) = *both.last()?;
    let distance = |(_, one, other): &(u64, f64, f64)| (one - other).abs();
    let usual = both.iter().take(USUAL).map(distance).fold(0.01 * both[0].1.abs(), f64::max);
    let is_far = |each: &(u64, f64, f64)| !distance(each).is_finite() || distance(each) > FAR * usual;
    let apart = both.iter().rev().take_while(|each| is_far(each)).last().map(|(step, _, _)| *step);
    Some(LossDifference { steps: both.len(), last_step, first: one, second: other, apart_since: apart })
}

#[cfg(test)]
mod tests {
    use bedplate_breakdown::Span;
    use bedplate_units::Seconds;

    use super::*;

    fn run(comm: f64, batch: &str, node: &str, drift_from: u64) -> RunFacts {
        let span = |seconds: f64| Span::exposed(Seconds::new(seconds));
        let parts = Breakdown::default().with(Part::Compute, span(0.8)).with(Part::ScaleOut, span(comm));
        let loss = |step: u64| 3.0 - 0.001 * step as f64 + if step >= drift_from { 2.0 } else { 0.0 };
        RunFacts {
            step_s: Some(0.8 + comm),
            parts: Some(parts),
            steps: 100,
            settings: [("micro_batch_size", batch), ("seed", batch), ("lr", "1e-4")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            nodes: [node.to_owned(), "n2".to_owned()].into(),
            losses: (0..100).map(|step| (step, loss(step))).collect(),
            ..RunFacts::default()
        }
    }

    #[test]
    fn a_difference_has_its_part_its_settings_and_its_nodes() {
        let found = compare(&run(0.2, "4", "n1", 1000), &run(0.6, "8", "n3", 60));
        assert!(found.ratio.is_some_and(|ratio| (ratio - 1.4).abs() < 1e-9));
        assert_eq!(found.parts[0].part, "scale_out");
        assert_eq!((found.settings[0].name.as_str(), found.settings.len()), ("micro_batch_size", 2));
        assert_eq!(
            (found.only_first_nodes, found.only_second_nodes),
            (vec!["n1".to_owned()], vec!["n3".to_owned()])
        );
        assert_eq!(found.loss.and_then(|loss| loss.apart_since), Some(60));
    }

    #[test]
    fn runs_that_are_equal_do_not_differ() {
        let found = compare(&run(0.2, "4", "n1", 1000), &run(0.2, "4", "n1", 1000));
        assert_eq!((found.ratio, found.settings.len(), found.only_first_nodes.len()), (Some(1.0), 0, 0));
        assert_eq!(found.loss.and_then(|loss| loss.apart_since), None);
    }
}
