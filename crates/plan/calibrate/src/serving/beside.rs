//! Our errors beside those of another program, on the rows that both predict.
//!
//! A program that was not fitted to the rows is to be compared with predictions by constants that have not seen the row's source
//! ([`Beside::held_out`]); those of all rows ([`Beside::fitted`]) are shown next to them. How the other program is asked is its caller's concern.

use std::collections::BTreeMap;

use bedplate_perf::serving::ServingConstants;

use super::{HeldOut, LogErrors, Scores, ServingCase};

/// The mean latencies, in seconds, that another program predicts for a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PeerLatency {
    pub first_token: f64,
    pub inter_token: f64,
}

/// Scores on the same rows.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Beside {
    /// Rows that we predict; those scored are the ones that the peer predicts too.
    pub rows: usize,
    /// Ours, by constants fitted without the row's source.
    pub held_out: Scores,
    /// Ours, by constants fitted to all rows.
    pub fitted: Scores,
    pub peer: Scores,
}

/// A comparison over all trusted rows and by kind of row.
#[derive(Debug, Clone, PartialEq)]
pub struct BesideReport {
    /// Rows that were asked, suspicious ones included.
    pub asked: usize,
    /// Of these, the rows that the peer answers.
    pub answered: usize,
    /// Trusted rows by kind: `rows`, `gpu`, `kind`, `model`. Pools of prompt and decode workers count in `rows` and `gpu` only.
    pub by: BTreeMap<&'static str, BTreeMap<String, Beside>>,
}

/// Compares the answers of a peer, one for each case; `None` where it cannot tell.
pub fn beside(
    cases: &[ServingCase],
    answers: &[Option<PeerLatency>],
    usual: &ServingConstants,
    held_out: &HeldOut,
) -> BesideReport {
    assert_eq!(cases.len(), answers.len(), "one answer per case");
    let trusted = cases.iter().zip(answers).filter(|(case, _)| case.suspicion.is_none());
    let rows: Vec<(&ServingCase, Option<Errors>)> = trusted
        .map(|(case, answer)| (case, answer.map(|answer| Errors::of(case, answer, usual, held_out))))
        .collect();
    let kinds = KINDS.map(|(kind, name)| {
        let mut groups: BTreeMap<String, Vec<&Option<Errors>>> = BTreeMap::new();
        for (case, errors) in &rows {
            if let Some(name) = name(case) {
                groups.entry(name).or_default().push(errors);
            }
        }
        (kind, groups.into_iter().map(|(name, rows)| (name, Beside::of(&rows))).collect())
    });
    BesideReport { asked: cases.len(), answered: answers.iter().flatten().count(), by: BTreeMap::from(kinds) }
}

/// The errors of three predictions of one row.
struct Errors {
    held_out: LogErrors,
    fitted: LogErrors,
    peer: LogErrors,
}

impl Errors {
    fn of(case: &ServingCase, answer: PeerLatency, usual: &ServingConstants, held_out: &HeldOut) -> Self {
        Self {
            held_out: case.log_errors(held_out.constants(case, usual)),
            fitted: case.log_errors(usual),
            peer: case.log_errors_of(answer.first_token, answer.inter_token),
        }
    }
}

impl Beside {
    fn of(rows: &[&Option<Errors>]) -> Self {
        let both = rows.iter().filter_map(|row| row.as_ref());
        Self {
            rows: rows.len(),
            held_out: Scores::of(both.clone().map(|errors| &errors.held_out)),
            fitted: Scores::of(both.clone().map(|errors| &errors.fitted)),
            peer: Scores::of(both.map(|errors| &errors.peer)),
        }
    }
}

/// The group of a row, or none where the kind leaves it out.
type Name = fn(&ServingCase) -> Option<String>;

const KINDS: [(&str, Name); 4] = [
    ("rows", |case| {
        Some(if case.pools.is_some() { "prompt and decode pools" } else { "one engine" }.to_owned())
    }),
    ("gpu", |case| {
        let pools = if case.pools.is_some() { ", pools" } else { "" };
        Some(format!("{}{pools}", case.accelerator))
    }),
    ("kind", |case| {
        let shape = if case.deployment.model.transformer.is_mixture() { "mixture" } else { "dense" };
        let engine = case.deployment.engine.name();
        case.pools.is_none().then(|| format!("{shape}, {engine}"))
    }),
    ("model", |case| case.pools.is_none().then(|| case.group())),
];
