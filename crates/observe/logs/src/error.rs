//! What can be wrong with a table of formats and signatures.

use bedplate_diag::{Diagnostic, Page, Place, pages};
use bedplate_document::DocumentError;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LogsError {
    #[error(transparent)]
    Document(#[from] DocumentError),
    #[error("the pattern of `{name}` cannot be read: {why}")]
    Pattern { name: String, why: String, place: Place },
    #[error("`{name}` does not read its own sample: {why}")]
    Sample { name: String, why: String, place: Place },
}

pages! { pub PAGES "logs":
    PATTERN "pattern" User
        "Patterns are regular expressions of Rust's crate `regex`, over bytes: without look-around and back-references, so that no line takes long. `{number}` stands for a number as programs print it."
        "try it with `bedplate watch --try FILE`, which shows where the pattern ends"
    SAMPLE "sample" User
        "Every format says with a sample line what it reads from it, and the sample is read again whenever the table is. This one is not recognised, or gives other values."
        "correct the pattern or the sample; `bedplate watch --try FILE` shows what each sample gives"
}

impl Diagnostic for LogsError {
    fn page(&self) -> &'static Page {
        match self {
            LogsError::Document(error) => error.page(),
            LogsError::Pattern { .. } => &PATTERN,
            LogsError::Sample { .. } => &SAMPLE,
        }
    }

    fn place(&self) -> Option<&Place> {
        match self {
            LogsError::Document(error) => error.place(),
            LogsError::Pattern { place, .. } | LogsError::Sample { place, .. } => Some(place),
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            LogsError::Document(error) => error.help(),
            _ => None,
        }
    }
}
