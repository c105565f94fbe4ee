//! A Kubernetes scheduler beside kube-scheduler: pods that name it are bound gang by gang, all pods of a gang at once.
//!
//! One task owns a [`PodScheduler`](bedplate_pods::PodScheduler). Watches of nodes and pods tell it what the API server says; what it
//! decides is carried out by many requests at once, and what came of them is told to it like everything else. Nothing is
//! kept outside the API server, so a scheduler may be killed at any time.
//!
//! The API server can ask it before pods of other schedulers are bound, so that two do not give the same room away.
//!
//! Of several schedulers of one name, the holder of a Lease acts. It stops before its Lease can have run out by
//! the clock of anybody else.

mod carry;
mod error;
mod figures;
mod lease;
mod lookup;
mod manifests;
mod provision;
mod read;
mod run;
mod scaling;
mod watch;
mod webhook_server;

pub use error::{BINDER_PAGES, BinderError};
pub use lease::LeaseRules;
pub use manifests::{ManifestOptions, manifests};
pub use run::{BinderOptions, StopHandle, run};

pub use bedplate_pods::{SchedulerRemark, SiteRules};
