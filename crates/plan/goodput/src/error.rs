//! What cannot be said about a run because a figure is missing or makes no sense.

use bedplate_catalog::CatalogError;
use bedplate_diag::{Diagnostic, Page, Place, pages};
use bedplate_document::DocumentError;
use bedplate_units::Seconds;

#[derive(Debug, thiserror::Error)]
pub enum GoodputError {
    #[error("no throughput is known for writing checkpoints to {store}")]
    UnknownThroughput { store: String },
    #[error("how often spot machines are taken away is not known for {machine}")]
    UnknownSpotRate { machine: String },
    #[error("no price is known for {machine} bought {purchase}")]
    UnknownPrice { machine: String, purchase: &'static str },
    #[error("{what} is {value}, which is not possible for a run")]
    BadFigure { what: &'static str, value: f64 },
    #[error(
        "a checkpoint every {interval} of work is too frequent: each takes {least} of work to become durable"
    )]
    IntervalTooShort { interval: Seconds, least: Seconds },
    #[error("the run never ends at this failure rate: one failure every {mtbf}, and {ideal} of work to do")]
    NeverEnds { mtbf: Seconds, ideal: Seconds },
    #[error("no published failure rate is called `{key}`")]
    UnknownRate { key: String, known: Vec<String> },
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    #[error(transparent)]
    Document(#[from] DocumentError),
}

pages! { pub PAGES "plan":
    UNKNOWN_THROUGHPUT "unknown-throughput" User
        "The catalog does not say how fast checkpoints can be written to this storage, and neither does the question. Throughput is never guessed."
        "give the bytes per second that a node or the whole store moves, or name a class whose throughput the catalog knows"
    UNKNOWN_SPOT_RATE "unknown-spot-rate" User
        "The length of a run on spot machines depends on how often they are taken away. No figure is published for accelerators, and it is never guessed."
        "give interruptions per 1,000 nodes and day (--spot-interruptions), such as those of your own account's last months"
    UNKNOWN_PRICE "unknown-price" User
        "The catalog has no price for this machine when it is bought this way, so the run cannot be priced. A price is never guessed."
        "put the price you pay into a catalog overlay"
    BAD_RUN_FIGURE "bad-run-figure" User
        "A figure of the run is negative, not a number, or zero where it must be positive."
        "correct the figure that is named"
    INTERVAL_TOO_SHORT "interval-too-short" User
        "A checkpoint must be durable before the next one is taken, but writing it to the store takes longer than the interval."
        "give a longer interval, leave it out to get the best one, or name a faster store"
    NEVER_ENDS "never-ends" User
        "The run fails faster than it can recover and save its work, so it is expected to take more than a thousand years."
        "use fewer or more reliable nodes, a faster store, or a recovery from copies in peers"
    UNKNOWN_FAILURE_RATE "unknown-failure-rate" User
        "The table of published failure rates has no entry of that name."
        "use one of the names listed, or give failures per 1,000 nodes and day"
}

impl Diagnostic for GoodputError {
    fn page(&self) -> &'static Page {
        match self {
            GoodputError::UnknownThroughput { .. } => &UNKNOWN_THROUGHPUT,
            GoodputError::UnknownSpotRate { .. } => &UNKNOWN_SPOT_RATE,
            GoodputError::UnknownPrice { .. } => &UNKNOWN_PRICE,
            GoodputError::BadFigure { .. } => &BAD_RUN_FIGURE,
            GoodputError::IntervalTooShort { .. } => &INTERVAL_TOO_SHORT,
            GoodputError::NeverEnds { .. } => &NEVER_ENDS,
            GoodputError::UnknownRate { .. } => &UNKNOWN_FAILURE_RATE,
            GoodputError::Catalog(error) => error.page(),
            GoodputError::Document(error) => error.page(),
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            GoodputError::UnknownRate { known, .. } => {
                Some(format!("the known rates are {}", known.join(", ")))
            }
            GoodputError::Catalog(error) => error.help(),
            GoodputError::Document(error) => error.help(),
            _ => None,
        }
    }

    fn place(&self) -> Option<&Place> {
        match self {
            GoodputError::Catalog(error) => error.place(),
            GoodputError::Document(error) => error.place(),
            _ => None,
        }
    }
}
