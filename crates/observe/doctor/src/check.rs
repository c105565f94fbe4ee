//! One check of a node: what was looked at, what was found, why it matters, what it costs, how to fix it.

use std::fmt;

use bedplate_finding::{Action, Evidence, Finding, Layer, Severity, Subject};
use serde::{Deserialize, Serialize};

/// The five layers of the software under a training job, lowest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stack {
    /// GPUs, network cards, links, and their settings.
    Hardware,
    /// Kernel modules and the limits of the operating system.
    Kernel,
    /// The CUDA driver, runtime and kernels' libraries.
    Runtime,
    /// NCCL, its plugin, libfabric, UCX.
    Communication,
    /// PyTorch, and the variables that a job inherits.
    Framework,
}

impl Stack {
    pub const ALL: [Stack; 5] =
        [Stack::Hardware, Stack::Kernel, Stack::Runtime, Stack::Communication, Stack::Framework];

    pub const fn name(self) -> &'static str {
        match self {
            Stack::Hardware => "hardware",
            Stack::Kernel => "kernel",
            Stack::Runtime => "runtime",
            Stack::Communication => "communication",
            Stack::Framework => "framework",
        }
    }

    const fn layer(self) -> Layer {
        match self {
            Stack::Hardware => Layer::Hardware,
            Stack::Communication => Layer::Network,
            Stack::Kernel | Stack::Runtime => Layer::Software,
            Stack::Framework => Layer::Application,
        }
    }
}

impl fmt::Display for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// From the best to the worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckVerdict {
    Pass,
    /// It works, slower or more fragile than it should.
    Warn,
    /// It does not work, or at a fraction of its speed.
    Fail,
}

impl CheckVerdict {
    pub const fn name(self) -> &'static str {
        match self {
            CheckVerdict::Pass => "pass",
            CheckVerdict::Warn => "warn",
            CheckVerdict::Fail => "fail",
        }
    }
}

impl fmt::Display for CheckVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What the performance model says about a flaw.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// How many times longer a step takes; 1 is no loss.
    pub slowdown: f64,
    /// The prediction in words, with the workload that it is for.
    pub told: String,
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// Stable name, `area/what`.
    pub rule: String,
    pub layer: Stack,
    pub verdict: CheckVerdict,
    /// GPU that it is about; the node without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    /// What was found, in one sentence without a full stop.
    pub found: String,
    /// Empty for what passed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub fix: String,
    /// Where it was read, or the line of a log.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evidence: Vec<String>,
}

impl Check {
    pub(crate) fn pass(rule: &str, layer: Stack, found: impl Into<String>) -> Self {
        Self {
            rule: rule.to_owned(),
            layer,
            verdict: CheckVerdict::Pass,
            gpu: None,
            found: found.into(),
            why: String::new(),
            cost: None,
            fix: String::new(),
            evidence: Vec::new(),
        }
    }

    pub(crate) fn warn(rule: &str, layer: Stack, found: impl Into<String>) -> Self {
        Self { verdict: CheckVerdict::Warn, ..Self::pass(rule, layer, found) }
    }

    pub(crate) fn fail(rule: &str, layer: Stack, found: impl Into<String>) -> Self {
        Self { verdict: CheckVerdict::Fail, ..Self::pass(rule, layer, found) }
    }

    pub(crate) fn because(mut self, why: impl Into<String>) -> Self {
        self.why = why.into();
        self
    }

    pub(crate) fn fixed_by(mut self, fix: impl Into<String>) -> Self {
        self.fix = fix.into();
        self
    }

    pub(crate) fn costing(mut self, cost: Option<Cost>) -> Self {
        self.cost = cost;
        self
    }

    pub(crate) fn seen_in(mut self, evidence: impl Into<String>) -> Self {
        self.evidence.push(evidence.into());
        self
    }

    pub(crate) fn of_gpu(mut self, gpu: u32) -> Self {
        self.gpu = Some(gpu);
        self
    }

    /// The check as a finding about a node; what passed is none.
    pub fn finding(&self, node: &str) -> Option<Finding> {
        let (severity, action) = match self.verdict {
            CheckVerdict::Pass => return None,
            CheckVerdict::Warn => (Severity::Warning, Action::Record),
            CheckVerdict::Fail => (Severity::Critical, Action::Alert),
        };
        let node = node.to_owned();
        let subject = match self.gpu {
            Some(index) => Subject::Gpu { node, index },
            None => Subject::Node { node },
        };
        let rule = format!("doctor/{}", self.rule);
        let mut finding =
            Finding::new(&rule, severity, self.layer.layer(), subject, action).because(self.found.clone());
        for line in &self.evidence {
            finding = finding.with_evidence(Evidence {
                what: self.rule.clone(),
                reading: line.clone(),
                expected: None,
            });
        }
        Some(finding)
    }
}

/// The worst verdict of all; `Pass` of none.
pub fn worst(checks: &[Check]) -> CheckVerdict {
    checks.iter().map(|check| check.verdict).max().unwrap_or(CheckVerdict::Pass)
}
