//! What can keep evidence from being gathered.

use std::io;
use std::path::PathBuf;

use bedplate_diag::{Diagnostic, Page, pages};

#[derive(Debug, thiserror::Error)]
pub enum EvidenceError {
    #[error("cannot read `{}`", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("`{}` is not a regular file", path.display())]
    NotAFile { path: PathBuf },
    #[error("NCCL's RAS does not answer at {address}")]
    Ras { address: String, source: io::Error },
    #[error("cannot look at process {process}")]
    Process { process: u32, source: io::Error },
}

pages! { pub PAGES "diagnose":
    READ "read" User
        "A log or a folder that was named could not be read: it does not exist, or you may not read it. Files inside of a folder that cannot be read are left out and listed instead."
        "check the path and its permissions; `-` reads standard input"
    NOT_A_FILE "not-a-file" User
        "Only regular files are read, because opening a pipe or a device may wait for ever."
        "copy what it has into a file, or pipe it: `cat PATH | bedplate diagnose -`"
    NO_RAS "no-ras" Transient
        "Each process that uses NCCL 2.24 or later listens on port 28028 of its own host for questions about the whole job, unless NCCL_RAS_ENABLE=0 or NCCL_RAS_ADDR say otherwise. Nothing answers there, or something else does."
        "ask on a node of the job while it runs, at the address that NCCL_RAS_ADDR of the job names"
    NO_PROCESS "no-process" User
        "A process was to be looked at, and it does not exist on this host, or you may not see it."
        "name a process of this host that you own, or be root: `pgrep -f train.py`"
}

impl Diagnostic for EvidenceError {
    fn page(&self) -> &'static Page {
        match self {
            EvidenceError::Read { .. } => &READ,
            EvidenceError::NotAFile { .. } => &NOT_A_FILE,
            EvidenceError::Ras { .. } => &NO_RAS,
            EvidenceError::Process { .. } => &NO_PROCESS,
        }
    }
}
