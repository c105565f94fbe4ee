//! Clusters behind one trait.
//!
//! A [`Driver`] does to a cluster what every orchestrator can do: take a job in, list, cancel; and, where it can, watch,
//! show output, hold, explain, drain. [`Local`] drives a cluster of our own through its daemon's HTTP API, whether that
//! is on this machine or elsewhere; [`Slurm`] drives a Slurm by its REST server or its commands;
//! [`Kubernetes`] drives a Kubernetes cluster by its API server. [`Contexts`] is the file in which people name the clusters they use, and an [`Errand`] runs this program on every node. All calls
//! block. Which job runs where is decided by the cluster that is driven.

mod capability;
mod contexts;
mod driver;
mod errand;
mod error;
mod kubernetes;
mod local;
mod observed;
mod place;
mod slurm;
mod state;
mod submission;
mod tls;
mod views;

pub use bedplate_kubernetes::{KubernetesError, KubernetesPlace};
pub use capability::Capability;
pub use contexts::{ClusterKind, Context, Contexts, ContextsError, Token};
pub use driver::{Driver, JobOrder, JobQuery, LogQuery, OutputStream, See, Watched, new_submission_key};
pub use errand::{Brought, Errand, ErrandOptions, NotBrought, Sent};
pub use error::{DriverError, PAGES};
pub use kubernetes::{Kubernetes, KubernetesSite};
pub use local::{JobFormat, Local, Pruned, TokenMade, TokenView, UsageBy, UsageRow};
pub use place::{Beacon, ClusterPlace, StateDirectory};
pub use slurm::{
    SLURM_PAGES, Slurm, SlurmError, SlurmNode, SlurmPlace, SlurmSwitch, SlurmTopology, TransportFound,
};
pub use state::{JobId, JobState, NodeId, NodeState};
pub use submission::{submit_here, surround};
pub use views::{
    ClusterEvent, ClusterView, Explained, HolderExplained, HostView, JobDetail, JobSummary, Life, NodeDetail,
    NodeOut, NodeSummary, NodesExplained, Note, RankPlace, RuleExplained, RunView, Submitted, TaskView,
};
