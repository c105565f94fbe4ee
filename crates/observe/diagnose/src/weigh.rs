//! Evidence added up: log-odds for each cause, and the probability that follows.
//!
//! Each piece speaks for one cause with a bounded weight, so no single hint decides and many repetitions of one line count
//! once. `Unknown` takes part with a fixed weight: what is weak stays unknown.

use crate::verdict::{Cause, Observation};

/// No piece of evidence weighs more.
const HEAVIEST: f64 = 4.5;
/// What has to be outweighed before a cause is named at all.
const DOUBT: f64 = 0.4;
/// A cause is named from this probability on, and when it is this many times as probable as the next.
const LEAST: f64 = 0.62;
const LEAD: f64 = 1.9;

/// The log-odds of a probability.
pub(crate) fn logit(probability: f64) -> f64 {
    let probability = probability.clamp(0.02, 0.99);
    (probability / (1.0 - probability)).ln()
}

/// Which cause it is, how probable, and the others.
pub(crate) struct Weighed {
    pub(crate) cause: Cause,
    pub(crate) confidence: f64,
    pub(crate) alternatives: Vec<(Cause, f64)>,
}

pub(crate) fn weigh(evidence: &[Observation]) -> Weighed {
    let score = |cause: Cause| -> f64 {
        let for_it = evidence.iter().filter(|each| each.speaks_for == Some(cause));
        for_it.map(|each| each.weight.clamp(-HEAVIEST, HEAVIEST)).sum::<f64>().min(2.0 * HEAVIEST)
    };
    let spoken = |cause: &Cause| evidence.iter().any(|each| each.speaks_for == Some(*cause));
    let mut odds: Vec<(Cause, f64)> =
        Cause::KNOWN.into_iter().filter(spoken).map(|cause| (cause, score(cause).exp())).collect();
    let total: f64 = odds.iter().map(|(_, odds)| odds).sum::<f64>() + DOUBT;
    odds.sort_by(|one, other| other.1.total_cmp(&one.1));
    let mut shares: Vec<(Cause, f64)> = odds.iter().map(|(cause, odds)| (*cause, odds / total)).collect();
    let Some((cause, confidence)) = shares.first().copied() else {
        return Weighed { cause: Cause::Unknown, confidence: 0.0, alternatives: Vec::new() };
    };
    let next = shares.get(1).map_or(0.0, |(_, share)| *share);
    if confidence < LEAST || confidence < LEAD * next {
        return Weighed { cause: Cause::Unknown, confidence: 1.0 - confidence, alternatives: shares };
    }
    shares.remove(0);
    // Nothing that a log says is certain.
    Weighed { cause, confidence: confidence.min(0.98), alternatives: shares }
}
