//! Why a row is skipped, as data: reports list every skipped row with its reason.

/// Why a row is left out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Skip {
    #[error("hybrid or unpublished architecture")]
    UnpublishedArchitecture,
    #[error("the model is not built in, and layers, hidden and heads are not all printed")]
    UnknownModel,
    #[error("the accelerator `{name}` is not in the catalog")]
    UnknownAccelerator { name: String },
    #[error("the column `{column}` is blank")]
    Blank { column: &'static str },
    #[error("`{value}` in the column `{column}` is not a positive number")]
    NotPositive { column: &'static str, value: String },
    #[error("tensor and pipeline degrees are not printed")]
    NoDegrees,
    #[error("tp{tensor} x pp{pipeline} x cp{context} does not divide {gpus} GPUs")]
    DegreesDoNotDivide { tensor: u32, pipeline: u32, context: u32, gpus: u32 },
    #[error(
        "a batch of {batch} has less than one micro-batch of {micro_batch} for each of {data} data ranks"
    )]
    BatchTooSmall { batch: u64, micro_batch: u32, data: u32 },
    #[error("no throughput follows from the printed figures")]
    NoThroughput,
    #[error("the layout cannot be priced: {reason}")]
    NotPriced { reason: String },
}
