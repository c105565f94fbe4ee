//! CSV as RFC 4180 has it: quoted fields may hold commas, line breaks and doubled quotes. Every row knows its line.

use std::borrow::Cow;

/// A row and the line, counted from 1, on which it begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CsvRow<'a> {
    pub line: usize,
    /// Without the spaces around them; what is in quotes stays as it is.
    pub fields: Vec<Cow<'a, str>>,
}

/// A quote that is opened in this line and nowhere closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it opens a quote that is never closed")]
pub struct OpenQuote {
    pub line: usize,
}

/// What is wrong with a line of a table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CsvError {
    #[error(transparent)]
    OpenQuote(#[from] OpenQuote),
    #[error("it has no column `{column}`")]
    MissingColumn { column: &'static str, line: usize },
    #[error("it has {found} fields and the header {expected}")]
    UnevenRow { found: usize, expected: usize, line: usize },
}

impl CsvError {
    pub fn line(&self) -> usize {
        match self {
            CsvError::OpenQuote(OpenQuote { line })
            | CsvError::MissingColumn { line, .. }
            | CsvError::UnevenRow { line, .. } => *line,
        }
    }
}

/// The rows of a text in their order. Blank lines and a byte order mark are left out; a quote that is not closed is the end.
pub fn rows(text: &str) -> CsvRows<'_> {
    CsvRows { rest: text.strip_prefix('\u{feff}').unwrap_or(text), line: 1 }
}

/// The line of a row and its fields in the wanted columns.
pub type SelectedFields<'a, const N: usize> = Result<(usize, [Cow<'a, str>; N]), CsvError>;

/// The fields of some columns, row by row below the header. Each column is given by the names that it may have, whose case
/// does not matter; errors use the first.
pub fn columns<'a, const N: usize>(
    text: &'a str,
    wanted: [&[&'static str]; N],
) -> Result<impl Iterator<Item = SelectedFields<'a, N>> + use<'a, N>, CsvError> {
    let mut rows = rows(text);
    let header = rows.next().transpose()?.unwrap_or(CsvRow { line: 1, fields: Vec::new() });
    let mut places = [0; N];
    for (place, names) in places.iter_mut().zip(wanted) {
        let is_wanted = |title: &Cow<'_, str>| names.iter().any(|name| title.eq_ignore_ascii_case(name));
        let missing = CsvError::MissingColumn { column: names[0], line: header.line };
        *place = header.fields.iter().position(is_wanted).ok_or(missing)?;
    }
    let expected = header.fields.len();
    Ok(rows.map(move |row| {
        let CsvRow { line, mut fields } = row?;
        match fields.len() == expected {
            true => Ok((line, places.map(|place| std::mem::take(&mut fields[place])))),
            false => Err(CsvError::UnevenRow { found: fields.len(), expected, line }),
        }
    }))
}

/// The iterator of [`rows`].
#[derive(Debug, Clone)]
pub struct CsvRows<'a> {
    rest: &'a str,
    line: usize,
}

impl<'a> Iterator for CsvRows<'a> {
    type Item = Result<CsvRow<'a>, OpenQuote>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.rest.is_empty() {
            let (text, after) = self.rest.split_once('\n').unwrap_or((self.rest, ""));
            if text.contains('"') {
                let row = self.quoted_row();
                // Where the next row would begin is unknown.
                self.rest = if row.is_ok() { self.rest } else { "" };
                return Some(row);
            }
            let line = self.line;
            (self.rest, self.line) = (after, line + 1);
            if !text.trim().is_empty() {
                let fields = text.split(',').map(|field| Cow::Borrowed(field.trim())).collect();
                return Some(Ok(CsvRow { line, fields }));
            }
        }
        None
    }
}

impl<'a> CsvRows<'a> {
    fn quoted_row(&mut self) -> Result<CsvRow<'a>, OpenQuote> {
        let mut row = CsvRow { line: self.line, fields: Vec::new() };
        loop {
            let (field, end) = self.field()?;
            row.fields.push(field);
            if end != Some(',') {
                self.line += 1;
                return Ok(row);
            }
        }
    }

    /// The next field and what ends it: a comma, a line break or the text.
    fn field(&mut self) -> Result<(Cow<'a, str>, Option<char>), OpenQuote> {
        let Some(mut inside) = self.rest.trim_start_matches([' ', '\t']).strip_prefix('"') else {
            return Ok(self.plain_field());
        };
        let (opened_at, mut field) = (self.line, String::new());
        loop {
            let (part, after) = inside.split_once('"').ok_or(OpenQuote { line: opened_at })?;
            self.line += part.matches('\n').count();
            field += part;
            match after.strip_prefix('"') {
                Some(further) => (inside, field) = (further, field + "\""),
                None => {
                    self.rest = after;
                    // What follows the closing quote belongs to the field, though nobody should write it.
                    let (tail, end) = self.plain_field();
                    return Ok((Cow::Owned(field + &tail), end));
                }
            }
        }
    }

    fn plain_field(&mut self) -> (Cow<'a, str>, Option<char>) {
        let end = self.rest.find([',', '\n']).unwrap_or(self.rest.len());
        let (field, after) = self.rest.split_at(end);
        let mut after = after.chars();
        let end = after.next();
        self.rest = after.as_str();
        (Cow::Borrowed(field.trim()), end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<(usize, Vec<String>)> {
        let row = |row: CsvRow<'_>| (row.line, row.fields.into_iter().map(Cow::into_owned).collect());
        rows(text).map(|found| row(found.unwrap())).collect()
    }

    #[test]
    fn quotes_hold_commas_breaks_and_quotes() {
        let found = read("\u{feff}a,\"b, \"\"c\"\"\nd\", e \r\n\n f,,\n\"\",\" x\"");
        let expected = [(1, vec!["a", "b, \"c\"\nd", "e"]), (4, vec!["f", "", ""]), (5, vec!["", " x"])];
        assert_eq!(found, expected.map(|(line, row)| (line, row.into_iter().map(str::to_owned).collect())));
    }

    #[test]
    fn an_open_quote_names_its_line() {
        let outcome: Result<Vec<_>, _> = rows("a\nb,\"c\nd").collect();
        assert_eq!(outcome, Err(OpenQuote { line: 2 }));
        assert_eq!(rows("a\nb,\"c\nd").count(), 2, "it ends there");
    }

    #[test]
    fn columns_are_found_by_any_of_their_names() {
        let text = "Time, x ,size\n1,2,3\n\n4,5\n";
        let mut found = columns(text, [&["size"], &["timestamp", "time"]]).unwrap();
        assert_eq!(found.next(), Some(Ok((2, [Cow::Borrowed("3"), Cow::Borrowed("1")]))));
        assert_eq!(found.next(), Some(Err(CsvError::UnevenRow { found: 2, expected: 3, line: 4 })));
        let missing = columns(text, [&["place"]]).err();
        assert_eq!(missing, Some(CsvError::MissingColumn { column: "place", line: 1 }));
        assert!(columns("", [&["place"]]).is_err());
    }
}
