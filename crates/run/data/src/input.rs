//! Reading inputs in portions for workers to parse: text, JSON lines, Parquet, compressed or not.

mod lines;
mod parquet;
pub(crate) mod record;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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
    Parquet,
}

/// The files that a user's path means: a file itself, or all files of a folder with a known extension,
/// ordered by name.
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
        } else if format(&path).is_ok() {
            files.push(path);
        }
    }
    Ok(())
}

/// Hands the portions of a file to `each`, until it asks to stop.
pub(crate) fn read(
    path: &Path,
    field: &str,
    unit: TextUnit,
    bytes_read: &AtomicU64,
    each: &mut dyn FnMut(Portion) -> bool,
) -> Result<(), DataError> {
    if format(path)? == Format::Parquet {
        return parquet::read(path, field, bytes_read, each);
    }
    let mut reader = open(path, bytes_read)?;
    match (format(path)?, unit) {
        (Format::Text, TextUnit::File) => {
            let mut bytes = Vec::new();
            reader.read_to_end(&mut bytes).map_err(disk::reading(path))?;
            each(Portion::Texts(vec![lines::text_of(path, bytes)?]));
            Ok(())
        }
        (Format::Text, TextUnit::Paragraph) => lines::read_paragraphs(path, reader, each),
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
        read(&file, field, unit, &AtomicU64::new(0), &mut each)?;
        if let Some(error) = failure {
            return Err(error);
        }
    }
    Ok(texts)
}

impl Portion {
    fn texts(self, field: &str) -> Result<Vec<String>, DataError> {
        match self {
            Portion::Texts(texts) => Ok(texts),
            Portion::Paragraphs(text) => Ok(paragraphs(&text).map(str::to_owned).collect()),
            Portion::Lines { file, first_line, text } => {
                let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
                let text_of = |(at, line): (usize, &str)| {
                    let text = record::parse(line)
                        .and_then(|record| record::text_of(&record, field).map(str::to_owned));
                    text.map_err(|reason| DataError::BadRecord {
                        reason,
                        place: record::place(&file, first_line + at, line),
                    })
                };
                lines.map(text_of).collect()
            }
        }
    }
}

fn format(path: &Path) -> Result<Format, DataError> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let plain = name.strip_suffix(".gz").or_else(|| name.strip_suffix(".zst")).unwrap_or(name);
    match plain.rsplit_once('.').map(|(_, ending)| ending) {
        Some("txt" | "md") => Ok(Format::Text),
        Some("jsonl" | "ndjson") => Ok(Format::Lines),
        Some("parquet") if plain == name => Ok(Format::Parquet),
        _ => Err(DataError::UnknownInput { path: path.to_owned() }),
    }
}

/// Opens a file and decompresses it while reading.
fn open<'a>(path: &Path, bytes_read: &'a AtomicU64) -> Result<Box<dyn BufRead + 'a>, DataError> {
    let file = File::open(path).map_err(disk::reading(path))?;
    let counted = BufReader::with_capacity(1 << 18, Counted { file, bytes_read });
    Ok(match path.extension().and_then(|ending| ending.to_str()) {
        Some("gz") => {
            Box::new(BufReader::with_capacity(1 << 18, flate2::bufread::MultiGzDecoder::new(counted)))
        }
        Some("zst") => {
            let decoder = zstd::Decoder::with_buffer(counted).map_err(disk::reading(path))?;
            Box::new(BufReader::with_capacity(1 << 18, decoder))
        }
        _ => Box::new(counted),
    })
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
