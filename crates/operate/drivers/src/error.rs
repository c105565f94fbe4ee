//! What can go wrong between us and a cluster.

use std::io;
use std::path::PathBuf;

use bedplate_diag::{Class, Diagnostic, Page, Place, Reason};
use bedplate_job::JobError;
use bedplate_kubernetes::KubernetesError;

use crate::slurm::SlurmError;
use crate::{Capability, ContextsError, contexts};

#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    #[error("no cluster runs here: {} does not exist", beacon.display())]
    NotRunning { beacon: PathBuf },
    #[error("cannot read {}", path.display())]
    State { path: PathBuf, source: io::Error },
    #[error("`{text}` does not say where a cluster is: {reason}")]
    Address { text: String, reason: String },
    #[error("nothing proves that the cluster's own daemon answers at {server}, so no token is sent there")]
    Unproven { server: String },
    #[error("no token for the cluster at {server}")]
    NoToken { server: String },
    #[error("the cluster at {server} does not answer")]
    Unreachable { server: String, source: io::Error },
    #[error("the cluster at {server} cannot do it now (status {status}): {message}")]
    Busy { server: String, status: u16, message: String },
    #[error("{message}")]
    NotAllowed { message: String, help: Option<String> },
    #[error("{message}")]
    Refused { code: String, message: String, help: Option<String>, reason: Option<Reason> },
    #[error("{cluster} cannot {}", capability.text())]
    Cannot { cluster: String, capability: Capability },
    #[error(transparent)]
    Contexts(#[from] ContextsError),
    #[error(transparent)]
    Slurm(#[from] SlurmError),
    #[error(transparent)]
    Kubernetes(#[from] KubernetesError),
    #[error(transparent)]
    Job(#[from] JobError),
    #[error("the cluster at {server} failed with a bug: {message}")]
    Fault { server: String, message: String },
    #[error("the answer of {server} is not that of a cluster: {reason}")]
    NotUnderstood { server: String, reason: String },
}

impl DriverError {
    /// Whether a daemon answered at all, be it with a complaint.
    pub fn is_answer(&self) -> bool {
        matches!(
            self,
            DriverError::Busy { .. }
                | DriverError::NotAllowed { .. }
                | DriverError::Refused { .. }
                | DriverError::Fault { .. }
                | DriverError::NotUnderstood { .. }
        )
    }

    /// Whether the cluster itself said no, as opposed to not being there.
    pub fn is_refusal(&self) -> bool {
        matches!(
            self,
            DriverError::Refused { .. }
                | DriverError::NotAllowed { .. }
                | DriverError::Cannot { .. }
                | DriverError::Job(_)
                | DriverError::Kubernetes(
                    KubernetesError::Forbidden { .. } | KubernetesError::Refused { .. }
                )
                | DriverError::Slurm(SlurmError::NoField { .. } | SlurmError::Option { .. })
        )
    }
}

/// The documentation of every code of this crate.
pub const PAGES: &[&Page] = &[
    &NOT_RUNNING,
    &STATE,
    &ADDRESS,
    &UNPROVEN,
    &NO_TOKEN,
    &UNREACHABLE,
    &BUSY,
    &NOT_ALLOWED,
    &REFUSED,
    &FAULT,
    &NOT_UNDERSTOOD,
    &CANNOT,
    &contexts::UNKNOWN,
    &contexts::NAME,
    &contexts::OTHER_KIND,
    &contexts::INCOMPLETE,
    &contexts::READABLE,
    &contexts::FILE,
];

static NOT_RUNNING: Page = Page {
    code: "cluster/not-running",
    class: Class::Transient,
    meaning: "No cluster has been started from this state directory, or it has gone down since.",
    remedy: "start one with `bedplate up`, or name another with `--server URL` or `--state-dir DIR`",
};
static STATE: Page = Page {
    code: "cluster/state",
    class: Class::User,
    meaning: "The directory in which a cluster keeps its address, tokens and journal could not be read or written.",
    remedy: "check its permissions, or name another one with `--state-dir DIR` or BEDPLATE_STATE",
};
static ADDRESS: Page = Page {
    code: "cluster/address",
    class: Class::User,
    meaning: "A cluster's address is `https://HOST:PORT`, and the fingerprint of its daemon's certificate is needed too. The REST server of a Slurm may be at `http://HOST:PORT` on loopback.",
    remedy: "give the address as `bedplate up` printed it, and the fingerprint in BEDPLATE_FINGERPRINT",
};
static UNPROVEN: Page = Page {
    code: "cluster/unproven",
    class: Class::User,
    meaning: "Any program can listen where a daemon did, on loopback too, and would be given the token of everyone who asks. So a daemon proves itself by its certificate on every address, and commands and agents accept the one certificate whose fingerprint they know.",
    remedy: "use https and the fingerprint that `bedplate up` printed: `--fingerprint HEX` or BEDPLATE_FINGERPRINT. A daemon of an earlier release has none on loopback: `bedplate down`, then `bedplate up`",
};
static NO_TOKEN: Page = Page {
    code: "cluster/no-token",
    class: Class::User,
    meaning: "Every request to a cluster carries a token that says who asks, and none was found.",
    remedy: "put the token into BEDPLATE_TOKEN; an administrator makes one with `bedplate token add`",
};
static UNREACHABLE: Page = Page {
    code: "cluster/unreachable",
    class: Class::Transient,
    meaning: "The cluster's daemon did not answer, or the connection broke. It may have just been stopped or be starting again.",
    remedy: "try again; if the daemon is gone, `bedplate up` starts it and its jobs are found again",
};
static BUSY: Page = Page {
    code: "cluster/busy",
    class: Class::Transient,
    meaning: "The daemon answers but cannot do it now: too many requests are under way, or its disk takes no writes.",
    remedy: "try again in a moment; if it stays, look for a full disk",
};
static NOT_ALLOWED: Page = Page {
    code: "cluster/not-allowed",
    class: Class::User,
    meaning: "The token is unknown, has expired, or its role may not do this.",
    remedy: "use a token of a role that may; an administrator makes one with `bedplate token add`",
};
static REFUSED: Page = Page {
    code: "cluster/refused",
    class: Class::User,
    meaning: "The cluster understood the request and says no: there is no such job or node, its state does not permit it, or the job could never run here.",
    remedy: "read the reason; `bedplate queue --all` and `bedplate node list` show what is there",
};
static FAULT: Page = Page {
    code: "cluster/fault",
    class: Class::Bug,
    meaning: "The daemon failed at a request in a way that its authors believed impossible.",
    remedy: "please report the command and the end of daemon.log in the state directory",
};
static NOT_UNDERSTOOD: Page = Page {
    code: "cluster/not-understood",
    class: Class::User,
    meaning: "Something answered at that address, but not as a cluster of this program does. Another service may have the port, or the versions are too far apart.",
    remedy: "check the address; `bedplate --version` and `GET /version` should agree",
};

static CANNOT: Page = Page {
    code: "driver/cannot",
    class: Class::User,
    meaning: "Clusters differ in what they can do. This one has no way to do what was asked.",
    remedy: "see what the cluster can do with `bedplate context show`",
};

impl Diagnostic for DriverError {
    fn page(&self) -> &'static Page {
        match self {
            DriverError::NotRunning { .. } => &NOT_RUNNING,
            DriverError::State { .. } => &STATE,
            DriverError::Address { .. } => &ADDRESS,
            DriverError::Unproven { .. } => &UNPROVEN,
            DriverError::NoToken { .. } => &NO_TOKEN,
            DriverError::Unreachable { .. } => &UNREACHABLE,
            DriverError::Busy { .. } => &BUSY,
            DriverError::NotAllowed { .. } => &NOT_ALLOWED,
            DriverError::Refused { .. } => &REFUSED,
            DriverError::Fault { .. } => &FAULT,
            DriverError::NotUnderstood { .. } => &NOT_UNDERSTOOD,
            DriverError::Cannot { .. } => &CANNOT,
            DriverError::Contexts(error) => error.page(),
            DriverError::Slurm(error) => error.page(),
            DriverError::Kubernetes(error) => error.page(),
            DriverError::Job(error) => error.page(),
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            DriverError::NotAllowed { help, .. } | DriverError::Refused { help, .. } => help.clone(),
            DriverError::Cannot { capability, .. } => Some(capability.instead().to_owned()),
            DriverError::Contexts(error) => error.help(),
            DriverError::Job(error) => error.help(),
            _ => None,
        }
    }

    fn reason(&self) -> Option<&Reason> {
        match self {
            DriverError::Refused { reason, .. } => reason.as_ref(),
            _ => None,
        }
    }

    fn place(&self) -> Option<&Place> {
        match self {
            DriverError::Contexts(error) => error.place(),
            DriverError::Job(error) => error.place(),
            _ => None,
        }
    }
}
