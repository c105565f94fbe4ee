//! CSV as RFC 4180 has it: quoted fields may hold commas, line breaks and doubled quotes.

use crate::CalibrateError;

/// The lines of a text, each a list of fields. Blank lines are left out.
pub(crate) fn parse(text: &str) -> Result<Vec<Vec<String>>, CalibrateError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut reader = Reader::default();
    let mut characters = text.chars().peekable();
    let mut line = 1;
    let mut opened_at = 1;
    while let Some(character) = characters.next() {
        line += usize::from(character == '\n');
        match (reader.is_quoted, character) {
            (true, '"') if characters.peek() == Some(&'"') => {
                characters.next();
                reader.field.push('"');
            }
            (true, '"') => reader.is_quoted = false,
            (true, other) => reader.field.push(other),
            (false, '"') if reader.field.is_empty() => {
                reader.is_quoted = true;
                opened_at = line;
            }
            (false, ',') => reader.end_field(),
            (false, '\n') => reader.end_line(),
            (false, '\r') => {}
            (false, other) => reader.field.push(other),
        }
    }
    if reader.is_quoted {
        return Err(CalibrateError::OpenQuote { line: opened_at });
    }
    reader.end_line();
    Ok(reader.lines)
}

#[derive(Default)]
struct Reader {
    lines: Vec<Vec<String>>,
    fields: Vec<String>,
    field: String,
    is_quoted: bool,
}

impl Reader {
    fn end_field(&mut self) {
        self.fields.push(std::mem::take(&mut self.field));
    }

    fn end_line(&mut self) {
        let is_blank = self.fields.is_empty() && self.field.is_empty();
        self.end_field();
        let fields = std::mem::take(&mut self.fields);
        if !is_blank {
            self.lines.push(fields);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_hold_commas_breaks_and_quotes() {
        let lines = parse("a,\"b, \"\"c\"\"\nd\",e\r\n\nf,,\n").unwrap();
        assert_eq!(lines, [vec!["a", "b, \"c\"\nd", "e"], vec!["f", "", ""]]);
    }

    #[test]
    fn an_open_quote_names_its_line() {
        assert_eq!(parse("a\nb,\"c\nd"), Err(CalibrateError::OpenQuote { line: 2 }));
    }
}
