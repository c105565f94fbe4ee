//! Scores of rows as strangers: predicted by constants and judged by intervals that have not seen their source.

use std::collections::BTreeMap;

use bedplate_perf::serving::ServingConstants;

use super::interval::{Measure, ServingErrors};
use super::{HeldOut, LogErrors, Scores, ServingCase, ServingCases};

/// The result for rows held out.
#[derive(Debug, Clone, PartialEq)]
pub struct HeldOutReport {
    /// One engine.
    pub total: Scores,
    /// Pools of prompt and decode workers.
    pub disaggregated: Scores,
    /// How many rows 80 % intervals hold, by kind: `all`, `rows`, `likeness`, `gpu`, `engine`.
    pub coverage: BTreeMap<&'static str, BTreeMap<String, Coverage>>,
}

/// The share of rows that their 80 % intervals hold.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Coverage {
    pub rows: usize,
    pub first_token: f64,
    pub inter_token: f64,
    pub throughput: f64,
}

impl Coverage {
    fn of<'a>(rows: impl Iterator<Item = &'a [bool; 3]>) -> Self {
        let (mut count, mut held) = (0, [0usize; 3]);
        for row in rows {
            count += 1;
            for (held, is_held) in held.iter_mut().zip(row) {
                *held += usize::from(*is_held);
            }
        }
        let share = |measure: Measure| held[measure as usize] as f64 / count.max(1) as f64;
        Self {
            rows: count,
            first_token: share(Measure::FirstToken),
            inter_token: share(Measure::InterToken),
            throughput: share(Measure::Throughput),
        }
    }
}

/// The errors of trusted rows by constants that have not seen their source; `usual` are for sources of which no fit knows.
pub fn held_out_errors<'a>(
    cases: &'a ServingCases,
    held_out: &HeldOut,
    usual: &ServingConstants,
) -> Vec<(&'a ServingCase, LogErrors)> {
    let trusted = cases.used.iter().filter(|case| case.suspicion.is_none());
    trusted.map(|case| (case, case.log_errors(held_out.constants(case, usual)))).collect()
}

/// Scores rows with such errors, each by the errors of all other sources.
pub fn held_out_report(rows: &[(&ServingCase, LogErrors)], errors: &ServingErrors) -> HeldOutReport {
    let mut others: BTreeMap<String, ServingErrors> = BTreeMap::new();
    for (case, _) in rows {
        others.entry(case.source()).or_insert_with(|| errors.without(&case.source()));
    }
    let is_held = |(case, error): &(&ServingCase, LogErrors)| {
        let spread = others[&case.source()].spread(case.likeness()?)?;
        Some(Measure::ALL.map(|(_, measure)| {
            let interval = spread.interval(measure);
            (interval.low..=interval.high).contains(&measure.of(error).exp())
        }))
    };
    let held: Vec<Option<[bool; 3]>> = rows.iter().map(is_held).collect();
    let kinds = KINDS.map(|(kind, name)| {
        let mut groups: BTreeMap<String, Vec<&[bool; 3]>> = BTreeMap::new();
        for ((case, _), held) in rows.iter().zip(&held) {
            if let Some(held) = held {
                groups.entry(name(case)).or_default().push(held);
            }
        }
        let groups = groups.into_iter().map(|(name, held)| (name, Coverage::of(held.into_iter())));
        (kind, groups.collect())
    });
    let scores = |is_pooled: bool| {
        let chosen = rows.iter().filter(move |(case, _)| case.pools.is_some() == is_pooled);
        Scores::of(chosen.map(|(_, errors)| errors))
    };
    HeldOutReport { total: scores(false), disaggregated: scores(true), coverage: BTreeMap::from(kinds) }
}

type Name = fn(&ServingCase) -> String;

const KINDS: [(&str, Name); 5] = [
    ("all", |_| "all rows".to_owned()),
    ("rows", |case| if case.pools.is_some() { "prompt and decode pools" } else { "one engine" }.to_owned()),
    ("likeness", |case| case.likeness().map(|like| like.name()).unwrap_or_default()),
    ("gpu", |case| case.accelerator.clone()),
    ("engine", |case| case.deployment.engine.name().to_owned()),
];
