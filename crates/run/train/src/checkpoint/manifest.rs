//! The manifest of a checkpoint: size and checksum of each of its files, written after all of them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::Path;

use serde_json::{Value, json};

use crate::TrainError;

pub(super) const MANIFEST_FILE: &str = "manifest.json";

/// Larger JSON files are none of ours.
const LONGEST_TEXT: u64 = 64 << 20;

/// What is known of the files of a checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Manifest(BTreeMap<String, Entry>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    bytes: u64,
    crc32: u32,
}

impl Manifest {
    /// Writes a file, durable when this returns, and remembers its checksum.
    pub(super) fn write_file(
        &mut self,
        folder: &Path,
        name: &str,
        write: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut file = Summed::new(BufWriter::with_capacity(1 << 20, File::create(folder.join(name))?));
        write(&mut file)?;
        let entry = file.entry();
        file.inner.into_inner().map_err(|error| error.into_error())?.sync_all()?;
        self.0.insert(name.to_owned(), entry);
        Ok(())
    }

    /// Writes the manifest itself, which makes the checkpoint complete. It appears whole or not at all.
    pub(super) fn finish(&self, folder: &Path) -> io::Result<()> {
        let entry = |entry: &Entry| json!({"bytes": entry.bytes, "crc32": format!("{:08x}", entry.crc32)});
        let files: BTreeMap<&String, Value> = self.0.iter().map(|(name, file)| (name, entry(file))).collect();
        let unfinished = folder.join("manifest.unfinished");
        let mut file = File::create(&unfinished)?;
        file.write_all(format!("{:#}\n", json!({ "files": files })).as_bytes())?;
        file.sync_all()?;
        fs::rename(&unfinished, folder.join(MANIFEST_FILE))?;
        File::open(folder)?.sync_all()
    }

    /// The first file of a folder that is not as its manifest says, in words; `None` when all are.
    pub(super) fn flaw(folder: &Path) -> Result<Option<String>, TrainError> {
        let manifest = match read_json(&folder.join(MANIFEST_FILE))? {
            Ok(value) => Self::parse(&value),
            Err(flaw) => return Ok(Some(flaw)),
        };
        let Some(Manifest(files)) = manifest else {
            return Ok(Some(format!("{MANIFEST_FILE} does not list files with sizes and checksums")));
        };
        for (name, expected) in &files {
            let path = folder.join(name);
            match sum_up(&path) {
                Ok(found) if found == *expected => {}
                Ok(found) if found.bytes != expected.bytes => {
                    return Ok(Some(format!(
                        "{name} has {} bytes instead of {}",
                        found.bytes, expected.bytes
                    )));
                }
                Ok(_) => return Ok(Some(format!("{name} is damaged: its checksum is wrong"))),
                Err(source) => return unreadable(&path, source).map(Some),
            }
        }
        Ok(None)
    }

    fn parse(value: &Value) -> Option<Self> {
        let entry = |(name, entry): (&String, &Value)| {
            let is_plain = !name.contains('/') && name != "..";
            let crc32 = u32::from_str_radix(entry["crc32"].as_str()?, 16).ok()?;
            is_plain.then_some((name.clone(), Entry { bytes: entry["bytes"].as_u64()?, crc32 }))
        };
        let files = value["files"].as_object().filter(|files| !files.is_empty())?;
        files.iter().map(entry).collect::<Option<_>>().map(Self)
    }
}

/// A JSON file of a checkpoint, or in words why it is none.
pub(super) fn read_json(path: &Path) -> Result<Result<Value, String>, TrainError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let read = || -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        open(path)?.take(LONGEST_TEXT).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    match read() {
        Ok(bytes) => {
            Ok(serde_json::from_slice(&bytes).map_err(|_| format!("{name} is damaged: it is not JSON")))
        }
        Err(source) => unreadable(path, source).map(Err),
    }
}

/// What is missing or broken is a flaw of the checkpoint; anything else may pass, so nothing may be concluded from it.
fn unreadable(path: &Path, source: io::Error) -> Result<String, TrainError> {
    const BROKEN_SECTOR: i32 = 5;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    match source.kind() {
        io::ErrorKind::NotFound => Ok(format!("{name} is missing")),
        io::ErrorKind::InvalidInput | io::ErrorKind::IsADirectory => Ok(format!("{name} is not a file")),
        _ if source.raw_os_error() == Some(BROKEN_SECTOR) => Ok(format!("{name} cannot be read: {source}")),
        _ => Err(TrainError::ReadCheckpoint { path: path.to_owned(), source }),
    }
}

/// Only regular files are opened: a FIFO in their place would hold up the run.
fn open(path: &Path) -> io::Result<File> {
    match fs::metadata(path)?.is_file() {
        true => File::open(path),
        false => Err(io::ErrorKind::InvalidInput.into()),
    }
}

fn sum_up(path: &Path) -> io::Result<Entry> {
    let mut sum = Summed::new(io::sink());
    let mut file = open(path)?;
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(sum.entry()),
            count => sum.write_all(&buffer[..count])?,
        }
    }
}

/// Passes bytes on and keeps their checksum.
struct Summed<W> {
    inner: W,
    crc: crc32fast::Hasher,
    bytes: u64,
}

impl<W> Summed<W> {
    fn new(inner: W) -> Self {
        Self { inner, crc: crc32fast::Hasher::new(), bytes: 0 }
    }

    fn entry(&self) -> Entry {
        Entry { bytes: self.bytes, crc32: self.crc.clone().finalize() }
    }
}

impl<W: Write> Write for Summed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.crc.update(&bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
