//! Regret: how far published layouts are from what a search would propose for the same job.
//!
//! Rows of one model, machine, batch and software are one *setup*, whose fastest measured layout was tuned by people who had the
//! machine. If the search proposes something much faster, either the model is wrong or they missed a feature that
//! their software has and that a measured row covers; the table says which.

use std::collections::BTreeMap;

use bedplate_calibrate::Case;
use bedplate_layout::{Layout, Recompute, Sharding};
use bedplate_perf::{Constants, Stack};

use crate::{Axes, LayoutCandidate, SearchError, Setup, Space};

/// One setup: what was published and what is proposed.
#[derive(Debug, Clone, PartialEq)]
pub struct Regret {
    /// The row whose layout was fastest.
    pub id: String,
    pub model: String,
    pub accelerator: String,
    pub gpus: u32,
    pub stack: Stack,
    pub published: Layout,
    pub proposed: LayoutCandidate,
    /// Predicted time of the published layout over that of the proposed one.
    pub ratio: f64,
    /// A feature of the proposed layout that the published one lacks, although its software has it and another row used it.
    pub excuse: Option<&'static str>,
}

/// Up to this ratio a published layout counts as found.
const ENOUGH: f64 = 1.1;

impl Regret {
    pub fn is_within(&self) -> bool {
        self.ratio <= ENOUGH
    }
}

/// The regret of every setup, each by a search of its own.
pub fn regrets(cases: &[Case], constants: &Constants) -> Result<Vec<Regret>, SearchError> {
    let mut tuned: BTreeMap<String, &Case> = BTreeMap::new();
    for case in cases.iter().filter(|case| case.is_recipe) {
        let best = tuned.entry(key(case)).or_insert(case);
        if case.tokens_per_second > best.tokens_per_second {
            *best = case;
        }
    }
    let mut found = Vec::new();
    for case in tuned.into_values() {
        found.extend(regret(case, cases, constants)?);
    }
    Ok(found)
}

/// What rows of one setup share.
fn key(case: &Case) -> String {
    let (model, workload) = (&case.model, &case.workload);
    format!(
        "{} {} {} | {} {} | {} {} | {:?} {:?} {:?} {:?} {:?}",
        model.name,
        model.hidden,
        model.layer_count(),
        case.accelerator,
        case.hardware.gpus,
        workload.sequence,
        workload.global_batch,
        workload.stack,
        workload.task,
        workload.dispatcher,
        workload.expert_overlap,
        case.layout.precision,
    )
}

fn regret(case: &Case, cases: &[Case], constants: &Constants) -> Result<Option<Regret>, SearchError> {
    let setup = Setup { model: &case.model, hardware: case.hardware, workload: case.workload, constants };
    let axes = Axes { precision: vec![case.layout.precision], ..Axes::practical(case.hardware.domain) };
    let published = case.predict(constants)?;
    let space = Space::new(&setup, &axes)?;
    let Some(proposed) = space.price(space.whole(), 1).best().first().copied() else { return Ok(None) };
    let ratio = published.seconds() / proposed.seconds;
    let excuse = (ratio > ENOUGH).then(|| excuse(case, &proposed.layout, cases)).flatten();
    Ok(Some(Regret {
        id: case.id.clone(),
        model: case.model.name.clone(),
        accelerator: case.accelerator.clone(),
        gpus: case.hardware.gpus,
        stack: case.workload.stack,
        published: case.layout,
        proposed,
        ratio,
        excuse,
    }))
}

type Has = fn(&Layout) -> bool;

/// What a layout can have or lack.
const FEATURES: [(&str, Has); 10] = [
    ("tensor parallelism", |layout| layout.tensor > 1),
    ("sequence parallelism", |layout| layout.is_sequence_parallel),
    ("context parallelism", |layout| layout.context > 1),
    ("pipeline parallelism", |layout| layout.pipeline > 1),
    ("interleaved stages", |layout| layout.virtual_stages > 1),
    ("expert parallelism", |layout| layout.expert > 1),
    ("sharded weights", |layout| matches!(layout.sharding, Sharding::Weights | Sharding::WeightsWithin(_))),
    ("a sharded optimizer", |layout| layout.sharding == Sharding::Optimizer),
    ("selective recomputation", |layout| layout.recompute == Recompute::Selective),
    ("no recomputation", |layout| layout.recompute == Recompute::None),
];

/// The first feature that only the proposed layout has and that another row of the same software covers.
fn excuse(case: &Case, proposed: &Layout, cases: &[Case]) -> Option<&'static str> {
    let is_covered = |has: Has| {
        let same = |other: &&Case| other.workload.stack == case.workload.stack && has(&other.layout);
        cases.iter().any(|other| same(&other))
    };
    let only_proposed = |has: Has| has(proposed) && !has(&case.layout);
    FEATURES.iter().find(|(_, has)| only_proposed(*has) && is_covered(*has)).map(|(name, _)| *name)
}
