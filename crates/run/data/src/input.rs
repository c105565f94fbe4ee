//! Reading inputs in portions for workers to parse: text, JSON lines, Parquet, compressed or not.

mod lines;
mod parquet;
pub(crate) mod record;
mod records;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bedplate_host::open_regular;
pub(crate) use lines::paragraphs;

use crate::disk;
use crate::error::DataError;

/// What a portion of an input holds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Portion {
    /// Documents as they are.
    Texts(Vec<String>),
    /// Text whose paragraphs are documents.
    Paragraphs(String),
    /// JSON objects, one per line.
    Lines { file: Arc<str>, first_line: usize, text: String },
    /// JSON objects that may have several lines, with the number of the first one.
    Records { file: Arc<str>, records: Vec<(usize, String)> },
}

/// How a text file is split into documents.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TextUnit {
    /// The file is one document.
    #[default]
    File,
    /// Blank lines separate documents.
    Paragraph,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Text,
    Lines,
    /// One list of objects, or objects one after the other.
    Records,
    Parquet,
}

/// The files that a user's path means: a file itself, or all files of a folder with a known extension,
/// ordered by name. A folder's `.json` files are as a rule about the others, and are read only when named.
pub(crate) fn find_files(inputs: &[PathBuf]) -> Result<Vec<PathBuf>, DataError> {
    let mut files = Vec::new();
    for input in inputs {
        match input.is_dir() {
            true => add_folder(input, &mut files)?,
            false => {
                format(input)?;
                files.push(input.clone());
            }
        }
    }
    Ok(files)
}

fn add_folder(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), DataError> {
    let entries = fs::read_dir(folder).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let mut paths: Vec<PathBuf> =
        entries.map_err(disk::reading(folder))?.into_iter().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            add_folder(&path, files)?;
        } else if format(&path).is_ok_and(|format| format != Format::Records) {
            files.push(path);
        }
    }
    Ok(())
}

/// What is taken from inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted<'a> {
    /// The texts of a key or a column, and how plain text is split.
    Texts { field: &'a str, unit: TextUnit },
    /// Records whole.
    Conversations,
}

/// Hands the portions of a file to `each`, until it asks to stop.
pub(crate) fn read(
    path: &Path,
    wanted: Wanted<'_>,
    bytes_read: &AtomicU64,
    each: &mut dyn FnMut(Portion) -> bool,
) -> Result<(), DataError> {
    if format(path)? == Format::Parquet {
        return match wanted {
            Wanted::Texts { field, .. } => parquet::read(path, field, bytes_read, each),
            Wanted::Conversations => parquet::read_conversations(path, bytes_read, each),
        };
    }
    let unit = match wanted {
        Wanted::Texts { unit, .. } => unit,
        Wanted::Conversations => TextUnit::default(),
    };
    let mut reader = open(path, bytes_read)?;
    match (format(path)?, unit) {
        (Format::Text, TextUnit::File) => {
            let mut bytes = Vec::new();
            reader.read_to_end(&mut bytes).map_err(disk::reading(path))?;
            each(Portion::Texts(vec![lines::text_of(path, bytes)?]));
            Ok(())
        }
        (Format::Text, TextUnit::Paragraph) => lines::read_paragraphs(path, reader, each),
        (Format::Records, _) => records::read_records(path, reader, each),
        _ => lines::read_lines(path, reader, each),
    }
}

/// The texts in the first bytes of inputs: enough to train a tokenizer.
pub fn read_texts(
    inputs: &[PathBuf],
    field: &str,
    unit: TextUnit,
    most_bytes: usize,
) -> Result<Vec<String>, DataError> {
    let mut texts = Vec::new();
    let mut bytes = 0;
    for file in find_files(inputs)? {
        let mut failure = None;
        let mut each = |portion: Portion| match portion.texts(field) {
            Ok(found) => {
                bytes += found.iter().map(String::len).sum::<usize>();
                texts.extend(found);
                bytes < most_bytes
            }
            Err(error) => {
                failure = Some(error);
                false
            }
        };
        read(&file, Wanted::Texts { field, unit }, &AtomicU64::new(0), &mut each)?;
        if let Some(error) = failure {
            return Err(error);
        }
    }
    Ok(texts)
}

