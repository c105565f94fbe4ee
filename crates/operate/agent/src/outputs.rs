//! Which files the streams of ranks go to.
//!
//! A job may name files of its own; otherwise streams are captured in the run's directory. All ranks open them to
//! append, so that several may share one, and a run that does not continue earlier ones empties them before any rank
//! of any node starts.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use bedplate_control::wire::{Launch, LogStream, Unready};
use bedplate_host::{LinkPolicy, Opening, OwnFolder, open_regular, open_regular_for, read_whole};
use bedplate_job::{ArrayMember, FileNames};
use serde::{Deserialize, Serialize};

use crate::identity::Identity;

/// The name of the file that remembers where a run's output went, for as long as its logs are kept.
const REMEMBERED: &str = "outputs.json";
/// The names of the files of some 10,000 ranks.
const LONGEST_REMEMBERED: u64 = 16 << 20;

/// The job's own files and directory on this node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Outputs {
    pub(crate) directory: String,
    pub(crate) by_rank: BTreeMap<u32, RankOutputs>,
    /// With whose rights the job's own files are read.
    #[serde(default)]
    pub(crate) identity: Option<Identity>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RankOutputs {
    pub(crate) stdin: Option<String>,
    pub(crate) stdout: Option<String>,
    pub(crate) stderr: Option<String>,
}

impl Outputs {
    /// The job's own file for a stream, if it named one. A job that names one for `stdout` alone means both.
    pub(crate) fn find(&self, rank: u32, stream: LogStream) -> Option<&str> {
        let outputs = self.by_rank.get(&rank)?;
        match stream {
            LogStream::Stdout => outputs.stdout.as_deref(),
            LogStream::Stderr => outputs.stderr.as_deref().or(outputs.stdout.as_deref()),
        }
    }

    pub(crate) fn remember(&self, run_directory: &Path) {
        let named = self.by_rank.values().any(|outputs| outputs.stdout.is_some() || outputs.stderr.is_some());
        if named && let Ok(text) = serde_json::to_vec(self) {
            // Without it the job's own files are still there; only reading them through the agent is not.
            let _ = OwnFolder::open(run_directory).and_then(|folder| folder.remove(REMEMBERED.as_ref()));
            let path = run_directory.join(REMEMBERED);
            let file = open_regular_for(Opening::Append { mode: 0o600 }, &path, LinkPolicy::Refuse);
            let _ = file.and_then(|mut file| file.write_all(&text));
        }
    }

    pub(crate) fn recall(run_directory: &Path) -> Option<Self> {
        let path = run_directory.join(REMEMBERED);
        let file = open_regular_for(Opening::Read, &path, LinkPolicy::Refuse).ok()?;
        serde_json::from_slice(&read_whole(file, LONGEST_REMEMBERED).ok()?).ok()
    }
}

/// Looks whether the job's directory is there, or else `own_directory`, and its files can be opened. Blocks as long as the
/// file system does.
pub(crate) fn check(launch: &Launch, own_directory: &Path) -> Result<Outputs, Unready> {
    let directory = working_directory(launch, own_directory)?;
    let mut outputs = Outputs { directory: directory.display().to_string(), ..Outputs::default() };
    let mut opened = BTreeSet::new();
    for rank in &launch.ranks {
        let path = |pattern: &Option<String>| {
            let name = pattern.as_ref().map(|pattern| file_name(pattern, launch, *rank)).transpose()?;
            Ok(name.map(|name| directory.join(name).display().to_string()))
        };
        let files = RankOutputs {
            stdin: path(&launch.stdin)?,
            stdout: path(&launch.stdout)?,
            stderr: path(&launch.stderr)?,
        };
        if let Some(path) = &files.stdin {
            readable(path).map_err(|error| job_fault(format!("cannot read {path}: {error}")))?;
        }
        for path in files.stdout.iter().chain(&files.stderr) {
            if opened.insert(path.clone()) {
                open(path, launch.appends)?;
            }
        }
        outputs.by_rank.insert(*rank, files);
    }
    Ok(outputs)
}

/// The job's directory must be there; where it was submitted need not be.
fn working_directory(launch: &Launch, own_directory: &Path) -> Result<PathBuf, Unready> {
    if let Some(directory) = &launch.directory {
        return match fs::metadata(directory) {
            Ok(metadata) if metadata.is_dir() => Ok(directory.into()),
            Ok(_) => Err(job_fault(format!("its directory {directory} is a file"))),
            Err(error) => Err(job_fault(format!("its directory {directory} cannot be used: {error}"))),
        };
    }
    let submitted = launch.facts.submit_directory.as_ref().map(PathBuf::from);
    Ok(submitted.filter(|directory| directory.is_dir()).unwrap_or_else(|| own_directory.to_owned()))
}

/// A pipe or a device is the rank's own affair: opening it may wait for a peer.
fn readable(path: &str) -> io::Result<()> {
    match fs::metadata(path)?.is_file() {
        true => open_regular(path.as_ref()).map(drop),
        false => Ok(()),
    }
}

fn open(path: &str, appends: bool) -> Result<(), Unready> {
    let unwritable = |error| job_fault(format!("cannot write {path}: {error}"));
    if fs::metadata(path).is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir()) {
        return Ok(());
    }
    let file = open_regular_for(Opening::Append { mode: 0o666 }, path.as_ref(), LinkPolicy::Follow);
    let file = file.map_err(unwritable)?;
    if !appends {
        file.set_len(0).map_err(unwritable)?;
    }
    Ok(())
}

fn job_fault(why: String) -> Unready {
    Unready::Job { why }
}

/// The file that a pattern stands for, for one rank.
fn file_name(pattern: &str, launch: &Launch, rank: u32) -> Result<String, Unready> {
    let here = launch.peers.get(launch.node_index as usize).map_or("", |peer| peer.name.as_str());
    let names = FileNames {
        job: launch.run.job,
        array: launch.facts.array.map(|(array, index)| ArrayMember { array, index }),
        name: &launch.job_name,
        user: &launch.user,
        host: here,
        node: launch.node_index,
        task: rank,
        step: "batch",
    };
    names.expand(pattern).map_err(|error| job_fault(error.to_string()))
}
