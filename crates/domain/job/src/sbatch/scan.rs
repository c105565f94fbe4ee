//! The `#SBATCH` lines of a script and their words.

use crate::JobError;

/// A line that begins like a directive.
pub(super) struct Line<'a> {
    /// Counted from 1.
    pub(super) number: usize,
    pub(super) kind: Kind<'a>,
}

pub(super) enum Kind<'a> {
    /// The text behind `#SBATCH`.
    Directive(&'a str),
    /// Blanks before it make it a comment to sbatch.
    Indented,
    /// sbatch reads no further than the first command.
    TooLate,
}

/// Remarks about lines that are not read stop here; a script that prints scripts has many.
const MOST_IDLE: usize = 20;

pub(super) fn lines(script: &str) -> Vec<Line<'_>> {
    let mut found = Vec::new();
    let mut is_past_command = false;
    let mut idle = 0;
    for (at, line) in script.lines().enumerate() {
        let trimmed = line.trim_start();
        is_past_command |= !trimmed.is_empty() && !trimmed.starts_with('#');
        let Some(text) = directive(trimmed) else { continue };
        let kind = match (is_past_command, trimmed.len() == line.len()) {
            (true, _) => Kind::TooLate,
            (false, false) => Kind::Indented,
            (false, true) => Kind::Directive(text),
        };
        idle += usize::from(!matches!(kind, Kind::Directive(_)));
        if idle > MOST_IDLE {
            break;
        }
        found.push(Line { number: at + 1, kind });
    }
    found
}

/// The text behind `#SBATCH` and at least one blank.
fn directive(line: &str) -> Option<&str> {
    let text = line.strip_prefix("#SBATCH")?;
    (text.is_empty() || text.starts_with([' ', '\t'])).then_some(text)
}

/// Words by blanks, with quotations and backslashes as the shell reads them; `#` at the start of a word begins a comment.
pub(super) fn words(text: &str) -> Result<Vec<String>, JobError> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote: Option<char> = None;
    let mut characters = text.chars();
    while let Some(c) = characters.next() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some('\''), c) => word.get_or_insert_default().push(c),
            (Some(_), '\\') | (None, '\\') => {
                word.get_or_insert_default().extend(characters.next());
            }
            (Some(_), c) => word.get_or_insert_default().push(c),
            (None, '"' | '\'') => {
                word.get_or_insert_default();
                quote = Some(c);
            }
            (None, '#') if word.is_none() => break,
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    if quote.is_some() {
        return Err(JobError::OpenQuote { place: None });
    }
    words.extend(word);
    Ok(words)
}
