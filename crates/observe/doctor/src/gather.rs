//! Reading a node: files under roots that tests can replace, and commands that are given up after a while.
//!
//! No library of the stack is loaded and no Python is started: versions are read from file names, package metadata and the
//! text inside libraries. What is missing is left out; nothing here fails.

mod command;
mod devices;
mod gpus;
mod libraries;
mod limits;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use bedplate_host::read_beginning;
pub use gpus::parse_nvidia_smi;

use crate::facts::{NodeFacts, UnreadSource};

/// Where a node is read from.
#[derive(Debug, Clone)]
pub struct Sources {
    /// Everything is below it: `/`, or a folder of a test.
    pub root: PathBuf,
    pub environment: BTreeMap<String, String>,
    /// The commands `nvidia-smi`, by name or path.
    pub nvidia_smi: PathBuf,
    /// How long a command may take.
    pub patience: Duration,
    pub node: String,
    /// A process whose limits count: `self`, or a pid.
    pub process: String,
}

impl Sources {
    /// This machine, as this process sees it.
    pub fn this(node: String) -> Self {
        Self {
            root: PathBuf::from("/"),
            environment: std::env::vars_os()
                .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
                .collect(),
            nvidia_smi: PathBuf::from("nvidia-smi"),
            patience: Duration::from_secs(20),
            node,
            process: "self".to_owned(),
        }
    }

    /// A path below the root.
    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// A small text file, trimmed; the files of a kernel have no size to trust.
    fn text(&self, path: &str) -> Option<String> {
        read_text(&self.at(path))
    }
}

const LARGEST_TEXT: u64 = 4 << 20;
/// No file of a kernel or package has longer lines.
const LONGEST_LINE: usize = 16 << 10;

fn read_text(path: &Path) -> Option<String> {
    let bytes = read_beginning(path, LARGEST_TEXT).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let text = text.trim();
    if text.lines().all(|line| line.len() <= LONGEST_LINE) {
        return Some(text.to_owned());
    }
    // No such file: what is kept of it is told to others.
    let beginnings = text.lines().map(|line| line.chars().take(LONGEST_LINE).collect::<String>());
    Some(beginnings.collect::<Vec<String>>().join("\n"))
}

/// Names in a folder, sorted; none where it cannot be read.
fn names(folder: &Path) -> Vec<String> {
    const MOST: usize = 100_000;
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.flatten().take(MOST).filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    names
}

/// Reads a node.
pub fn gather(sources: &Sources) -> NodeFacts {
    let mut facts = NodeFacts { node: sources.node.clone(), ..NodeFacts::default() };
    for (name, read) in FILES {
        facts = within_patience(sources, facts, name, read);
    }
    facts.environment = of_interest(&sources.environment);
    if facts.has_gpus() || facts.has_module("nvidia") {
        gpus::gather(sources, &mut facts);
    }
    facts
}

/// What reads one kind of files.
type Reading = fn(&Sources, &mut NodeFacts);

const FILES: [(&str, Reading); 3] =
    [("devices", devices::gather), ("limits", limits::gather), ("libraries", libraries::gather)];

/// Reads on a thread of its own, which is left behind where a file system or a driver does not answer.
fn within_patience(sources: &Sources, facts: NodeFacts, name: &str, read: Reading) -> NodeFacts {
    let (mut read_into, of_thread) = (facts.clone(), sources.clone());
    // Reading has a limit of its own for folders; this one is for what it does not see coming.
    let patience = 3 * sources.patience;
    let outcome = answer_within(patience, move || {
        read(&of_thread, &mut read_into);
        read_into
    });
    outcome.unwrap_or_else(|| {
        let mut facts = facts;
        remark(&mut facts, name, format!("a file does not answer within {} s", patience.as_secs()));
        facts
    })
}

/// What a thread finds in time.
fn answer_within<T: Send + 'static>(
    patience: Duration,
    find: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (tell, told) = mpsc::channel();
    let thread = thread::Builder::new().name("doctor".to_owned());
    thread.spawn(move || drop(tell.send(find()))).ok()?;
    told.recv_timeout(patience).ok()
}

/// Variables that concern the stack; others may hold secrets and are not kept.
fn of_interest(environment: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    const PREFIXES: [&str; 10] =
        ["NCCL_", "FI_", "OFI_NCCL_", "CUDA_", "UCX_", "TORCH_", "PYTORCH_", "NVIDIA_", "RDMAV_", "EFA_"];
    let is_wanted =
        |name: &str| PREFIXES.iter().any(|prefix| name.starts_with(prefix)) || name == "LD_LIBRARY_PATH";
    let is_secret =
        |name: &str| ["TOKEN", "SECRET", "PASSWORD", "KEY"].iter().any(|word| name.contains(word));
    let wanted = environment.iter().filter(|(name, _)| is_wanted(name) && !is_secret(name));
    wanted.map(|(name, value)| (name.clone(), value.chars().take(1000).collect())).collect()
}

fn remark(facts: &mut NodeFacts, source: &str, told: impl Into<String>) {
    facts.remarks.push(UnreadSource { source: source.to_owned(), told: told.into() });
}
