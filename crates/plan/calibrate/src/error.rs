//! What can be wrong with a file of measurements as a whole. A bad row is skipped with a reason instead.

use bedplate_diag::{Class, Diagnostic, Page};

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

pub const PAGES: &[&Page] = &[&EMPTY, &MISSING_COLUMN, &OPEN_QUOTE, &NOTHING_USABLE];

static EMPTY: Page = Page {
    code: "plan/empty-measurements",
    class: Class::User,
    meaning: "The file of measurements has no header line.",
    remedy: "give a CSV file with the columns of data/training/measured.csv",
};
static MISSING_COLUMN: Page = Page {
    code: "plan/missing-column",
    class: Class::User,
    meaning: "The file of measurements lacks a required column.",
    remedy: "add the column; data/training/measured.csv shows all of them",
};
static OPEN_QUOTE: Page = Page {
    code: "plan/open-quote",
    class: Class::User,
    meaning: "A quoted field of the file of measurements runs to the end of the file.",
    remedy: "close the quote on the line shown; inside quotes write a quote twice",
};
static NOTHING_USABLE: Page = Page {
    code: "plan/nothing-usable",
    class: Class::User,
    meaning: "No row of the file has everything that a prediction needs.",
    remedy: "correct what the first row lacks; data/training/measured.csv shows all columns",
};

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
