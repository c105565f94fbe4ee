//! Files that exist completely or not at all.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::error::DataError;

/// A file being written: under a temporary name, renamed once it is on disk, removed when given up.
pub(crate) struct Part {
    path: PathBuf,
    neighbour: PathBuf,
    is_published: bool,
}

impl Part {
    pub(crate) fn create(path: &Path) -> Result<(Self, File), DataError> {
        let mut neighbour = path.as_os_str().to_owned();
        neighbour.push(".part");
        let neighbour = PathBuf::from(neighbour);
        let file = File::create(&neighbour).map_err(writing(path))?;
        Ok((Self { path: path.to_owned(), neighbour, is_published: false }, file))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn publish(&mut self, file: &File) -> Result<(), DataError> {
        file.sync_all()
            .and_then(|()| fs::rename(&self.neighbour, &self.path))
            .and_then(|()| sync_folder_of(&self.path))
            .map_err(writing(&self.path))?;
        self.is_published = true;
        Ok(())
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if !self.is_published {
            let _ = fs::remove_file(&self.neighbour);
        }
    }
}

fn sync_folder_of(path: &Path) -> io::Result<()> {
    match path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        Some(folder) => File::open(folder)?.sync_all(),
        None => File::open(".")?.sync_all(),
    }
}

/// A whole file at once, durable when this returns.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<(), DataError> {
    let (mut part, mut file) = Part::create(path)?;
    file.write_all(bytes).map_err(writing(path))?;
    part.publish(&file)
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
