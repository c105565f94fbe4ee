//! One finding: the rule that fired, its subject, confidence and evidence.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Action, Subject};

/// How bad it is for running work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    Info,
    Warning,
    Critical,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Critical => "critical",
        })
    }
}

/// The answer to "is it hardware, network, storage or the application?".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layer {
    Hardware,
    Network,
    Storage,
    /// Drivers, libraries, settings of the node.
    Software,
    Application,
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Layer::Hardware => "hardware",
            Layer::Network => "network",
            Layer::Storage => "storage",
            Layer::Software => "software",
            Layer::Application => "application",
        })
    }
}

/// A reading that supports the finding.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// Name of the metric or the log line.
    pub what: String,
    /// The reading with its unit.
    pub reading: String,
    /// What would have been normal, with its unit.
    pub expected: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// Stable name of the rule, `area/what`.
    pub rule: String,
    pub severity: Severity,
    pub layer: Layer,
    pub subject: Subject,
    /// One sentence for a person.
    pub summary: String,
    pub evidence: Vec<Evidence>,
    /// How sure the rule is, from 0 to 1.
    pub confidence: f64,
    pub action: Action,
}

impl Finding {
    /// A certain finding without evidence yet; the summary defaults to the rule's name.
    pub fn new(rule: &str, severity: Severity, layer: Layer, subject: Subject, action: Action) -> Self {
        Self {
            rule: rule.to_owned(),
            severity,
            layer,
            subject,
            summary: rule.to_owned(),
            evidence: Vec::new(),
            confidence: 1.0,
            action,
        }
    }

    /// Says in one sentence what is wrong.
    pub fn because(mut self, summary: impl Into<String>) -> Self {
        self.summary = summary.into();
        self
    }

    pub fn with_evidence(mut self, evidence: Evidence) -> Self {
        self.evidence.push(evidence);
        self
    }

    /// Sets the confidence; values are clamped to 0..1, and NaN counts as 0.
    pub fn with_confidence(mut self, confidence: f64) -> Self {
        self.confidence = if confidence.is_nan() { 0.0 } else { confidence.clamp(0.0, 1.0) };
        self
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} [{}] {}: {}", self.severity, self.rule, self.subject, self.summary)
    }
}

/// A finding that still holds: since when, when it was last seen, how often.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OpenFinding {
    #[serde(flatten)]
    pub finding: Finding,
    /// Milliseconds since 1970.
    pub since_ms: u64,
    pub seen_ms: u64,
    pub times: u64,
}
