//! Portions of a text that end at a line or paragraph.

use std::io::BufRead;
use std::path::Path;
use std::sync::Arc;

use bedplate_diag::Source;

use super::Portion;
use crate::disk;
use crate::error::DataError;

/// Large enough that handing it over is cheap, small enough to keep all workers busy.
pub(super) const PORTION_BYTES: usize = 1 << 19;

pub(super) fn read_lines(
    path: &Path,
    mut reader: Box<dyn BufRead + '_>,
    each: &mut dyn FnMut(Portion) -> bool,
) -> Result<(), DataError> {
    let file: Arc<str> = path.display().to_string().into();
    let mut first_line = 1;
    loop {
        let mut bytes = Vec::new();
        let mut lines = 0;
        while bytes.len() < PORTION_BYTES
            && reader.read_until(b'\n', &mut bytes).map_err(disk::reading(path))? > 0
        {
            lines += 1;
        }
        if lines == 0 {
            return Ok(());
        }
        let text = text_of(path, bytes)?;
        if !each(Portion::Lines { file: Arc::clone(&file), first_line, text }) {
            return Ok(());
        }
        first_line += lines;
    }
}

pub(super) fn read_paragraphs(
    path: &Path,
    mut reader: Box<dyn BufRead + '_>,
    each: &mut dyn FnMut(Portion) -> bool,
) -> Result<(), DataError> {
    loop {
        let mut bytes = Vec::new();
        let mut line = 0;
        while bytes.len() < PORTION_BYTES || !bytes[line..].trim_ascii().is_empty() {
            line = bytes.len();
            if reader.read_until(b'\n', &mut bytes).map_err(disk::reading(path))? == 0 {
                break;
            }
        }
        if bytes.is_empty() || !each(Portion::Paragraphs(text_of(path, bytes)?)) {
            return Ok(());
        }
    }
}

/// The text between blank lines.
pub(crate) fn paragraphs(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let mut end = None;
        let (mut from, mut at) = (None, 0);
        for line in rest.split_inclusive('\n') {
            match (line.trim().is_empty(), from) {
                (false, None) => from = Some(at),
                (true, Some(_)) => {
                    end = Some(at);
                    break;
                }
                _ => {}
            }
            at += line.len();
        }
        let paragraph = &rest[from?..end.unwrap_or(at)];
        rest = &rest[end.unwrap_or(at)..];
        Some(paragraph)
    })
}

pub(super) fn text_of(path: &Path, bytes: Vec<u8>) -> Result<String, DataError> {
    String::from_utf8(bytes).map_err(|error| {
        let good =
            String::from_utf8_lossy(&error.as_bytes()[..error.utf8_error().valid_up_to()]).into_owned();
        let place = Source::new("", &good).place(good.len());
        let quoted = if place.text.is_empty() { String::new() } else { format!(", after `{}`", place.text) };
        let reason = format!("a byte is not UTF-8{quoted}");
        DataError::BadInput { path: path.to_owned(), format: "text", reason }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_are_what_stands_between_blank_lines() {
        let text = "\n\none\nstill one\n \ntwo\n\n\n\nthree";
        let found: Vec<&str> = paragraphs(text).collect();
        assert_eq!(found, ["one\nstill one\n", "two\n", "three"]);
        assert_eq!(paragraphs("").count() + paragraphs(" \n\n").count(), 0);
    }

    #[test]
    fn portions_end_with_lines_and_paragraphs() {
        let text = "aaaa\nbbbb\n\n".repeat(200_000);
        for is_paragraphs in [false, true] {
            let mut portions = Vec::new();
            let mut each = |portion: Portion| {
                portions.push(match portion {
                    Portion::Lines { text, first_line, .. } => {
                        let before: String = portions.concat();
                        assert_eq!(before.lines().count() + 1, first_line);
                        text
                    }
                    Portion::Paragraphs(text) => text,
                    Portion::Texts(texts) => texts.concat(),
                    Portion::Records { .. } => unreachable!("lines are no records"),
                });
                true
            };
            let reader: Box<dyn BufRead> = Box::new(text.as_bytes());
            match is_paragraphs {
                true => read_paragraphs(Path::new("x"), reader, &mut each).unwrap(),
                false => read_lines(Path::new("x"), reader, &mut each).unwrap(),
            }
            assert!(portions.len() > 2);
            let end = if is_paragraphs { "\n\n" } else { "\n" };
            assert!(portions.iter().all(|portion| portion.ends_with(end)));
            assert_eq!(portions.concat(), text);
        }
    }
}
