//! What can be wrong with a trace of requests, and the pages that explain it.

use bedplate_diag::{Diagnostic, Page, Place, pages};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    #[error("a line of the trace cannot be read: {reason}")]
    Malformed { reason: String, place: Place },
    #[error("the trace has no column `{column}`")]
    MissingColumn { column: &'static str, place: Place },
    #[error("the trace has no requests")]
    Empty { place: Place },
    #[error("this is not a known trace of requests")]
    UnknownFormat { place: Place },
}

pages! { pub PAGES "replay":
    MALFORMED "malformed-request" User
        "A line of a request trace does not have the form of its format. No line is skipped, because replaying half a trace would answer a different question."
        "correct the line, or remove it from the file"
    MISSING_COLUMN "missing-column" User
        "The first line of a CSV trace names its columns, and a required one is missing."
        "give a header such as `TIMESTAMP,ContextTokens,GeneratedTokens`"
    EMPTY "empty-trace" User
        "The trace has a header or blank lines but no request, so there is nothing to replay."
        "check that it is the right file"
    UNKNOWN_FORMAT "unknown-trace" User
        "Request traces are CSV with a header that names a timestamp and token counts, or JSON lines with an object per request. The first line is neither."
        "give an Azure LLM trace (CSV) or JSON lines with `timestamp`, `input_length` and `output_length`"
}

impl Diagnostic for TraceError {
    fn page(&self) -> &'static Page {
        match self {
            TraceError::Malformed { .. } => &MALFORMED,
            TraceError::MissingColumn { .. } => &MISSING_COLUMN,
            TraceError::Empty { .. } => &EMPTY,
            TraceError::UnknownFormat { .. } => &UNKNOWN_FORMAT,
        }
    }

    fn place(&self) -> Option<&Place> {
        match self {
            TraceError::Malformed { place, .. }
            | TraceError::MissingColumn { place, .. }
            | TraceError::Empty { place }
            | TraceError::UnknownFormat { place } => Some(place),
        }
    }
}
