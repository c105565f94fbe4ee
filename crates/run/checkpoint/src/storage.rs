//! Where checkpoints lie: a directory, or a prefix of a bucket.

mod bucket;
mod folder;

use crate::CheckpointError;
use crate::buffer::Buffer;
use crate::chunks::ChunkSizes;
use bedplate_host::clock;
use bucket::Bucket;
use folder::FolderStorage;
use std::fmt::Debug;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) const MANIFEST_FILE: &str = "manifest.json";
const UNFINISHED: &str = "unfinished-";

/// Texts longer than this are none of ours.
const LONGEST_TEXT: u64 = 512 << 20;

/// What a place for checkpoints must be able to do. Paths are relative to it, with `/` between names.
pub(crate) trait Storage: Send + Sync + Debug {
    /// Folders that may hold a checkpoint, sorted.
    fn names(&self) -> io::Result<Vec<String>>;
    fn read_text(&self, path: &str) -> io::Result<Vec<u8>>;
    fn size(&self, path: &str) -> io::Result<u64>;
    /// Bytes from an offset on, as many as fit.
    fn read(&self, path: &str, offset: u64, into: &mut [u8]) -> io::Result<()>;
    /// Removes what was left of earlier attempts.
    fn clear(&self) -> io::Result<()>;
    fn make_room(&self, attempt: &Attempt) -> io::Result<()>;
    fn part(&self, attempt: &Attempt, file: &str, sizes: ChunkSizes) -> io::Result<Box<dyn PartFile>>;
    /// A file of an attempt, as the published checkpoint will call it.
    fn path_in_checkpoint(&self, attempt: &Attempt, file: &str) -> String;
    /// Writes the manifest and gives the attempt its name, both durable.
    fn publish(&self, attempt: &Attempt, name: &str, manifest: &[u8]) -> io::Result<()>;
    fn discard(&self, attempt: &Attempt);
    fn exists(&self, name: &str) -> io::Result<bool>;
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Takes a checkpoint out of the list, to `aside` where folders can move.
    fn set_aside(&self, name: &str, aside: &Path) -> io::Result<()>;
    /// The directory, where it is one.
    fn directory(&self) -> Option<&Path>;
    /// The smallest chunk where a part has several.
    fn least_chunk(&self) -> u64;
}

/// A file that is written chunk by chunk, by several threads at once.
pub(crate) trait PartFile: Send + Sync + Debug {
    /// Writes a chunk: the first bytes of a buffer, whose rest may be changed.
    fn put(&self, index: u64, bytes: usize, buffer: &mut Buffer) -> io::Result<()>;
    /// Makes the file durable, after all its chunks.
    fn finish(&self) -> io::Result<()>;
    fn abandon(&self);
}

/// A place for checkpoints.
#[derive(Debug, Clone)]
pub struct Store {
    address: String,
    storage: Arc<dyn Storage>,
}

impl Store {
    /// A directory, or `s3://bucket/prefix` with the endpoint and credentials of the `AWS_…` variables.
    pub fn open(address: &str) -> Result<Self, CheckpointError> {
        let Some(rest) = address.strip_prefix("s3://") else {
            return Ok(Self::folder(Path::new(address)));
        };
        let bad =
            |what: &str| CheckpointError::Address { address: address.to_owned(), what: what.to_owned() };
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() {
            return Err(bad("it names no bucket"));
        }
        let prefix = prefix.trim_end_matches('/');
        if !prefix.is_empty() && prefix.split('/').any(|name| name.is_empty() || name == "." || name == "..")
        {
            return Err(bad("its prefix has an empty name, `.` or `..`"));
        }
        let opened = Bucket::open(bucket, prefix).map_err(|error| bad(&error.to_string()))?;
        let address = address.trim_end_matches('/').to_owned();
        Ok(Self { address, storage: Arc::new(opened) })
    }

    pub fn folder(path: &Path) -> Self {
        let address = path.to_string_lossy().into_owned();
        Self { address, storage: Arc::new(FolderStorage::new(path)) }
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    /// The directory, where it is one.
    pub fn directory(&self) -> Option<&Path> {
        self.storage.directory()
    }

    pub(crate) fn storage(&self) -> &dyn Storage {
        &*self.storage
    }

    /// How people call something in this store.
    pub(crate) fn place(&self, name: &str) -> String {
        match name {
            "" => self.address.clone(),
            name => format!("{}/{name}", self.address.trim_end_matches('/')),
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        match self.storage.directory() {
            Some(directory) => directory.join(name),
            None => self.place(name).into(),
        }
    }
}

/// A try at writing a checkpoint, which all ranks must share. Its text is unlike that of any other try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    step: u64,
    id: String,
}

impl Attempt {
    pub fn new(step: u64) -> Self {
        Self { step, id: format!("{:x}-{:x}", clock::unix_time().as_nanos(), std::process::id()) }
    }

    pub fn step(&self) -> u64 {
        self.step
    }

    /// For other ranks.
    pub fn to_text(&self) -> String {
        format!("{} {}", self.step, self.id)
    }

    pub fn from_text(text: &str) -> Option<Self> {
        let (step, id) = text.split_once(' ')?;
        let is_plain = !id.is_empty() && id.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
        Some(Self { step: step.parse().ok().filter(|_| is_plain)?, id: id.to_owned() })
    }

    /// The name of its checkpoint.
    pub(crate) fn name(&self) -> String {
        name_of(self.step)
    }

    fn unfinished(&self) -> String {
        format!("{UNFINISHED}{:08}-{}", self.step, self.id)
    }
}

pub(crate) fn name_of(step: u64) -> String {
    format!("step-{step:08}")
}
