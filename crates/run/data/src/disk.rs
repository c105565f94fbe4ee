//! Reading and replacing files, with errors that name them.

use std::fs;
use std::io;
use std::path::Path;

use bedplate_host::replace_file;

use crate::error::DataError;

/// A whole file at once, durable when this returns.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<(), DataError> {
    replace_file(path, bytes).map_err(writing(path))
}

pub(crate) fn read_text(path: &Path) -> Result<String, DataError> {
    fs::read_to_string(path).map_err(reading(path))
}

pub(crate) fn reading(path: &Path) -> impl FnOnce(io::Error) -> DataError {
    move |source| DataError::Read { path: path.to_owned(), source }
}

pub(crate) fn writing(path: &Path) -> impl FnOnce(io::Error) -> DataError {
    move |source| DataError::Write { path: path.to_owned(), source }
}
