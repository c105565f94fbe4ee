//! What can be wrong with a file of measurements as a whole. A bad row is skipped with a reason instead.

use bedplate_diag::{Diagnostic, Page, pages};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CalibrateError {
    #[error("the measurements are empty")]
    Empty,
    #[error("the measurements lack the column `{column}`")]
    MissingColumn { column: &'static str },
    #[error("line {line} opens a quote that is never closed")]
    OpenQuote { line: usize },
    #[error("none of the {rows} rows can be used; {reason}")]
    NothingUsable { rows: usize, reason: String },
}

pages! { pub PAGES "plan":
    EMPTY "empty-measurements" User
        "The file of measurements has no header line."
        "give a CSV file with the columns of data/training/measured.csv"
    MISSING_COLUMN "missing-column" User
        "The file of measurements lacks a required column."
        "add the column; data/training/measured.csv shows all of them"
    OPEN_QUOTE "open-quote" User
        "A quoted field of the file of measurements runs to the end of the file."
        "close the quote on the line shown; inside quotes write a quote twice"
    NOTHING_USABLE "nothing-usable" User
        "No row of the file has everything that a prediction needs."
        "correct what the first row lacks; data/training/measured.csv shows all columns"
}

impl Diagnostic for CalibrateError {
    fn page(&self) -> &'static Page {
        match self {
            CalibrateError::Empty => &EMPTY,
            CalibrateError::MissingColumn { .. } => &MISSING_COLUMN,
            CalibrateError::OpenQuote { .. } => &OPEN_QUOTE,
            CalibrateError::NothingUsable { .. } => &NOTHING_USABLE,
        }
    }
}
