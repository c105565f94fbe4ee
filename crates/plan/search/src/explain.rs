//! Why this layout, why not that one, and what would change it.

use std::cmp::Reverse;

use bedplate_breakdown::Part;
use bedplate_layout::{Layout, LayoutRefusal};
use bedplate_perf::{Fit, PredictedStep};
use bedplate_units::{Bytes, Seconds};

use crate::remedy::nearest_in_space;
use crate::{
    Counterfactual, Doubt, LayoutCandidate, Remedy, SearchAnswer, SearchError, Setup, Space, WhatIf, doubts,
    remedies, what_if,
};

/// The full explanation of one layout.
#[derive(Debug, Clone, PartialEq)]
pub struct LayoutExplanation {
    pub layout: Layout,
    pub verdict: LayoutVerdict,
    /// The best layout of the space, which this one is compared with.
    pub best: LayoutCandidate,
    /// The same layout in setups that differ in one thing.
    pub counterfactuals: Vec<Counterfactual>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum LayoutVerdict {
    /// Some rule forbids it; the nearest layout that works differs in the fewest parts.
    Refused { refusals: Vec<LayoutRefusal>, nearest: Option<Remedy> },
    /// It is legal but does not fit.
    DoesNotFit {
        step: Box<PredictedStep>,
        over: Bytes,
        /// The part of memory that takes most.
        largest: (&'static str, Bytes),
        /// The smallest changes that make it fit, best first.
        remedies: Vec<Remedy>,
    },
    /// It runs.
    Runs {
        step: Box<PredictedStep>,
        /// From 1, among all layouts that fit.
        rank: u64,
        of: u64,
        spare: Bytes,
        is_tight: bool,
        /// The part that takes most time: what limits it.
        limit: Option<Part>,
        /// Time over the best layout's time.
        ratio: f64,
        /// By how much, and why, it must win before it is preferred.
        doubts: Vec<Doubt>,
        /// The differences from the best layout, largest loss first. A gain is negative.
        losses: Vec<Loss>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Loss {
    pub part: Part,
    /// Exposed seconds minus the best layout's.
    pub seconds: Seconds,
}

/// Explains any layout, legal or not, against the answer of a search.
///
/// `space` and `answer` belong to `setup`. Takes one more pass over the space.
pub fn explain(
    setup: &Setup<'_>,
    space: &Space,
    answer: &SearchAnswer,
    layout: &Layout,
    questions: &[WhatIf],
) -> Result<LayoutExplanation, SearchError> {
    let refusals = layout.refusals(setup.model, Some(setup.gpus().into()), Some(setup.batch()));
    let verdict = if refusals.is_empty() {
        let step = setup.predict(layout)?;
        match step.fit {
            Fit::DoesNotFit { over } => too_large(setup, layout, step, over),
            Fit::Fits { spare } => ranked(setup, space, answer, layout, step, spare, false)?,
            Fit::Tight { spare } => ranked(setup, space, answer, layout, step, spare, true)?,
        }
    } else {
        LayoutVerdict::Refused { refusals, nearest: nearest_in_space(setup, space, layout) }
    };
    let is_refused = matches!(verdict, LayoutVerdict::Refused { .. });
    let asked = questions.iter().filter(|_| !is_refused);
    let counterfactuals = asked.map(|what| what_if(setup, layout, what)).collect::<Result<_, _>>()?;
    Ok(LayoutExplanation { layout: *layout, verdict, best: answer.best[0], counterfactuals })
}

fn too_large(setup: &Setup<'_>, layout: &Layout, step: PredictedStep, over: Bytes) -> LayoutVerdict {
    let parts = step.memory.parts();
    let largest = parts.into_iter().max_by_key(|(_, bytes)| *bytes).expect("memory has parts");
    LayoutVerdict::DoesNotFit { step: Box::new(step), over, largest, remedies: remedies(setup, layout, 5) }
}

fn ranked(
    setup: &Setup<'_>,
    space: &Space,
    answer: &SearchAnswer,
    layout: &Layout,
    step: PredictedStep,
    spare: Bytes,
    is_tight: bool,
) -> Result<LayoutVerdict, SearchError> {
    let candidate = setup.candidate(layout, &step);
    let best = setup.predict(&answer.best[0].layout)?;
    Ok(LayoutVerdict::Runs {
        rank: space.count_better(space.whole(), &candidate) + 1,
        of: answer.counts.fits + answer.counts.tight,
        spare,
        is_tight,
        limit: step.time.limit(),
        ratio: step.seconds() / best.seconds(),
        doubts: doubts(layout, step.fit, &setup.question()),
        losses: losses(&step, &best),
        step: Box::new(step),
    })
}

fn losses(step: &PredictedStep, best: &PredictedStep) -> Vec<Loss> {
    let differences =
        step.time.parts().map(|(part, span)| Loss { part, seconds: span.exposed - best.time[part].exposed });
    let mut losses: Vec<Loss> = differences.filter(|loss| !loss.seconds.is_zero()).collect();
    losses.sort_by_key(|loss| (Reverse(loss.seconds), loss.part));
    losses
}
