//! Where in a file something is.

use std::fmt;

/// How much of a line is quoted at most; a file may be one line of 100 MB.
const QUOTED_CHARS: usize = 120;

/// A text to be parsed and the name that errors use for it.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    pub name: &'a str,
    pub text: &'a str,
}

impl<'a> Source<'a> {
    pub fn new(name: &'a str, text: &'a str) -> Self {
        Self { name, text }
    }

    /// The place of a byte offset; an offset past the end means the last line.
    pub fn place(&self, offset: usize) -> Place {
        let mut offset = offset.min(self.text.len());
        while !self.text.is_char_boundary(offset) {
            offset -= 1;
        }
        let before = &self.text[..offset];
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let line = before.matches('\n').count() + 1;
        let column = before[line_start..].chars().count() + 1;
        let rest = &self.text[line_start..];
        Place::at(self.name, line, column, rest.split('\n').next().unwrap_or(""))
    }

    /// The place of a line and column, both counted from 1, as parsers report them.
    pub fn place_at(&self, line: usize, column: usize) -> Place {
        let text = self.text.split('\n').nth(line.saturating_sub(1)).unwrap_or("");
        Place::at(self.name, line.max(1), column.max(1), text)
    }

    /// The place of a whole line, counted from 1.
    pub fn line(&self, line: usize) -> Place {
        Place { column: None, ..self.place_at(line, 1) }
    }

    /// The file as a whole.
    pub fn whole(&self) -> Place {
        Place { file: self.name.to_owned(), line: None, column: None, text: String::new() }
    }
}

/// A file and, where known, the line, the column and the text of that line. Counted from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub file: String,
    pub line: Option<usize>,
    pub column: Option<usize>,
    /// The line trimmed, and shortened around the column when very long.
    pub text: String,
}

impl Place {
    fn at(file: &str, line: usize, column: usize, text: &str) -> Self {
        Self { file: file.to_owned(), line: Some(line), column: Some(column), text: quoted(text, column) }
    }
}

/// Text from outside as messages quote it: without control characters, and not a megabyte of it.
pub fn shown(text: &str) -> String {
    const LONGEST: usize = 60;
    text.chars().take(LONGEST).map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

fn quoted(text: &str, column: usize) -> String {
    let skipped = if column > QUOTED_CHARS { column - QUOTED_CHARS / 2 } else { 0 };
    let mut shown: String = text.chars().skip(skipped).take(QUOTED_CHARS).collect();
    shown = shown.trim().replace(|c: char| c.is_control(), " ");
    let is_cut = text.chars().nth(skipped + QUOTED_CHARS).is_some();
    format!("{}{shown}{}", if skipped > 0 { "…" } else { "" }, if is_cut { "…" } else { "" })
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
            if let Some(column) = self.column {
                write!(f, ":{column}")?;
            }
        }
        if self.text.is_empty() { Ok(()) } else { write!(f, ": {}", self.text) }
    }
}
