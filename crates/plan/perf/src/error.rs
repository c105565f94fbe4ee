//! Why a step cannot be predicted at all. A layout that does not fit is no error but an answer.

use bedplate_diag::{Class, Diagnostic, Page};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PerfError {
    #[error("the cluster {cluster} has no GPUs")]
    NoGpus { cluster: String },
    #[error("the accelerator `{name}` is not in the catalog")]
    UnknownAccelerator { name: String },
    #[error("the catalog has no figure for {what} of {accelerator}")]
    MissingFigure { accelerator: String, what: &'static str },
    #[error("a step of {sequences} sequences of {tokens} tokens trains nothing")]
    EmptyStep { sequences: u64, tokens: u64 },
    #[error("the layout {layout} cannot be priced: {reason}")]
    ImpossibleLayout { layout: String, reason: String },
}

pub const PAGES: &[&Page] =
    &[&NO_GPUS, &UNKNOWN_ACCELERATOR, &MISSING_FIGURE, &EMPTY_STEP, &IMPOSSIBLE_LAYOUT];

static NO_GPUS: Page = Page {
    code: "plan/no-gpus",
    class: Class::User,
    meaning: "The cluster holds no accelerators, so nothing can be trained on it.",
    remedy: "name a cluster with accelerators, such as `p5.48xlarge:2`",
};
static UNKNOWN_ACCELERATOR: Page = Page {
    code: "plan/unknown-accelerator",
    class: Class::User,
    meaning: "The machines of the cluster carry an accelerator that the catalog does not describe, so its peaks and its memory are unknown.",
    remedy: "add the accelerator to a catalog overlay",
};
static MISSING_FIGURE: Page = Page {
    code: "plan/missing-figure",
    class: Class::User,
    meaning: "The catalog describes the accelerator, but lacks a figure without which no step can be predicted.",
    remedy: "add the figure to a catalog overlay",
};
static EMPTY_STEP: Page = Page {
    code: "plan/empty-step",
    class: Class::User,
    meaning: "The global batch or the sequence length is zero, so a step has no tokens.",
    remedy: "give a global batch and a sequence length of at least 1",
};
static IMPOSSIBLE_LAYOUT: Page = Page {
    code: "plan/impossible-layout",
    class: Class::User,
    meaning: "The layout breaks a rule without which its cost has no meaning, such as a degree of zero or fewer sequences than data-parallel ranks.",
    remedy: "see `bedplate layout check` for every rule that the layout breaks",
};

impl Diagnostic for PerfError {
    fn page(&self) -> &'static Page {
        match self {
            PerfError::NoGpus { .. } => &NO_GPUS,
            PerfError::UnknownAccelerator { .. } => &UNKNOWN_ACCELERATOR,
            PerfError::MissingFigure { .. } => &MISSING_FIGURE,
            PerfError::EmptyStep { .. } => &EMPTY_STEP,
            PerfError::ImpossibleLayout { .. } => &IMPOSSIBLE_LAYOUT,
        }
    }
}
