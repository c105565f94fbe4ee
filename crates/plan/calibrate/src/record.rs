//! One row of a measurement file, as text by column.

use crate::CalibrateError;
use bedplate_diag::shown;
use bedplate_document::csv::{self, OpenQuote};

/// A row. Cells that the file lacks read as blank.
#[derive(Debug, Clone)]
pub(crate) struct MeasuredRow {
    cells: Vec<String>,
    columns: std::rc::Rc<Vec<String>>,
}

/// Required columns.
const NEEDED: [&str; 3] = ["id", "model", "gpus"];

/// Columns that hold numbers above zero, or nothing.
const NUMBERS: [&str; 24] = [
    "params_b",
    "layers",
    "hidden",
    "heads",
    "kv_heads",
    "ffn",
    "vocab",
    "seq_len",
    "experts",
    "gpus",
    "gpus_per_node",
    "tp",
    "pp",
    "cp",
    "ep",
    "vpp",
    "micro_batch",
    "global_batch",
    "step_time_s",
    "tokens_per_s_per_gpu",
    "tflops_per_gpu",
    "mfu",
    "mem_gb",
    "dp",
];

/// The lines of a file, each a list of fields.
pub(crate) fn lines(text: &str) -> Result<Vec<Vec<String>>, CalibrateError> {
    let line = |row: csv::CsvRow<'_>| row.fields.into_iter().map(|field| field.into_owned()).collect();
    let lines: Result<_, OpenQuote> = csv::rows(text).map(|row| row.map(line)).collect();
    lines.map_err(|OpenQuote { line }| CalibrateError::OpenQuote { line })
}

/// The rows of a file in their order.
pub(crate) fn read(text: &str) -> Result<Vec<MeasuredRow>, CalibrateError> {
    let mut lines = lines(text)?.into_iter();
    let header = lines.next().ok_or(CalibrateError::Empty)?;
    let columns: Vec<String> = header.iter().map(|name| name.trim().to_ascii_lowercase()).collect();
    if let Some(column) = NEEDED.into_iter().find(|needed| !columns.iter().any(|name| name == needed)) {
        return Err(CalibrateError::MissingColumn { column });
    }
    let columns = std::rc::Rc::new(columns);
    Ok(lines.map(|cells| MeasuredRow { cells, columns: std::rc::Rc::clone(&columns) }).collect())
}

impl MeasuredRow {
    /// The cell of a column trimmed; empty where the file lacks it.
    pub(crate) fn text(&self, column: &str) -> &str {
        let at = self.columns.iter().position(|name| name == column);
        at.and_then(|at| self.cells.get(at)).map_or("", |cell| cell.trim())
    }

    /// A positive, finite number.
    pub(crate) fn number(&self, column: &str) -> Option<f64> {
        self.text(column).parse::<f64>().ok().filter(|number| number.is_finite() && *number > 0.0)
    }

    /// The first invalid number; it does not count as a blank cell.
    pub(crate) fn not_positive(&self) -> Option<(&'static str, String)> {
        let is_bad = |column: &&str| !self.text(column).is_empty() && self.number(column).is_none();
        let column = NUMBERS.into_iter().find(is_bad)?;
        Some((column, shown(self.text(column))))
    }

    /// A positive whole number, even when written as `8.0`.
    pub(crate) fn count(&self, column: &str) -> Option<u64> {
        self.number(column)
            .filter(|number| *number >= 1.0 && *number < 1e12)
            .map(|number| number.round() as u64)
    }

    pub(crate) fn degree(&self, column: &str) -> Option<u32> {
        self.count(column).and_then(|count| u32::try_from(count).ok()).filter(|degree| *degree <= 1_000_000)
    }

    pub(crate) fn notes(&self) -> &str {
        self.text("notes")
    }

    /// What the rows of one publication share: the id without its number. Only for grouping scores.
    pub(crate) fn publication(&self) -> String {
        let id = self.text("id");
        id.rsplit_once('-').map_or(id, |(prefix, _)| prefix).to_owned()
    }

    /// The whole number that follows `before` in the notes.
    pub(crate) fn noted(&self, before: &str) -> Option<u64> {
        let rest = self.notes().split_once(before)?.1.trim_start();
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().ok().filter(|number| *number > 0)
    }
}
