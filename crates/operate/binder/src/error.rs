//! What ends the scheduler, or keeps it from starting.

use std::net::SocketAddr;

use bedplate_diag::{Class, Diagnostic, Page};
use bedplate_gangs::SettingsError;
use bedplate_kubernetes::KubernetesError;
use bedplate_topology::TopologyError;

#[derive(Debug, thiserror::Error)]
pub enum BinderError {
    #[error(transparent)]
    Kubernetes(#[from] KubernetesError),
    #[error("the site's rules do not fit the cluster")]
    Site(#[source] SettingsError),
    #[error("the nodes of the API server do not form a cluster")]
    Nodes(#[source] TopologyError),
    #[error("cannot listen on {address}: {why}")]
    Listen { address: SocketAddr, why: String },
    #[error("the Lease {namespace}/{name} was lost: {why}")]
    LeaseLost { namespace: String, name: String, why: String },
}

/// The documentation of every code of this crate.
pub const BINDER_PAGES: &[&Page] = &[&SITE, &NODES, &LISTEN, &LEASE_LOST];

static SITE: Page = Page {
    code: "scheduler/site",
    class: Class::User,
    meaning: "The file of the site's rules names nodes, accounts or GPUs that the Kubernetes cluster does not have, or cannot be read.",
    remedy: "correct the line that the cause names; docs/site.md has every key",
};
static NODES: Page = Page {
    code: "scheduler/nodes",
    class: Class::User,
    meaning: "The labels of the nodes contradict each other, for instance because one switch has two parents, so no network can be derived from them.",
    remedy: "correct the labels that the cause names; docs/cluster.md says which are read",
};
static LISTEN: Page = Page {
    code: "scheduler/listen",
    class: Class::User,
    meaning: "With --listen the API server asks the scheduler before pods of other schedulers are bound. The scheduler cannot listen on that address, or could not make a certificate for it.",
    remedy: "choose another address with --listen, or none: bindings are then made unasked",
};
static LEASE_LOST: Page = Page {
    code: "scheduler/lease-lost",
    class: Class::Transient,
    meaning: "The scheduler could not renew its Lease in time, or another one holds it now. It stops, because two schedulers that bind pods at once would assign the same room twice.",
    remedy: "start it again; it waits until the Lease is free. A Deployment does that by itself",
};

impl Diagnostic for BinderError {
    fn page(&self) -> &'static Page {
        match self {
            BinderError::Kubernetes(error) => error.page(),
            BinderError::Site(_) => &SITE,
            BinderError::Nodes(_) => &NODES,
            BinderError::Listen { .. } => &LISTEN,
            BinderError::LeaseLost { .. } => &LEASE_LOST,
        }
    }
}
