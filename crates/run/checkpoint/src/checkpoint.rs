//! One complete checkpoint, opened by its manifest.

use std::path::Path;

use bedplate_network::Region;

use crate::loading::{ChunkReading, WantedPart};
use crate::storage::MANIFEST_FILE;
use crate::{CheckpointError, Manifest, Published, RunFacts, Store};

/// The file that only checkpoints of earlier releases have.
const OLD_FILE: &str = "state.safetensors";

/// A checkpoint whose manifest has been read and checked. Its files are checked as they are read.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    store: Store,
    name: String,
    manifest: Manifest,
}

impl Checkpoint {
    /// Opens the checkpoint of a folder or an address such as `s3://bucket/prefix/step-00000120`.
    pub fn open(address: &str) -> Result<Self, CheckpointError> {
        Self::in_store(&Store::open(address)?, "")
    }

    /// Opens a checkpoint of a store by its name.
    pub fn in_store(store: &Store, name: &str) -> Result<Self, CheckpointError> {
        let place = store.place(name);
        let path = |file: &str| if name.is_empty() { file.to_owned() } else { format!("{name}/{file}") };
        let is_old = || matches!(store.storage().size(&path(OLD_FILE)), Ok(1..));
        let text = match store.storage().read_text(&path(MANIFEST_FILE)) {
            Ok(text) => text,
            Err(_) if is_old() => return Err(CheckpointError::Old { place }),
            Err(source) => return Err(CheckpointError::reading(&place, MANIFEST_FILE, source)),
        };
        match Manifest::parse(&text) {
            Ok(manifest) => Ok(Self { store: store.clone(), name: name.to_owned(), manifest }),
            Err(_) if is_old() => Err(CheckpointError::Old { place }),
            Err(what) => Err(CheckpointError::Damaged { place, what }),
        }
    }

    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    pub fn facts(&self) -> &RunFacts {
        &self.manifest.facts
    }

    /// Where it lies, for people.
    pub fn place(&self) -> String {
        self.store.place(&self.name)
    }

    pub fn published(&self) -> Published {
        Published { step: self.facts().step, path: self.store.path(&self.name) }
    }

    /// Reads every byte and compares it with the checksums; [`CheckpointError::Damaged`] names the first flaw.
    pub fn verify(&self) -> Result<(), CheckpointError> {
        self.reading().verify()
    }

    /// Hands over the numbers of some regions, whichever regions they are stored in.
    pub fn load(&self, regions: &[Region], wanted: &mut dyn WantedPart) -> Result<(), CheckpointError> {
        self.reading().load(regions, wanted)
    }

    /// A whole tensor, row by row.
    pub fn read(&self, tensor: &str) -> Result<Vec<f32>, CheckpointError> {
        let shape = self.manifest.tensors().get(tensor).copied().unwrap_or_default();
        let mut values = vec![0.0; shape[0] * shape[1]];
        self.load(&[Region::whole(tensor, shape)], &mut Whole(&mut values))?;
        Ok(values)
    }

    fn reading(&self) -> ChunkReading<'_> {
        ChunkReading { store: &self.store, name: &self.name, manifest: &self.manifest }
    }
}

struct Whole<'a>(&'a mut [f32]);

impl WantedPart for Whole<'_> {
    fn write(&mut self, _region: usize, range: std::ops::Range<usize>, values: &[f32]) {
        self.0[range].copy_from_slice(values);
    }
}

/// Whether a folder's files look like a checkpoint's, good or not.
pub(crate) fn looks_like_one(folder: &Path) -> bool {
    let has_any = [MANIFEST_FILE, OLD_FILE, "state.json"].iter().any(|file| folder.join(file).exists());
    let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    folder.is_dir() && (has_any || name.starts_with("step-"))
}
