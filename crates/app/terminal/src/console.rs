//! Where output goes: data to standard output, remarks to standard error.

use std::io::{self, IsTerminal, Write};

use serde_json::Value;

use crate::cli_error::CliError;
use crate::present::{Table, printable, printable_json};

/// Nothing fits in less; a smaller width is taken for a mistake.
const NARROWEST: usize = 40;

#[derive(Clone)]
pub struct Console {
    is_json: bool,
    /// Columns to fit in; `None` for pipes and files, which take lines of any length.
    width: Option<usize>,
    /// Whether what is told goes to standard error, because something else is the output.
    is_aside: bool,
    /// Set when output is kept instead of printed.
    record: Option<String>,
}

impl Console {
    /// The console of this process. `COLUMNS` overrides the width of the terminal.
    pub fn for_process(is_json: bool) -> Self {
        let asked = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
        let terminal = || match io::stdout().is_terminal() {
            true => terminal_size::terminal_size().map(|(width, _)| usize::from(width.0)),
            false => None,
        };
        let width = asked.or_else(terminal).filter(|width| *width >= NARROWEST);
        Self { is_json, width, is_aside: false, record: None }
    }

    /// A console that collects JSON output for its owner and prints nothing.
    pub fn recorder() -> Self {
        Self { is_json: true, width: None, is_aside: false, record: Some(String::new()) }
    }

    /// The same console for a report beside the output: everything goes to standard error.
    pub fn aside(&self) -> Self {
        Self { is_aside: true, ..self.clone() }
    }

    pub fn recorded(&self) -> &str {
        self.record.as_deref().unwrap_or_default()
    }

    pub fn is_json(&self) -> bool {
        self.is_json
    }

    pub fn width(&self) -> Option<usize> {
        self.width
    }

    /// One JSON document on standard output.
    pub fn json(&mut self, value: &Value) -> Result<(), CliError> {
        self.write(&printable_json(&format!("{value:#}\n")))
    }

    /// Text on standard output; names that others chose cannot act on the terminal.
    pub fn text(&mut self, text: &str) -> Result<(), CliError> {
        self.write(&printable(text))
    }

    fn write(&mut self, text: &str) -> Result<(), CliError> {
        if let Some(record) = &mut self.record {
            record.push_str(text);
            return Ok(());
        }
        if self.is_aside {
            self.say_raw(text);
            return Ok(());
        }
        let mut stdout = io::stdout().lock();
        stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(CliError::from_output)
    }

    pub fn line(&mut self, line: &str) -> Result<(), CliError> {
        self.text(&format!("{line}\n"))
    }

    /// A table that fits the width; columns that do not fit are named on standard error.
    pub fn table(&mut self, table: &Table) -> Result<(), CliError> {
        let fitted = table.fit(self.width);
        self.text(&fitted.text)?;
        if !fitted.left_out.is_empty() {
            let columns = fitted.left_out.join(", ").to_lowercase();
            self.say(&format!("not shown for lack of room: {columns} (widen the terminal, or use --json)"));
        }
        Ok(())
    }

    /// A remark to the user, on standard error.
    pub fn say(&self, remark: &str) {
        self.say_raw(&format!("{}\n", printable(remark)));
    }

    /// What a cluster says beside its answers.
    pub fn say_notes(&self, notes: Vec<String>) {
        notes.iter().for_each(|note| self.say(&format!("note: {note}")));
    }

    /// Remarks that draw, such as a meter.
    pub fn say_raw(&self, text: &str) {
        // If standard error is closed there is nowhere left to report to.
        let _ = io::stderr().lock().write_all(text.as_bytes());
    }
}
