//! What came out: kind, cause, culprit, since when, how sure, what it costs, why, and what to do.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What is wrong with a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProblemKind {
    /// It ended with an error.
    Crashed,
    /// It does not go on.
    Stall,
    /// Its numbers went wrong: NaN, a loss that explodes.
    Diverging,
    /// Steps take longer since some step.
    SlowSince,
    /// Steps were longer than predicted from the start.
    SlowerThanPredicted,
    /// Single steps take much longer, again and again.
    Unstable,
}

impl ProblemKind {
    pub fn name(self) -> &'static str {
        match self {
            ProblemKind::Crashed => "crashed",
            ProblemKind::Stall => "stall",
            ProblemKind::Diverging => "diverging",
            ProblemKind::SlowSince => "slow since",
            ProblemKind::SlowerThanPredicted => "slower than predicted",
            ProblemKind::Unstable => "unstable",
        }
    }
}

impl fmt::Display for ProblemKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Where the reason lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    Hardware,
    Network,
    Storage,
    Application,
    OutOfMemory,
    /// What was observed does not tell.
    Unknown,
}

impl Cause {
    pub const KNOWN: [Cause; 5] =
        [Cause::Hardware, Cause::Network, Cause::Storage, Cause::Application, Cause::OutOfMemory];

    pub fn name(self) -> &'static str {
        match self {
            Cause::Hardware => "hardware",
            Cause::Network => "network",
            Cause::Storage => "storage",
            Cause::Application => "application",
            Cause::OutOfMemory => "out of memory",
            Cause::Unknown => "unknown",
        }
    }

    /// The cause that signatures call by this name.
    pub fn of_class(class: &str) -> Cause {
        Cause::KNOWN
            .into_iter()
            .find(|cause| cause.name().replace(' ', "-") == class)
            .unwrap_or(Cause::Unknown)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Who is to blame, as far as can be said.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Culprit {
    Rank(u32),
    Node(String),
    /// On the PCI bus.
    Gpu(String),
    /// A server, a target of a file system, an endpoint.
    Server(String),
    Path(String),
    /// A group of ranks and the number of its call.
    Collective(String),
    Process(String),
}

impl fmt::Display for Culprit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Culprit::Rank(rank) => write!(f, "rank {rank}"),
            Culprit::Node(node) => write!(f, "node {node}"),
            Culprit::Gpu(bus) => write!(f, "GPU {bus}"),
            Culprit::Server(server) => write!(f, "server {server}"),
            Culprit::Path(path) => write!(f, "path {path}"),
            Culprit::Collective(name) => write!(f, "collective {name}"),
            Culprit::Process(process) => write!(f, "process {process}"),
        }
    }
}

/// One observation that speaks for a verdict, with where it was made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    /// The observation with its figures.
    pub what: String,
    /// A file and a line, a metric and its time.
    pub source: String,
    /// For which cause it speaks, and how much: natural logarithm of the odds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speaks_for: Option<Cause>,
    pub weight: f64,
}

/// What a slowdown costs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TimeLost {
    /// Seconds of the job that were lost so far.
    pub seconds: f64,
    /// The same, times the ranks where their number is known.
    pub rank_hours: Option<f64>,
    /// A step's time over what it was or should be, 1.05 for five per cent.
    pub factor: f64,
}

/// From when on.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Since {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// Seconds since 1970 as the job's own clock says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unix_seconds: Option<f64>,
    /// A file and a line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobVerdict {
    pub kind: ProblemKind,
    pub cause: Cause,
    pub culprits: Vec<Culprit>,
    pub since: Since,
    /// That the cause is right, 0 to 1.
    pub confidence: f64,
    /// That the culprits are right, 0 to 1.
    pub culprit_confidence: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<TimeLost>,
    pub evidence: Vec<Observation>,
    /// Other causes, the most probable first.
    pub alternatives: Vec<(Cause, f64)>,
    /// What to do, in order.
    pub next: Vec<String>,
    /// Whether it should be acted on: a suspicion is shown, but nobody is woken for it.
    pub is_firm: bool,
}

impl JobVerdict {
    pub(crate) fn new(kind: ProblemKind, cause: Cause, confidence: f64) -> Self {
        Self {
            kind,
            cause,
            culprits: Vec::new(),
            since: Since::default(),
            confidence,
            culprit_confidence: 0.0,
            cost: None,
            evidence: Vec::new(),
            alternatives: Vec::new(),
            next: Vec::new(),
            is_firm: true,
        }
    }
}

/// `crashed: hardware (GPU 0000:3b:00), since step 42,783, 95 % sure`
impl fmt::Display for JobVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.cause)?;
        if !self.culprits.is_empty() {
            let culprits: Vec<String> = self.culprits.iter().take(4).map(Culprit::to_string).collect();
            let more = if self.culprits.len() > 4 { " and others" } else { "" };
            write!(f, " ({}{more})", culprits.join(", "))?;
        }
        if let Some(step) = self.since.step {
            write!(f, ", since step {}", bedplate_units::grouped(step))?;
        }
        if let Some(cost) = self.cost {
            write!(f, ", steps take {:.2}x as long", cost.factor)?;
        }
        match self.cause {
            Cause::Unknown => write!(f, "; what was observed does not tell why"),
            _ => write!(f, ", {:.0} % sure", 100.0 * self.confidence),
        }
    }
}
