//! What can be wrong with a trace, and the pages that explain it.

use bedplate_diag::{Diagnostic, Page, Place, pages};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    #[error("this is not a known trace of jobs")]
    UnknownFormat { place: Place },
    #[error("the trace has no jobs")]
    Empty { place: Place },
    #[error("the header lacks the column `{column}`")]
    MissingColumn { column: &'static str, place: Place },
    #[error("this line cannot be read: {reason}")]
    BadLine { reason: String, near: Option<String>, place: Place },
}

pages! { pub PAGES "replay":
    UNKNOWN_FORMAT "unknown-job-trace" User
        "The text is none of the known kinds of job traces: SWF, the Philly CSV, the Alibaba GPU pod list, or JSON lines with one job each."
        "say which with --format, or convert the trace to the JSON lines of docs/replay.md; unpack compressed traces first"
    EMPTY "empty-job-trace" User
        "The trace holds no job: only comments, a header, or nothing."
        "check that this is the file you meant"
    MISSING_COLUMN "missing-job-column" User
        "The CSV trace lacks a column that every trace of its format has."
        "add the column, or convert the trace to the JSON lines of docs/replay.md"
    BAD_LINE "malformed-job" User
        "A line of the trace lacks a field, or a field is malformed. Nothing was replayed."
        "correct or remove the line; docs/replay.md lists the fields"
}

impl Diagnostic for TraceError {
    fn page(&self) -> &'static Page {
        match self {
            TraceError::UnknownFormat { .. } => &UNKNOWN_FORMAT,
            TraceError::Empty { .. } => &EMPTY,
            TraceError::MissingColumn { .. } => &MISSING_COLUMN,
            TraceError::BadLine { .. } => &BAD_LINE,
        }
    }

    fn place(&self) -> Option<&Place> {
        match self {
            TraceError::UnknownFormat { place }
            | TraceError::Empty { place }
            | TraceError::MissingColumn { place, .. }
            | TraceError::BadLine { place, .. } => Some(place),
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            TraceError::BadLine { near: Some(near), .. } => Some(format!("did you mean `{near}`?")),
            _ => None,
        }
    }
}
