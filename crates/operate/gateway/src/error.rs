//! Why the gateway does not start.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use bedplate_data::DataError;
use bedplate_diag::{Diagnostic, Page, pages};

use crate::router::UrlFlaw;

#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    #[error("cannot listen at {address}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("cannot read the API keys in {}", .path.display())]
    Keys { path: PathBuf, source: io::Error },
    #[error("{} has no API key", .path.display())]
    NoKeys { path: PathBuf },
    #[error("cannot write the trace of requests to {}", .path.display())]
    Trace { path: PathBuf, source: io::Error },
    #[error("`{name}` is the name of two models")]
    SameName { name: String },
    #[error("the model `{name}` has no replica")]
    NoReplica { name: String },
    #[error("the server's threads cannot be started")]
    Threads { source: io::Error },
    #[error("cannot read the replicas in {}", .path.display())]
    ReplicasFile { path: PathBuf, source: io::Error },
    #[error("{}:{line}: {flaw}", .path.display())]
    ReplicaLine { path: PathBuf, line: usize, flaw: UrlFlaw },
    #[error("the key of the replicas has characters that no header may have")]
    ReplicaKey,
    #[error(transparent)]
    Data(#[from] DataError),
}

pages! { pub PAGES "gateway":
    LISTEN "cannot-listen" User
        "The address for the API is not free, or does not belong to this machine."
        "give another port, or port 0 for any that is free"
    KEYS "cannot-read-keys" User
        "The file with API keys cannot be read."
        "check that the file exists and that this user may read it"
    NO_KEYS "no-keys" User
        "The file with API keys has none, so no request could ever be answered. It has one key on a line; lines that begin with `#` are remarks."
        "write a key into the file, such as the output of `openssl rand -hex 24`"
    TRACE "cannot-trace" User
        "The file for the trace of requests cannot be written."
        "check that the folder exists, is writable for this user and has room"
    SAME_NAME "same-name" User
        "Requests choose a model by its name, so names of models, adapters and aliases must differ."
        "rename one of them"
    NO_REPLICA "no-replica" Bug
        "A model without a running copy was to be served."
        "report it with the command"
    THREADS "no-threads" Transient
        "The system refused threads for the server."
        "check the limits of processes and memory of this user, then try again"
    REPLICAS_FILE "cannot-read-replicas" User
        "The file with the URLs of replicas cannot be read. It has one URL on a line; lines that begin with `#` are remarks."
        "check that the file exists and that this user may read it"
    REPLICA_LINE "bad-replica" User
        "A line of the file of replicas is not the URL of a replica, such as `http://10.0.0.5:8000`."
        "correct the line, or begin it with `#`"
    REPLICA_KEY "bad-replica-key" User
        "The key that replicas are shown is sent as a header and cannot hold line breaks or control characters."
        "give the key alone, without a line break at its end"
}

impl Diagnostic for GatewayError {
    fn page(&self) -> &'static Page {
        match self {
            GatewayError::Listen { .. } => &LISTEN,
            GatewayError::Keys { .. } => &KEYS,
            GatewayError::NoKeys { .. } => &NO_KEYS,
            GatewayError::Trace { .. } => &TRACE,
            GatewayError::SameName { .. } => &SAME_NAME,
            GatewayError::NoReplica { .. } => &NO_REPLICA,
            GatewayError::Threads { .. } => &THREADS,
            GatewayError::ReplicasFile { .. } => &REPLICAS_FILE,
            GatewayError::ReplicaLine { .. } => &REPLICA_LINE,
            GatewayError::ReplicaKey => &REPLICA_KEY,
            GatewayError::Data(error) => error.page(),
        }
    }
}
