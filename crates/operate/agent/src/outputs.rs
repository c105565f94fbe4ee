//! Which files the streams of ranks go to.
//!
//! A job may name files of its own; otherwise streams are captured in the run's directory. All ranks open them to
//! append, so that several may share one, and a run that does not continue earlier ones empties them before any rank
//! of any node starts.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};

use bedplate_control::wire::{Launch, Stream, Unready};
use serde::{Deserialize, Serialize};

/// The name of the file that remembers where a run's output went, for as long as its logs are kept.
const REMEMBERED: &str = "outputs.json";

/// The job's own files and directory on this node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Outputs {
    pub(crate) directory: String,
    pub(crate) by_rank: BTreeMap<u32, RankOutputs>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RankOutputs {
    pub(crate) stdin: Option<String>,
    pub(crate) stdout: Option<String>,
    pub(crate) stderr: Option<String>,
}

impl Outputs {
    /// The job's own file for a stream, if it named one. A job that names one for `stdout` alone means both.
    pub(crate) fn find(&self, rank: u32, stream: Stream) -> Option<&str> {
        let outputs = self.by_rank.get(&rank)?;
        match stream {
            Stream::Stdout => outputs.stdout.as_deref(),
            Stream::Stderr => outputs.stderr.as_deref().or(outputs.stdout.as_deref()),
        }
    }

    pub(crate) fn remember(&self, run_directory: &Path) {
        let named = self.by_rank.values().any(|outputs| outputs.stdout.is_some() || outputs.stderr.is_some());
        if named && let Ok(text) = serde_json::to_vec(self) {
            // Without it the job's own files are still there; only reading them through the agent is not.
            let _ = fs::write(run_directory.join(REMEMBERED), text);
        }
    }

    pub(crate) fn recall(run_directory: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(run_directory.join(REMEMBERED)).ok()?).ok()
    }
}

/// Looks whether the job's directory is there and its files can be opened. Blocks as long as the file system does.
pub(crate) fn check(launch: &Launch, run_directory: &Path) -> Result<Outputs, Unready> {
    let directory = working_directory(launch, run_directory)?;
    let here = launch.peers.get(launch.node_index as usize).map_or("", |peer| peer.name.as_str());
    let mut outputs = Outputs { directory: directory.display().to_string(), by_rank: BTreeMap::new() };
    let mut opened = BTreeSet::new();
    for rank in &launch.ranks {
        let path = |pattern: &Option<String>| {
            let filled = fill(pattern.as_ref()?, *rank, launch.node_index, here);
            Some(directory.join(filled).display().to_string())
        };
        let files = RankOutputs {
            stdin: path(&launch.stdin),
            stdout: path(&launch.stdout),
            stderr: path(&launch.stderr),
        };
        if let Some(path) = &files.stdin {
            File::open(path).map_err(|error| job_fault(format!("cannot read {path}: {error}")))?;
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
fn working_directory(launch: &Launch, run_directory: &Path) -> Result<PathBuf, Unready> {
    if let Some(directory) = &launch.directory {
        return match fs::metadata(directory) {
            Ok(metadata) if metadata.is_dir() => Ok(directory.into()),
            Ok(_) => Err(job_fault(format!("its directory {directory} is a file"))),
            Err(error) => Err(job_fault(format!("its directory {directory} cannot be used: {error}"))),
        };
    }
    let submitted = launch.facts.submit_directory.as_ref().map(PathBuf::from);
    Ok(submitted.filter(|directory| directory.is_dir()).unwrap_or_else(|| run_directory.to_owned()))
}

fn open(path: &str, appends: bool) -> Result<(), Unready> {
    let unwritable = |error| job_fault(format!("cannot write {path}: {error}"));
    let file = OpenOptions::new().append(true).create(true).open(path).map_err(unwritable)?;
    let is_file = file.metadata().is_ok_and(|metadata| metadata.is_file());
    if !appends && is_file {
        file.set_len(0).map_err(unwritable)?;
    }
    Ok(())
}

fn job_fault(why: String) -> Unready {
    Unready::Job { why }
}

/// Fills in what differs between the ranks of a job: `%t`, `%n`, `%N`.
// The patterns of the job format that are the same for all ranks are filled in by the control plane.
pub(crate) fn fill(pattern: &str, rank: u32, node_index: u32, node: &str) -> String {
    let mut filled = String::new();
    let mut rest = pattern.chars();
    while let Some(c) = rest.next() {
        match (c, rest.clone().next()) {
            ('%', Some('t')) => filled += &rank.to_string(),
            ('%', Some('n')) => filled += &node_index.to_string(),
            ('%', Some('N')) => filled += node,
            ('%', Some('%')) => filled.push('%'),
            _ => {
                filled.push(c);
                continue;
            }
        }
        rest.next();
    }
    filled
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_filled_by_rank_and_node() {
        for (pattern, expected) in [
            ("out", "out"),
            ("%t.log", "12.log"),
            ("%N-%n-%t", "n3-3-12"),
            ("100%%", "100%"),
            ("%%t", "%t"),
            ("%q%", "%q%"),
        ] {
            assert_eq!(fill(pattern, 12, 3, "n3"), expected, "{pattern}");
        }
    }
}
