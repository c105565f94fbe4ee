//! Reading what the user names: a file, or standard input as `-`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use bedplate_diag::{Diagnostic, Page, Place, Source, pages};
use bedplate_host::{open_regular, read_regular_text, replace_file};
use bedplate_units::Bytes;

/// The node list of a very large cluster has a few hundred megabytes; more is a mistake.
const LARGEST: u64 = 1 << 30;
/// The logs of a large job have some gigabytes.
const LARGEST_LOG: u64 = 64 << 30;
const LONGEST_LINE: u64 = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("cannot read `{path}`")]
    Read { path: String, source: io::Error },
    #[error("cannot write `{path}`")]
    Write { path: String, source: io::Error },
    #[error("`{path}` has more than {most}, the largest input allowed")]
    TooLarge { path: String, most: Bytes },
    #[error("`{path}` is not text: byte {offset} is not UTF-8")]
    NotText { path: String, offset: usize, place: Place },
}

pages! { pub PAGES "file":
    READ "read" User
        "A file named on the command line could not be read: it does not exist, is a directory or another thing that is no regular file, or you may not read it."
        "check the path and its permissions; `-` reads standard input"
    WRITE "write" User
        "A file could not be written. Existing files are unchanged."
        "check that the folder exists, is writable and has room"
    TOO_LARGE "too-large" User
        "The input is larger than any sensible one, so it was not read to the end."
        "check that this is the file you meant"
    NOT_TEXT "not-text" User
        "The input is not UTF-8 text; perhaps it is compressed, binary, or in another encoding."
        "unpack it, or convert it to UTF-8 with `iconv -t utf-8`"
}

impl Diagnostic for FileError {
    fn page(&self) -> &'static Page {
        match self {
            FileError::Read { .. } => &READ,
            FileError::Write { .. } => &WRITE,
            FileError::TooLarge { .. } => &TOO_LARGE,
            FileError::NotText { .. } => &NOT_TEXT,
        }
    }

    fn place(&self) -> Option<&Place> {
        match self {
            FileError::NotText { place, .. } => Some(place),
            _ => None,
        }
    }
}

/// The whole text of a file, or of standard input when the path is `-`.
pub fn read_text(path: &str) -> Result<String, FileError> {
    let mut bytes = Vec::new();
    let read = match path {
        "-" => io::stdin().lock().take(LARGEST + 1).read_to_end(&mut bytes),
        _ => File::open(path).and_then(|file| file.take(LARGEST + 1).read_to_end(&mut bytes)),
    };
    read.map_err(|source| FileError::Read { path: path.to_owned(), source })?;
    if bytes.len() as u64 > LARGEST {
        return Err(too_large(path, LARGEST));
    }
    text_of(path, bytes)
}

/// The same of a file that a stranger may have made: a regular one, whose size is known to be bearable before it is read.
pub fn read_small_text(path: &str, most_bytes: u64) -> Result<String, FileError> {
    if path == "-" {
        return read_text(path);
    }
    read_regular_text(Path::new(path), most_bytes).map_err(|source| match source.kind() {
        io::ErrorKind::FileTooLarge => too_large(path, most_bytes),
        _ => FileError::Read { path: path.to_owned(), source },
    })
}

fn too_large(path: &str, most: u64) -> FileError {
    FileError::TooLarge { path: path.to_owned(), most: Bytes::new(most as f64) }
}

fn text_of(path: &str, bytes: Vec<u8>) -> Result<String, FileError> {
    String::from_utf8(bytes).map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        let good = String::from_utf8_lossy(&error.as_bytes()[..offset]).into_owned();
        FileError::NotText { path: path.to_owned(), offset, place: Source::new(path, &good).place(offset) }
    })
}

/// Hands over the lines of a regular file that may be larger than memory; bytes that are not UTF-8 are replaced. A line without
/// end is cut into pieces.
pub fn read_lines(path: &str, mut line: impl FnMut(&str)) -> Result<(), FileError> {
    let failed = |source| FileError::Read { path: path.to_owned(), source };
    let source: Box<dyn Read> = match path {
        "-" => Box::new(io::stdin().lock()),
        _ => Box::new(open_regular(Path::new(path)).map_err(failed)?),
    };
    let mut reader = BufReader::new(source.take(LARGEST_LOG + 1));
    let mut left = LARGEST_LOG;
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        let count = reader.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut bytes).map_err(failed)?;
        if count == 0 {
            return Ok(());
        }
        left = left.checked_sub(count as u64).ok_or_else(|| too_large(path, LARGEST_LOG))?;
        line(&String::from_utf8_lossy(&bytes));
    }
}

/// The files of a folder, with the time and size that tell whether one has changed.
pub type Seen = BTreeMap<OsString, (Option<SystemTime>, u64)>;

/// What a folder has now; nothing where it cannot be read.
pub fn seen(folder: &Path) -> Seen {
    let about = |entry: fs::DirEntry| {
        let about = fs::metadata(entry.path()).ok()?;
        Some((entry.file_name(), (about.modified().ok(), about.len())))
    };
    fs::read_dir(folder).into_iter().flatten().flatten().filter_map(about).collect()
}

/// The path that means the same in every folder, of something that must exist.
pub fn absolute(path: &Path) -> Result<String, FileError> {
    let whole = fs::canonicalize(path).map(|path| path.display().to_string());
    whole.map_err(|source| FileError::Read { path: path.display().to_string(), source })
}

/// A file in which the operating system describes itself; `None` if it is missing.
pub fn read_system(path: &str) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// Replaces a whole file durably, so that no half-written file is left. Links are followed,
/// permissions kept, and anything but a regular file (a device, a pipe) is written directly.
pub fn write_text(path: &str, text: &str) -> Result<(), FileError> {
    let failed = |source| FileError::Write { path: path.to_owned(), source };
    let target = fs::canonicalize(path).unwrap_or_else(|_| PathBuf::from(path));
    if fs::metadata(&target).is_ok_and(|existing| !existing.is_file()) {
        let mut stream = OpenOptions::new().write(true).open(&target).map_err(failed)?;
        return stream.write_all(text.as_bytes()).map_err(failed);
    }
    replace_file(&target, text.as_bytes()).map_err(failed)
}

/// The same for a file of our own, whose folder is created if missing.
pub fn write_own(path: &Path, text: &str) -> Result<(), FileError> {
    let name = path.display().to_string();
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(|source| FileError::Write { path: name.clone(), source })?;
    }
    write_text(&name, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn writing_keeps_links_permissions_and_devices() {
        let folder = std::env::temp_dir().join(format!("bedplate-files-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (file, link) = (folder.join("file"), folder.join("link"));
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        symlink(&file, &link).unwrap();
        write_text(link.to_str().unwrap(), "new").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        write_text("/dev/null", "gone").unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 2, "nothing else is left behind");
        assert!(write_text(folder.join("no/such/place").to_str().unwrap(), "x").is_err());
        fs::remove_dir_all(&folder).unwrap();
    }
}
