//! What a launch remembers when the scheduler starts its job again: the newest checkpoint and the nodes left out.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bedplate_host::replace_file;
use bedplate_report::Checkpoint;
use serde::{Deserialize, Serialize};

use crate::LaunchError;

/// Nothing longer is a record of ours.
const LONGEST: u64 = 16 << 20;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchRecord {
    #[serde(default)]
    pub checkpoint: Option<Checkpoint>,
    /// Nodes that the job had when it first started, spares included.
    #[serde(default)]
    pub nodes: usize,
    /// Runs that were started so far.
    #[serde(default)]
    pub runs: u32,
    /// Failures of the job's own so far.
    #[serde(default)]
    pub failures: u32,
    /// How often the job went back to the queue since its newest checkpoint.
    #[serde(default)]
    pub returns: u32,
    /// Nodes that are not used again, and why.
    #[serde(default)]
    pub out: BTreeMap<String, String>,
}

/// The file of one job's record.
#[derive(Debug, Clone)]
pub(crate) struct RecordFile {
    path: PathBuf,
}

impl RecordFile {
    pub(crate) fn new(folder: &Path, job: u64) -> Self {
        Self { path: folder.join(format!("launch-{job}.json")) }
    }

    /// What is recorded. A job that starts for the first time has nothing, even where a former job of its number left a file.
    pub(crate) fn read(&self, is_first_start: bool) -> Result<LaunchRecord, LaunchError> {
        if is_first_start {
            return Ok(LaunchRecord::default());
        }
        match fs::metadata(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(LaunchRecord::default()),
            Ok(metadata) if metadata.is_file() && metadata.len() <= LONGEST => {
                let text = fs::read(&self.path).map_err(|source| self.error(source))?;
                serde_json::from_slice(&text).map_err(|error| self.error(error.into()))
            }
            Ok(_) => Err(self.error(io::ErrorKind::InvalidData.into())),
            Err(source) => Err(self.error(source)),
        }
    }

    /// A crash of this process or of the host leaves the old record or the new one, whole.
    pub(crate) fn write(&self, record: &LaunchRecord) -> Result<(), LaunchError> {
        let text = serde_json::to_vec_pretty(record).map_err(|error| self.error(error.into()))?;
        let folder = self.path.parent().map_or(Ok(()), fs::create_dir_all);
        folder.and_then(|()| replace_file(&self.path, &text)).map_err(|source| self.error(source))
    }

    /// The job has ended for good.
    pub(crate) fn remove(&self) {
        let _ = fs::remove_file(&self.path);
    }

    fn error(&self, source: io::Error) -> LaunchError {
        LaunchError::Record { path: self.path.clone(), source }
    }
}
