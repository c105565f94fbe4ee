//! Errors of the serving side: scores of latency and throughput over all rows and by kind of row.

use std::collections::BTreeMap;

use bedplate_perf::serving::ServingConstants;
use serde_json::{Value, json};

use super::{LogErrors, ServingCase, ServingCases, ServingSkipped};
use crate::Score;

/// The three figures of serving, scored.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Scores {
    /// Time to first token.
    pub first_token: Score,
    pub inter_token: Score,
    /// Output tokens per second and GPU.
    pub throughput: Score,
}

impl Scores {
    pub(super) fn of<'a>(errors: impl Iterator<Item = &'a LogErrors> + Clone) -> Self {
        let score = |value: fn(&LogErrors) -> f64| {
            Score::of(&errors.clone().map(|error| value(error).exp() - 1.0).collect::<Vec<_>>())
        };
        Self {
            first_token: score(|error| error.first_token),
            inter_token: score(|error| error.inter_token),
            throughput: score(|error| error.throughput),
        }
    }

    /// The three figures under the names that users know them by.
    pub fn json(&self) -> Value {
        let score = |score: &Score| {
            json!({
                "rows_used": score.rows,
                "median_abs_error": score.median_abs_error,
                "p90_abs_error": score.p90_abs_error,
                "bias": score.bias,
            })
        };
        json!({
            "ttft": score(&self.first_token),
            "itl": score(&self.inter_token),
            "throughput": score(&self.throughput),
        })
    }
}

/// The result for one row.
#[derive(Debug, Clone, PartialEq)]
pub struct ServingOutcome {
    pub id: String,
    pub model: String,
    pub accelerator: String,
    pub engine: String,
    pub is_suspicious: bool,
    pub errors: LogErrors,
}

/// The result of `plan validate --kind serving`.
#[derive(Debug, Clone, PartialEq)]
pub struct ServingReport {
    pub outcomes: Vec<ServingOutcome>,
    pub rows_skipped: Vec<ServingSkipped>,
    /// Suspicious rows, with the reason.
    pub rows_suspicious: Vec<ServingSkipped>,
    /// Aggregated engines, without suspicious rows.
    pub total: Scores,
    /// The same with them.
    pub with_suspicious: Scores,
    /// The same without rows whose layout was repaired.
    pub without_repaired: Scores,
    /// Pools of prompt and decode workers.
    pub disaggregated: Scores,
    /// Trusted rows of aggregated engines by kind: `engine`, `gpu`, `model`, `weights`, `layout`.
    pub by: BTreeMap<&'static str, BTreeMap<String, Scores>>,
}

/// A report in which each row is predicted by its own constants, such as those fitted without it.
pub fn serving_report<'a>(
    cases: &ServingCases,
    constants: impl Fn(&ServingCase) -> &'a ServingConstants,
) -> ServingReport {
    let scored: Vec<(&ServingCase, LogErrors)> =
        cases.used.iter().map(|case| (case, case.log_errors(constants(case)))).collect();
    let scores = |keeps: &dyn Fn(&ServingCase) -> bool| {
        Scores::of(scored.iter().filter(|(case, _)| keeps(case)).map(|(_, errors)| errors))
    };
    let is_one = |case: &ServingCase| case.pools.is_none();
    let is_believed = |case: &ServingCase| case.suspicion.is_none();
    let suspicious = cases
        .used
        .iter()
        .filter_map(|case| Some(ServingSkipped { id: case.id.clone(), reason: case.suspicion.clone()? }));
    let kinds = KINDS.map(|(kind, name)| {
        let mut groups: BTreeMap<String, Vec<&LogErrors>> = BTreeMap::new();
        for (case, errors) in scored.iter().filter(|(case, _)| is_one(case) && is_believed(case)) {
            groups.entry(name(case)).or_default().push(errors);
        }
        (kind, groups.into_iter().map(|(name, errors)| (name, Scores::of(errors.into_iter()))).collect())
    });
    ServingReport {
        outcomes: scored.iter().map(|(case, errors)| outcome(case, errors)).collect(),
        rows_skipped: cases.skipped.clone(),
        rows_suspicious: suspicious.collect(),
        total: scores(&|case| is_one(case) && is_believed(case)),
        with_suspicious: scores(&|case| is_one(case)),
        without_repaired: scores(&|case| is_one(case) && is_believed(case) && !case.is_repaired),
        disaggregated: scores(&|case| !is_one(case)),
        by: BTreeMap::from(kinds),
    }
}

fn outcome(case: &ServingCase, errors: &LogErrors) -> ServingOutcome {
    ServingOutcome {
        id: case.id.clone(),
        model: case.model.clone(),
        accelerator: case.accelerator.clone(),
        engine: case.engine.clone(),
        is_suspicious: case.suspicion.is_some(),
        errors: *errors,
    }
}

type Name = fn(&ServingCase) -> String;

const KINDS: [(&str, Name); 5] = [
    ("engine", |case| case.deployment.engine.name().to_owned()),
    ("gpu", |case| case.accelerator.clone()),
    ("model", |case| case.group()),
    ("weights", |case| {
        let mixture = if case.deployment.model.transformer.is_mixture() { "mixture" } else { "dense" };
        format!("{mixture} {}", case.deployment.weights.experts)
    }),
    ("layout", |case| {
        let parallel = case.deployment.parallel;
        let attention = if parallel.attention_data > 1 { "attention data ranks" } else { "tensor" };
        let experts = if parallel.expert > 1 { ", expert parallel" } else { "" };
        let drafts = if case.drafts > 0 { ", speculative" } else { "" };
        format!("{attention}{experts}{drafts}")
    }),
];
