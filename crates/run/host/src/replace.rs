//! Replacing a file durably: readers see the old content or the new, whole, whatever crashes in between.
//!
//! The new content goes to a neighbour in the same folder, is synced, renamed over the old file, and the folder is synced: without the
//! first sync a power cut may leave an empty file under the final name, without the second the old one. A neighbour is removed when its
//! writer gives up; one that a killed process left has a name of the form `.NAME.XXXXXX.part`.

use std::fs::{self, File, Permissions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

/// What new files may be opened by, before the umask.
const USUAL_MODE: u32 = 0o666;
const PRIVATE_MODE: u32 = 0o600;

/// A file being written beside the one that it will replace. Dropping it without [`Replacement::commit`] leaves the old file as it was.
#[derive(Debug)]
pub struct Replacement {
    file: NamedTempFile,
    path: PathBuf,
}

impl Replacement {
    /// Begins the successor of `path`, with the permissions of the file that is there now.
    pub fn create(path: &Path) -> io::Result<Self> {
        let existing = fs::metadata(path).ok().filter(fs::Metadata::is_file);
        let mode = existing.as_ref().map_or(USUAL_MODE, |existing| existing.permissions().mode());
        let replacement = Self::with_mode(path, mode)?;
        if let Some(existing) = existing {
            // The umask may have taken away what the old file allowed.
            replacement.file.as_file().set_permissions(existing.permissions())?;
        }
        Ok(replacement)
    }

    /// The same, readable and writable by the owner only.
    pub fn create_private(path: &Path) -> io::Result<Self> {
        Self::with_mode(path, PRIVATE_MODE)
    }

    fn with_mode(path: &Path, mode: u32) -> io::Result<Self> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let prefix = format!(".{}.", name.to_string_lossy());
        let mut builder = tempfile::Builder::new();
        builder.prefix(&prefix).suffix(".part").permissions(Permissions::from_mode(mode));
        Ok(Self { file: builder.tempfile_in(folder_of(path))?, path: path.to_owned() })
    }

    /// Where the content is until it is committed.
    pub fn neighbour(&self) -> &Path {
        self.file.path()
    }

    pub fn file(&self) -> &File {
        self.file.as_file()
    }

    /// Makes the content durable and puts it in place. An error leaves the old file, or the new one where only the folder could not be synced.
    pub fn commit(self) -> io::Result<()> {
        self.file.as_file().sync_all()?;
        self.file.persist(&self.path).map_err(|error| error.error)?;
        sync_folder(folder_of(&self.path))
    }
}

impl Write for Replacement {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.as_file_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.as_file_mut().flush()
    }
}

impl Seek for Replacement {
    fn seek(&mut self, position: SeekFrom) -> io::Result<u64> {
        self.file.as_file_mut().seek(position)
    }
}

/// Replaces a whole file durably.
pub fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut replacement = Replacement::create(path)?;
    replacement.write_all(bytes)?;
    replacement.commit()
}

/// The same for a file that only its owner may read.
pub fn replace_private_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut replacement = Replacement::create_private(path)?;
    replacement.write_all(bytes)?;
    replacement.commit()
}

/// Makes the names in a folder durable.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode_of(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_file_is_replaced_whole_and_keeps_its_permissions() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        replace_file(&path, b"old").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        replace_file(&path, b"new").unwrap();
        assert_eq!((fs::read(&path).unwrap(), mode_of(&path)), (b"new".to_vec(), 0o640));
        replace_private_file(&path, b"secret").unwrap();
        assert_eq!(mode_of(&path), 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no neighbour is left");
    }

    #[test]
    fn a_writer_that_gives_up_leaves_the_old_file_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        replace_file(&path, b"old").unwrap();
        let mut replacement = Replacement::create(&path).unwrap();
        replacement.write_all(b"half").unwrap();
        assert!(replacement.neighbour().exists());
        drop(replacement);
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_cannot_be_written_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        assert!(replace_file(&folder.path().join("no/such/folder"), b"").is_err());
        assert!(replace_file(folder.path(), b"").is_err(), "a folder is not replaced");
        assert!(replace_file(Path::new("/"), b"").is_err());
    }
}
