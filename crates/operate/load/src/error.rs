//! Why a server cannot be measured.

use bedplate_diag::{Diagnostic, Page, pages};

#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("`{url}` is not the address of a server: {why}")]
    BadUrl { url: String, why: &'static str },
    #[error("{url} does not answer: {why}")]
    Unreachable { url: String, why: String },
    #[error("{url} does not say which models it has: {why}")]
    NoModel { url: String, why: String },
    #[error("none of {requests} requests to {url} was answered: {why}")]
    NothingFinished { url: String, requests: usize, why: String },
    #[error("the client's threads cannot be started")]
    Threads { source: std::io::Error },
}

pages! { pub PAGES "load":
    BAD_URL "bad-url" User
        "Load is sent to a server by HTTP without encryption, at an address such as http://127.0.0.1:8000."
        "write http://HOST:PORT; for a server behind TLS measure where it is not encrypted, or through a tunnel"
    UNREACHABLE "unreachable" Transient
        "The server did not answer."
        "check that it runs and listens at this address: curl http://HOST:PORT/v1/models"
    NO_MODEL "no-model" User
        "Every request carries the name of a model, and none was given. The server's list of models cannot be read, or is empty."
        "name the model with `--model`, and the key with `--api-key` where the server asks for one"
    NOTHING_FINISHED "nothing-finished" User
        "Every request failed, so there is nothing to measure. The first failure is quoted."
        "send fewer or shorter requests, or correct what the server complains about"
    THREADS "no-threads" Transient
        "The system refused threads for the client."
        "check the limits of processes and memory of this user, then try again"
}

impl Diagnostic for LoadError {
    fn page(&self) -> &'static Page {
        match self {
            LoadError::BadUrl { .. } => &BAD_URL,
            LoadError::Unreachable { .. } => &UNREACHABLE,
            LoadError::NoModel { .. } => &NO_MODEL,
            LoadError::NothingFinished { .. } => &NOTHING_FINISHED,
            LoadError::Threads { .. } => &THREADS,
        }
    }
}
