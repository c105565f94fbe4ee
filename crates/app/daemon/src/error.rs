//! Why the daemon does not start, or stops, and the pages that explain it.

use std::net::SocketAddr;
use std::path::PathBuf;

use bedplate_diag::{Diagnostic, Page, pages};
use bedplate_journal::JournalError;

#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    #[error("cannot use the state directory {}", .path.display())]
    State { path: PathBuf, source: std::io::Error },
    #[error("cannot listen on {address}")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("cannot make or use the certificate in {}: {why}", .path.display())]
    Certificate { path: PathBuf, why: String },
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error("the journal cannot write any more: {why}")]
    JournalBroken { why: String },
    #[error("{what} stopped: {why}")]
    Panicked { what: &'static str, why: String },
    #[error("cannot start a thread")]
    Thread { source: std::io::Error },
}

pages! { pub PAGES "daemon":
    STATE "state-directory" User
        "The daemon keeps its journal, tokens and certificate in one directory, and something there cannot be read or written."
        "check that the directory exists, belongs to this user and has room"
    LISTEN "cannot-listen" User
        "The address cannot be listened on: another program has the port, or the machine does not have the address."
        "stop the other program, or choose another port with `--listen`; port 0 takes a free one"
    CERTIFICATE "certificate" User
        "The daemon makes its own certificate and keeps it in its state directory. It could not be made, or what is there is damaged."
        "remove `certificate.der` and `key.der` from the state directory; clients must then pin the new fingerprint"
    BROKEN "journal-broken" Bug
        "A batch of records can never be written, and all that follows may rest on it. The daemon ends, so that nothing is promised that is not on disk."
        "start the daemon again; it continues from what the journal holds. Report this with the message"
    PANICKED "panicked" Bug
        "A part of the daemon that cannot be done without has stopped because of a flaw in the program. What was acknowledged is in the journal."
        "start the daemon again; it continues from what the journal holds. Report this with the message"
    THREAD "no-thread" Transient
        "The system did not let the daemon start a thread."
        "look at the limits on processes and memory, and try again"
}

impl Diagnostic for DaemonError {
    fn page(&self) -> &'static Page {
        match self {
            DaemonError::State { .. } => &STATE,
            DaemonError::Listen { .. } => &LISTEN,
            DaemonError::Certificate { .. } => &CERTIFICATE,
            DaemonError::Journal(error) => error.page(),
            DaemonError::JournalBroken { .. } => &BROKEN,
            DaemonError::Panicked { .. } => &PANICKED,
            DaemonError::Thread { .. } => &THREAD,
        }
    }
}
