//! Why a step cannot be predicted at all. A layout that does not fit is an answer, not an error.

use bedplate_diag::{Diagnostic, Page, pages};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PerfError {
    #[error("the cluster {cluster} has no GPUs")]
    NoGpus { cluster: String },
    #[error("none of the {gpus} GPUs of the cluster {cluster} can take work")]
    NoUsableGpus { cluster: String, gpus: u32 },
    #[error("the accelerator `{name}` is not in the catalog")]
    UnknownAccelerator { name: String },
    #[error("the catalog has no figure for {what} of {accelerator}")]
    MissingFigure { accelerator: String, what: &'static str },
    #[error("a step of {sequences} sequences of {tokens} tokens trains nothing")]
    EmptyStep { sequences: u64, tokens: u64 },
    #[error("a step in {format} cannot be priced on these accelerators, only in {known}")]
    UnsupportedPrecision { format: &'static str, known: String },
    #[error("the software {stack} does not train on {on}")]
    UnsupportedStack { stack: &'static str, on: &'static str },
    #[error(
        "{operation} between {ranks} ranks of this host was not measured, so a step with it has no price"
    )]
    CollectivesNotMeasured { operation: &'static str, ranks: u32 },
    #[error("a host cannot train a model with {what}")]
    UnsupportedModel { what: &'static str },
    #[error("a routing skew of {peak} is not possible")]
    BadRouting { peak: String },
    #[error("the layout {layout} cannot be priced: {reason}")]
    ImpossibleLayout { layout: String, reason: String },
    #[error("a replica cannot be split this way: {reason}")]
    ImpossibleReplica { reason: String },
}

pages! { pub PAGES "plan":
    NO_GPUS "no-gpus" User
        "The cluster holds no accelerators, so nothing can be trained on it."
        "name a cluster with accelerators, such as `p5.48xlarge:2`"
    NO_USABLE_GPUS "no-usable-gpus" User
        "Every node of the cluster is down, draining, or has a failed GPU. Steps are planned for whole nodes that take work."
        "repair or resume nodes, or describe the cluster as it will be once repaired"
    UNSUPPORTED_PRECISION "unsupported-precision" User
        "The accelerators have no peak rate in this number format, or it is fp32, which is priced only on hosts: the model for accelerators counts weights and activations in 16 bits."
        "choose one of the formats listed, or add the peak to a catalog overlay"
    UNSUPPORTED_STACK "unsupported-stack" User
        "On a host without accelerators only the program's own runtime can be priced. On several accelerators that runtime cannot be priced yet."
        "leave out --stack to choose what the cluster can run"
    COLLECTIVES_NOT_MEASURED "collectives-not-measured" User
        "On `host:N`, N ranks share the host and exchange elements in its memory. `bedplate bench comm` measures how long that takes, and the catalog has no measurement of this operation for this number of ranks."
        "run `bedplate bench machine`, then `bedplate bench comm --ranks N --save` for the ranks of every group; or plan for one rank: `--cluster host:1`"
    UNSUPPORTED_MODEL "unsupported-model" User
        "The model has a part that the program's own runtime has no operator for, and on hosts this runtime does the training."
        "choose another model, or a cluster of accelerators"
    BAD_ROUTING "bad-routing" User
        "A routing skew is the load of the busiest expert rank over the mean, so it is at least 1."
        "give a number of at least 1, such as 1.25"
    UNKNOWN_ACCELERATOR "unknown-accelerator" User
        "The machines of the cluster have an accelerator that the catalog does not describe, so its peaks and its memory are unknown."
        "add the accelerator to a catalog overlay"
    MISSING_FIGURE "missing-figure" User
        "The catalog describes the accelerator, but lacks a figure that every prediction needs."
        "add the figure to a catalog overlay"
    EMPTY_STEP "empty-step" User
        "The global batch or the sequence length is zero, so a step has no tokens."
        "give a global batch and a sequence length of at least 1"
    IMPOSSIBLE_LAYOUT "impossible-layout" User
        "The layout breaks a rule that pricing relies on, such as a degree of zero or fewer sequences than data-parallel ranks."
        "see `bedplate layout LAYOUT --model MODEL` for every rule that the layout breaks"
    IMPOSSIBLE_REPLICA "impossible-replica" User
        "The degrees of parallelism of a replica contradict each other: one is zero, or experts are spread over more ranks than divide the GPUs of a stage."
        "choose an expert degree that divides tensor times attention data ranks"
}

impl Diagnostic for PerfError {
    fn page(&self) -> &'static Page {
        match self {
            PerfError::NoGpus { .. } => &NO_GPUS,
            PerfError::NoUsableGpus { .. } => &NO_USABLE_GPUS,
            PerfError::UnsupportedPrecision { .. } => &UNSUPPORTED_PRECISION,
            PerfError::UnsupportedStack { .. } => &UNSUPPORTED_STACK,
            PerfError::CollectivesNotMeasured { .. } => &COLLECTIVES_NOT_MEASURED,
            PerfError::UnsupportedModel { .. } => &UNSUPPORTED_MODEL,
            PerfError::BadRouting { .. } => &BAD_ROUTING,
            PerfError::UnknownAccelerator { .. } => &UNKNOWN_ACCELERATOR,
            PerfError::MissingFigure { .. } => &MISSING_FIGURE,
            PerfError::EmptyStep { .. } => &EMPTY_STEP,
            PerfError::ImpossibleLayout { .. } => &IMPOSSIBLE_LAYOUT,
            PerfError::ImpossibleReplica { .. } => &IMPOSSIBLE_REPLICA,
        }
    }
}