impl Portion {
    fn texts(self, field: &str) -> Result<Vec<String>, DataError> {
        match &self {
            Portion::Texts(texts) => Ok(texts.clone()),
            Portion::Paragraphs(text) => Ok(paragraphs(text).map(str::to_owned).collect()),
            Portion::Lines { .. } | Portion::Records { .. } => {
                let text_of = |(file, number, line): (&str, usize, &str)| {
                    let text = record::parse(line)
                        .and_then(|record| record::text_of(&record, field).map(str::to_owned));
                    text.map_err(|reason| DataError::BadRecord {
                        reason,
                        place: record::place(file, number, line),
                    })
                };
                self.records().map(text_of).collect()
            }
        }
    }

    /// The records of JSON portions, with file and line.
    pub(crate) fn records(&self) -> Box<dyn Iterator<Item = (&str, usize, &str)> + '_> {
        match self {
            Portion::Lines { file, first_line, text } => {
                let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
                Box::new(lines.map(move |(at, line)| (&**file, first_line + at, line)))
            }
            Portion::Records { file, records } => {
                Box::new(records.iter().map(move |(number, text)| (&**file, *number, text.as_str())))
            }
            Portion::Texts(_) | Portion::Paragraphs(_) => Box::new(std::iter::empty()),
        }
    }
}

fn format(path: &Path) -> Result<Format, DataError> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let plain = name.strip_suffix(".gz").or_else(|| name.strip_suffix(".zst")).unwrap_or(name);
    match plain.rsplit_once('.').map(|(_, ending)| ending) {
        Some("txt" | "md") => Ok(Format::Text),
        Some("jsonl" | "ndjson") => Ok(Format::Lines),
        Some("json") => Ok(Format::Records),
        Some("parquet") if plain == name => Ok(Format::Parquet),
        _ => Err(DataError::UnknownInput { path: path.to_owned() }),
    }
}

/// Some editors begin a text in UTF-8 with it.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Opens a file and decompresses it while reading.
fn open<'a>(path: &Path, bytes_read: &'a AtomicU64) -> Result<Box<dyn BufRead + 'a>, DataError> {
    let file = open_regular(path).map_err(disk::reading(path))?;
    let counted = BufReader::with_capacity(1 << 18, Counted { file, bytes_read });
    let mut reader: Box<dyn BufRead + 'a> = match path.extension().and_then(|ending| ending.to_str()) {
        Some("gz") => {
            Box::new(BufReader::with_capacity(1 << 18, flate2::bufread::MultiGzDecoder::new(counted)))
        }
        Some("zst") => {
            let decoder = zstd::Decoder::with_buffer(counted).map_err(disk::reading(path))?;
            Box::new(BufReader::with_capacity(1 << 18, decoder))
        }
        _ => Box::new(counted),
    };
    if reader.fill_buf().map_err(disk::reading(path))?.starts_with(BYTE_ORDER_MARK) {
        reader.consume(BYTE_ORDER_MARK.len());
    }
    Ok(reader)
}

/// A file that reports how far it was read.
struct Counted<'a> {
    file: File,
    bytes_read: &'a AtomicU64,
}

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.file.read(buffer)?;
        self.bytes_read.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_order_mark_is_no_part_of_a_text() {
        let folder = tempfile::tempdir().unwrap();
        let texts = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            fs::write(&path, bytes).unwrap();
            read_texts(&[path], "text", TextUnit::File, usize::MAX).unwrap()
        };
        assert_eq!(
            texts("a.jsonl", b"\xef\xbb\xbf{\"text\": \"one\"}\n{\"text\": \"two\"}\n"),
            ["one", "two"]
        );
        assert_eq!(texts("a.json", b"\xef\xbb\xbf[{\"text\": \"one\"}]"), ["one"]);
        assert_eq!(texts("a.txt", b"\xef\xbb\xbfone"), ["one"]);
        assert_eq!(texts("b.txt", b"\xef\xbb"[..0].as_ref()), [""]);
    }
}
