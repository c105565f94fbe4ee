//! The one list of parts.

use std::fmt;

/// What a second was spent on. Code, metrics and reports use these names and no others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// Arithmetic of matrix products and attention.
    Compute,
    /// Work bound by HBM: norms, element-wise kernels, weight and KV reads.
    Memory,
    /// Communication inside a scale-up domain.
    ScaleUp,
    /// Communication between scale-up domains.
    ScaleOut,
    /// Waiting for other pipeline stages.
    Bubble,
    Optimizer,
    /// Reading data, writing and reading checkpoints.
    Storage,
    /// Launching kernels, Python, the scheduler of an engine.
    Host,
    Other,
    /// Waiting before service; requests only.
    Queue,
}

impl Part {
    pub const ALL: [Part; 10] = [
        Part::Compute,
        Part::Memory,
        Part::ScaleUp,
        Part::ScaleOut,
        Part::Bubble,
        Part::Optimizer,
        Part::Storage,
        Part::Host,
        Part::Other,
        Part::Queue,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Part::Compute => "compute",
            Part::Memory => "memory",
            Part::ScaleUp => "scale_up",
            Part::ScaleOut => "scale_out",
            Part::Bubble => "bubble",
            Part::Optimizer => "optimizer",
            Part::Storage => "storage",
            Part::Host => "host",
            Part::Other => "other",
            Part::Queue => "queue",
        }
    }

    /// The part of that name.
    pub fn find(name: &str) -> Option<Part> {
        Part::ALL.into_iter().find(|part| part.name() == name)
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
