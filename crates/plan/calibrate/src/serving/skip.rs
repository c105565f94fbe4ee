//! Why a serving row is skipped, or why its figures are suspicious.

/// Why a row is left out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServingSkip {
    #[error("a duplicate of {of}")]
    Duplicate { of: String },
    #[error("repeats {of}, rounded")]
    Rounded { of: String },
    #[error("the model `{name}` is not known")]
    UnknownModel { name: String },
    #[error("the accelerator `{name}` is not in the catalog")]
    UnknownAccelerator { name: String },
    #[error("the engine `{name}` is not modelled")]
    UnknownEngine { name: String },
    #[error("the precision `{name}` is not known")]
    UnknownPrecision { name: String },
    #[error("the column `{column}` is blank or not a positive number")]
    Blank { column: &'static str },
    #[error("the pools do not state how many workers they have")]
    NoWorkers,
    #[error("{tensor} tensor ranks: the total of several pools, not one engine")]
    PoolTotal { tensor: u32 },
    #[error("the layout is invalid: {reason}")]
    BadLayout { reason: String },
    #[error("the weights exceed the memory of a GPU by {over}")]
    DoesNotFit { over: String },
    #[error("a request of {tokens} tokens exceeds the cache")]
    RequestTooLong { tokens: u64 },
    #[error("no measured latency or throughput")]
    NothingMeasured,
    #[error("averages over traffic that the row does not describe")]
    Production,
    #[error("more arithmetic per second than kernels deliver")]
    FasterThanPeak,
    #[error("from runs that reuse prompts: too many of them are faster than the kernels")]
    ReusesPrompts,
    #[error("the first token takes {percent} % of the request: the answers were not streamed as they came")]
    Stalled { percent: u32 },
}
