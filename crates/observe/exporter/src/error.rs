//! What can go wrong with the exporter, and the pages that explain it.

use std::io;

use bedplate_diag::{Diagnostic, Page, Place, pages};
use bedplate_health::HealthError;
use bedplate_record::RecordError;

#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error("`{text}` is not an endpoint of metrics: {why}")]
    Target { text: String, why: &'static str },
    #[error("a thread of the exporter cannot be started")]
    Thread { source: io::Error },
    #[error(transparent)]
    Rules(#[from] HealthError),
    #[error(transparent)]
    Serve(#[from] RecordError),
}

pages! { pub PAGES "export":
    TARGET "target" User
        "The exporter can pass on the metrics of programs on this host. Each program is named by the address at which it offers them, followed by its job and rank."
        "write `http://127.0.0.1:8000/metrics,job=12,rank=0`; job and rank may be left out"
    THREAD "thread" Transient
        "The system refused the exporter a thread."
        "check the limits on processes (`ulimit -u`) and memory, then try again"
}

impl Diagnostic for ExportError {
    fn page(&self) -> &'static Page {
        match self {
            ExportError::Target { .. } => &TARGET,
            ExportError::Thread { .. } => &THREAD,
            ExportError::Rules(error) => error.page(),
            ExportError::Serve(error) => error.page(),
        }
    }

    fn place(&self) -> Option<&Place> {
        match self {
            ExportError::Rules(error) => error.place(),
            ExportError::Serve(error) => error.place(),
            ExportError::Target { .. } | ExportError::Thread { .. } => None,
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            ExportError::Rules(error) => error.help(),
            _ => None,
        }
    }
}
