//! A rule: what it watches, when it fires, and what follows.

use bedplate_finding::{Action, Layer, Severity};

use crate::Profile;

#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// `area/what`.
    pub name: String,
    pub condition: Condition,
    pub severity: Severity,
    pub layer: Layer,
    action: Action,
    by_profile: Vec<(Profile, Action)>,
    /// One sentence for a person.
    pub summary: String,
    pub why: String,
    pub remedy: String,
    /// How sure it is, from 0 to 1.
    pub confidence: f64,
}

/// When a rule fires.
#[derive(Debug, Clone, PartialEq)]
pub enum Condition {
    /// A value is bad for some time.
    Level { metric: String, limit: Threshold, lasts_ms: u64, during: Option<(String, Threshold)> },
    /// A counter grows by this much.
    Increase { metric: String, at_least: f64, within_ms: u64, trend: Option<Trend> },
    /// Kernel log lines have all these words.
    Log { words: Vec<String>, times: u64, within_ms: u64 },
    /// XIDs of one GPU come together.
    Xid { codes: Vec<u32>, times: u64, within_ms: u64, near: Vec<u32>, by_processes: bool },
}

/// Which values are bad.
#[derive(Debug, Clone, PartialEq)]
pub enum Threshold {
    Above(f64),
    Below(f64),
    /// Less than another metric of the same part.
    BelowMetric(String),
    /// Any of these bits is set.
    Bits(u64),
}

/// The growth is also this many times faster than over the longer baseline.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Trend {
    pub faster_than: f64,
    pub baseline_ms: u64,
}

impl Rule {
    /// A rule that says the same under every profile but those named.
    pub(crate) fn new(name: String, condition: Condition, action: Action) -> Self {
        Self {
            summary: name.clone(),
            name,
            condition,
            severity: crate::catalog::severity_of(action),
            layer: Layer::Hardware,
            action,
            by_profile: Vec::new(),
            why: String::new(),
            remedy: String::new(),
            confidence: 1.0,
        }
    }

    pub(crate) fn with_profiles(mut self, by_profile: Vec<(Profile, Action)>) -> Self {
        self.by_profile = by_profile;
        self
    }

    pub fn action(&self, profile: Profile) -> Action {
        self.by_profile.iter().find(|(known, _)| *known == profile).map_or(self.action, |(_, action)| *action)
    }

    /// The metrics it watches.
    pub fn metrics(&self) -> Vec<&str> {
        match &self.condition {
            Condition::Level { metric, limit, during, .. } => {
                let mut metrics = vec![metric.as_str()];
                metrics.extend(limit.metric());
                metrics.extend(during.iter().map(|(metric, _)| metric.as_str()));
                metrics
            }
            Condition::Increase { metric, .. } => vec![metric],
            Condition::Log { .. } | Condition::Xid { .. } => Vec::new(),
        }
    }
}

impl Threshold {
    fn metric(&self) -> Option<&str> {
        match self {
            Threshold::BelowMetric(metric) => Some(metric),
            _ => None,
        }
    }

    /// Whether a value is bad; `other` is the metric that it is compared with. Without that nothing is known.
    pub(crate) fn is_hurt_by(&self, value: f64, other: Option<f64>) -> Option<bool> {
        match self {
            Threshold::Above(limit) => Some(value > *limit),
            Threshold::Below(limit) => Some(value < *limit),
            Threshold::BelowMetric(_) => other.map(|other| value < other),
            Threshold::Bits(bits) => Some(value as u64 & bits != 0),
        }
    }

    /// What would have been normal.
    pub(crate) fn expected(&self, other: Option<f64>) -> String {
        match self {
            Threshold::Above(limit) => format!("at most {limit}"),
            Threshold::Below(limit) => format!("at least {limit}"),
            Threshold::BelowMetric(metric) => match other {
                Some(other) => format!("{other}, as {metric}"),
                None => metric.clone(),
            },
            Threshold::Bits(bits) => format!("none of the bits {bits:#x}"),
        }
    }
}
