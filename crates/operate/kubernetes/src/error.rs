//! What can go wrong between us and an API server.

use std::io;
use std::time::Duration;

use bedplate_diag::{Class, Diagnostic, Page};
use kube::core::Status;

use crate::connection::complete;

#[derive(Debug, thiserror::Error)]
pub enum KubernetesError {
    #[error("cannot start threads")]
    Threads(#[source] io::Error),
    #[error("no way to a Kubernetes cluster: {why}")]
    Kubeconfig { why: String },
    #[error("the API server at {server} does not answer: {why}")]
    Unreachable { server: String, why: String },
    #[error("the API server at {server} has said nothing for {} s", after.as_secs())]
    Silent { server: String, after: Duration },
    #[error("the API server at {server} does not know who we are: {message}")]
    Unknown { server: String, message: String },
    #[error("the API server at {server} does not allow it: {message}")]
    Forbidden { server: String, message: String },
    #[error("the API server at {server} refuses (status {}, {}): {}", status.code, status.reason, status.message)]
    Refused { server: String, status: Box<Status> },
}

impl KubernetesError {
    pub fn of(error: kube::Error, server: &str) -> Self {
        let server = server.to_owned();
        match error {
            kube::Error::Api(status) if status.code == 401 => {
                Self::Unknown { server, message: status.message }
            }
            kube::Error::Api(status) if status.code == 403 => {
                Self::Forbidden { server, message: status.message }
            }
            kube::Error::Api(status) => Self::Refused { server, status },
            other => Self::Unreachable { server, why: complete(&other) },
        }
    }

    /// Whether the server said that what was asked for is not there.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { status, .. } if status.code == 404)
    }

    /// Whether the server has no rule that allows it.
    pub fn is_forbidden(&self) -> bool {
        matches!(self, Self::Forbidden { .. })
    }

    /// Whether the server said that it has changed, or is there already.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Refused { status, .. } if status.code == 409)
    }
}

/// The documentation of every code of this crate.
pub const KUBERNETES_PAGES: &[&Page] =
    &[&THREADS, &KUBECONFIG, &UNREACHABLE, &SILENT, &UNKNOWN, &FORBIDDEN, &REFUSED];

static THREADS: Page = Page {
    code: "kubernetes/threads",
    class: Class::Transient,
    meaning: "The system refused the threads for the connection to a Kubernetes API server.",
    remedy: "look for a limit on processes (`ulimit -u`) and end what is not needed",
};
static KUBECONFIG: Page = Page {
    code: "kubernetes/kubeconfig",
    class: Class::User,
    meaning: "The kubeconfig could not be read, names a context that it does not have, or its credentials cannot be used; and this is not a pod with a service account.",
    remedy: "check that `kubectl get nodes` works, or name the file with KUBECONFIG or in `bedplate context add kubernetes`",
};
static UNREACHABLE: Page = Page {
    code: "kubernetes/unreachable",
    class: Class::Transient,
    meaning: "The API server did not answer, or what answered is not an API server.",
    remedy: "try again; `kubectl get --raw /readyz` says whether the server is there",
};
static SILENT: Page = Page {
    code: "kubernetes/silent",
    class: Class::Transient,
    meaning: "The API server did not answer in time. It may have carried the request out.",
    remedy: "look before you ask again; a server without quorum in etcd behaves like this",
};
static UNKNOWN: Page = Page {
    code: "kubernetes/unknown",
    class: Class::User,
    meaning: "The API server does not accept the credentials of the kubeconfig: a token has expired, or the certificate belongs to another cluster.",
    remedy: "log in again, as the cluster's administrators say, and try `kubectl auth whoami`",
};
static FORBIDDEN: Page = Page {
    code: "kubernetes/forbidden",
    class: Class::User,
    meaning: "The API server knows who asks, but has no rule that allows the request.",
    remedy: "ask for the verbs that docs/kubernetes.md lists; `kubectl auth can-i --list` shows what you have",
};
static REFUSED: Page = Page {
    code: "kubernetes/refused",
    class: Class::User,
    meaning: "The API server understood the request and refused it: the object does not exist, it has changed meanwhile, or an admission rule objects.",
    remedy: "read the server's own words in the message",
};

impl Diagnostic for KubernetesError {
    fn page(&self) -> &'static Page {
        match self {
            KubernetesError::Threads(_) => &THREADS,
            KubernetesError::Kubeconfig { .. } => &KUBECONFIG,
            KubernetesError::Unreachable { .. } => &UNREACHABLE,
            KubernetesError::Silent { .. } => &SILENT,
            KubernetesError::Unknown { .. } => &UNKNOWN,
            KubernetesError::Forbidden { .. } => &FORBIDDEN,
            KubernetesError::Refused { .. } => &REFUSED,
        }
    }
}
