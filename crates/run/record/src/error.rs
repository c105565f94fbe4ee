//! What can go wrong with records, and the pages that explain it.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use bedplate_diag::{Diagnostic, Page, pages};

#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error("cannot create {}", .path.display())]
    Create { path: PathBuf, source: io::Error },
    #[error("cannot write to {}", .path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot remove the steps after {step} from {}", .path.display())]
    Resume { path: PathBuf, step: u64, source: io::Error },
    #[error("line {line} of {} is not a record of a step", .path.display())]
    NotARecord { path: PathBuf, line: usize },
    #[error("metrics would be offered to other machines at {address}")]
    NotLoopback { address: SocketAddr },
    #[error("cannot offer metrics at {address}")]
    Listen { address: SocketAddr, source: io::Error },
}

impl RecordError {
    pub(crate) fn creating(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| RecordError::Create { path: path.to_owned(), source }
    }

    pub(crate) fn writing(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| RecordError::Write { path: path.to_owned(), source }
    }
}

pages! { pub PAGES "record":
    CREATE "cannot-create" User
        "A file in which a training run keeps its records cannot be created."
        "check that the folder of the run exists, is writable for this user and has room"
    WRITE "cannot-write" Transient
        "The disk or file system refused a record of a training run. The run itself is unaffected; its records end here."
        "free space on the disk or check its health, then resume the run from its newest checkpoint"
    RESUME "cannot-resume" User
        "A run resumes at a step, so records of later steps from an earlier run must be removed, but their file cannot be read or replaced. The file is unchanged."
        "check that this user can read and write the file and its folder, or move the file away"
    NOT_A_RECORD "not-a-record" User
        "The file that a resumed run should continue has a line that is not a JSON object with a step. It may belong to something else, so nothing was changed."
        "name another file for the records, or remove the line"
    NOT_LOOPBACK "not-loopback" User
        "Metrics are offered without encryption or passwords, so by default only programs on this machine may read them. The address given can be reached from other machines."
        "use an address such as 127.0.0.1:9100, or explicitly allow other machines to read the metrics"
    LISTEN "cannot-listen" User
        "The address for metrics is not free, or does not belong to this machine."
        "give another port, or port 0 for any that is free"
}

impl Diagnostic for RecordError {
    fn page(&self) -> &'static Page {
        match self {
            RecordError::Create { .. } => &CREATE,
            RecordError::Write { .. } => &WRITE,
            RecordError::Resume { .. } => &RESUME,
            RecordError::NotARecord { .. } => &NOT_A_RECORD,
            RecordError::NotLoopback { .. } => &NOT_LOOPBACK,
            RecordError::Listen { .. } => &LISTEN,
        }
    }
}
