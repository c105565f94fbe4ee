//! Reading and replacing files, with errors that name them.

use std::io;
use std::path::Path;

use bedplate_host::{read_regular_text, replace_file};

use crate::error::DataError;

/// A whole file at once, durable when this returns.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<(), DataError> {
    replace_file(path, bytes).map_err(writing(path))
}

/// The largest tokenizer or index of a corpus: Gemma 3's `tokenizer.json`, of 262,144 tokens, has 33 MB.
const MOST_BYTES: u64 = 256 << 20;

pub(crate) fn read_text(path: &Path) -> Result<String, DataError> {
    read_regular_text(path, MOST_BYTES).map_err(reading(path))
}

pub(crate) fn reading(path: &Path) -> impl FnOnce(io::Error) -> DataError {
    move |source| DataError::Read { path: path.to_owned(), source }
}

pub(crate) fn writing(path: &Path) -> impl FnOnce(io::Error) -> DataError {
    move |source| DataError::Write { path: path.to_owned(), source }
}
