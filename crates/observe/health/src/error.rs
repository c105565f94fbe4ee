//! What can be wrong with rules, and the pages that explain it.

use bedplate_diag::{Diagnostic, Page, Place, pages};
use bedplate_document::DocumentError;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HealthError {
    #[error(transparent)]
    Document(#[from] DocumentError),
    #[error("rule `{rule}` has {found}, and a rule watches exactly one of `metric`, `log` and `xid`")]
    Condition { rule: String, found: String, place: Place },
    #[error("rule `{rule}` says nothing about when `{metric}` is bad")]
    NoLimit { rule: String, metric: String, place: Place },
    #[error("two rules are called `{rule}`")]
    Duplicate { rule: String, place: Place },
    #[error("rule `{rule}` has nearly the name of `{known}`")]
    Alike { rule: String, known: String, place: Place },
    #[error("rule `{rule}` watches `{metric}`, which is not a metric of the exporter")]
    UnknownMetric { rule: String, metric: String, nearest: Option<String>, place: Place },
}

pages! { pub PAGES "health":
    CONDITION "condition" User
        "A rule watches one thing: the value of a metric (`metric`), lines of the kernel log (`log`) or XID codes (`xid`). This one names none of them, or several."
        "keep one of the three keys; write a second rule for a second condition"
    NO_LIMIT "no-limit" User
        "A rule about a metric must say which values are bad: `above`, `below`, `below_metric`, `bits`, or `increase` with `within`."
        "add a limit, for example `above = 90`, or `increase = 1` with `within = \"10 min\"`"
    DUPLICATE "duplicate" User
        "Findings and metrics tell rules apart by their names. A site's rule may have the name of a built-in one, which it then replaces, but two rules in one file may not share a name."
        "rename one of the two"
    ALIKE "alike" User
        "Rules become alerts of Prometheus, whose names have letters and digits only: `gpu/hot` and `gpu-hot` would both be `GpuHot`. A rule with exactly the name of a built-in one replaces it."
        "take exactly the other rule's name to replace it, or another name"
    UNKNOWN_METRIC "unknown-metric" User
        "A rule can only watch metrics that the exporter writes; with any other name it would never fire. Metrics that ranks offer themselves are not watched."
        "take a name from docs/metrics.md"
}

impl Diagnostic for HealthError {
    fn page(&self) -> &'static Page {
        match self {
            HealthError::Document(error) => error.page(),
            HealthError::Condition { .. } => &CONDITION,
            HealthError::NoLimit { .. } => &NO_LIMIT,
            HealthError::Duplicate { .. } => &DUPLICATE,
            HealthError::Alike { .. } => &ALIKE,
            HealthError::UnknownMetric { .. } => &UNKNOWN_METRIC,
        }
    }

    fn place(&self) -> Option<&Place> {
        match self {
            HealthError::Document(error) => error.place(),
            HealthError::Condition { place, .. }
            | HealthError::NoLimit { place, .. }
            | HealthError::Duplicate { place, .. }
            | HealthError::Alike { place, .. }
            | HealthError::UnknownMetric { place, .. } => Some(place),
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            HealthError::Document(error) => error.help(),
            HealthError::UnknownMetric { nearest: Some(name), .. } => Some(format!("did you mean `{name}`?")),
            _ => None,
        }
    }
}
