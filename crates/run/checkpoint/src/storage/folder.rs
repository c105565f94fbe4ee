//! A directory of checkpoints. Parts are written past the page cache, many chunks at once, into space that was reserved for them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use bedplate_host::{open_regular, replace_file, sync_folder};
use nix::fcntl::{FallocateFlags, OFlag, fallocate};

use super::{Attempt, LONGEST_TEXT, MANIFEST_FILE, PartFile, Storage, UNFINISHED};
use crate::buffer::Buffer;
use crate::chunks::{BLOCK, ChunkSizes};

#[derive(Debug)]
pub(super) struct FolderStorage(PathBuf);

impl FolderStorage {
    pub(super) fn new(path: &Path) -> Self {
        Self(path.to_owned())
    }

    fn join(&self, path: &str) -> PathBuf {
        if path.is_empty() { self.0.clone() } else { self.0.join(path) }
    }
}

impl Storage for FolderStorage {
    fn names(&self) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(&self.0) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            // A link such as `latest` is another name of a checkpoint, not another checkpoint.
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_folder && !name.starts_with(UNFINISHED) {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    fn read_text(&self, path: &str) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        open_regular(&self.join(path))?.take(LONGEST_TEXT + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > LONGEST_TEXT { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(bytes) }
    }

    fn size(&self, path: &str) -> io::Result<u64> {
        Ok(open_regular(&self.join(path))?.metadata()?.len())
    }

    fn read(&self, path: &str, offset: u64, into: &mut [u8]) -> io::Result<()> {
        open_regular(&self.join(path))?.read_exact_at(into, offset)
    }

    fn clear(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.0).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        Ok(())
    }

    fn make_room(&self, attempt: &Attempt) -> io::Result<()> {
        fs::create_dir_all(self.join(&attempt.unfinished()))
    }

    fn part(&self, attempt: &Attempt, file: &str, sizes: ChunkSizes) -> io::Result<Box<dyn PartFile>> {
        let path = self.join(&attempt.unfinished()).join(file);
        match Part::create(&path, sizes) {
            Ok(part) => Ok(Box::new(part)),
            Err(error) => {
                let _ = fs::remove_file(&path);
                Err(error)
            }
        }
    }

    fn path_in_checkpoint(&self, _attempt: &Attempt, file: &str) -> String {
        file.to_owned()
    }

    fn publish(&self, attempt: &Attempt, name: &str, manifest: &[u8]) -> io::Result<()> {
        let folder = self.join(&attempt.unfinished());
        replace_file(&folder.join(MANIFEST_FILE), manifest)?;
        fs::rename(&folder, self.join(name))?;
        sync_folder(&self.0)
    }

    fn discard(&self, attempt: &Attempt) {
        let _ = fs::remove_dir_all(self.join(&attempt.unfinished()));
    }

    fn exists(&self, name: &str) -> io::Result<bool> {
        self.join(name).try_exists()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.join(from), self.join(to))?;
        sync_folder(&self.0)
    }

    /// It stops being a checkpoint before its files go: a crash half-way leaves nothing that looks damaged.
    fn remove(&self, name: &str) -> io::Result<()> {
        let leaving = self.join(&format!("{UNFINISHED}removed-{name}"));
        fs::rename(self.join(name), &leaving)?;
        fs::remove_dir_all(leaving)
    }

    fn set_aside(&self, name: &str, aside: &Path) -> io::Result<()> {
        fs::rename(self.join(name), aside.join(name))?;
        sync_folder(aside)?;
        sync_folder(&self.0)
    }

    fn directory(&self) -> Option<&Path> {
        Some(&self.0)
    }

    fn least_chunk(&self) -> u64 {
        0
    }
}

#[derive(Debug)]
struct Part {
    path: PathBuf,
    sizes: ChunkSizes,
    file: File,
    /// The same file past the page cache, where the file system can do that.
    direct: Option<File>,
}

impl Part {
    fn create(path: &Path, sizes: ChunkSizes) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).create_new(true).open(path)?;
        reserve(&file, sizes.bytes)?;
        let flags = OFlag::O_DIRECT.bits();
        let direct = OpenOptions::new().write(true).custom_flags(flags).open(path).ok();
        Ok(Self { path: path.to_owned(), sizes, file, direct })
    }
}

/// Takes the room that a file will need, so that a full disk is noticed first and writes can run side by side.
fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    let len = bytes.next_multiple_of(BLOCK).max(BLOCK);
    match fallocate(file.as_fd(), FallocateFlags::empty(), 0, len as i64) {
        Ok(()) => Ok(()),
        Err(nix::Error::EOPNOTSUPP | nix::Error::ENOSYS) => file.set_len(len),
        Err(error) => Err(error.into()),
    }
}

impl PartFile for Part {
    fn put(&self, index: u64, bytes: usize, buffer: &mut Buffer) -> io::Result<()> {
        let offset = index * self.sizes.chunk;
        let padded = bytes.next_multiple_of(BLOCK as usize);
        buffer.bytes_mut(padded)[bytes..].fill(0);
        let direct = self.direct.as_ref().map(|file| file.write_all_at(buffer.bytes(padded), offset));
        match direct {
            Some(Err(error)) if error.kind() == io::ErrorKind::InvalidInput => {}
            Some(outcome) => return outcome,
            None => {}
        }
        self.file.write_all_at(buffer.bytes(padded), offset)
    }

    fn finish(&self) -> io::Result<()> {
        self.file.set_len(self.sizes.bytes)?;
        self.file.sync_all()
    }

    fn abandon(&self) {
        let _ = fs::remove_file(&self.path);
    }
}
