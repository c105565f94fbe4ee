//! Other systems, started on this machine from its packages, so that tests and measurements meet the real thing.
//!
//! [`Slurm`] is a controller and a daemon for each node in a temporary folder, with accounting and the REST server where
//! they are wanted; [`Prometheus`] scrapes and judges, with an Alertmanager that calls a [`Webhook`];
//! [`Kubernetes`] is a control plane with nodes and pods that are played. Nothing of them survives the value. They need no root.
//!
//! ```no_run
//! use bedplate_peers::{Slurm, SlurmShape};
//!
//! let slurm = Slurm::start(&SlurmShape { nodes: 8, accounting: true, rest: true, ..SlurmShape::default() })?;
//! println!("{}", slurm.ask("sinfo", &[]));
//! # Ok::<(), String>(())
//! ```

mod kubernetes;
mod parts;
mod prometheus;
mod slurm;

pub use kubernetes::{Kubernetes, KubernetesShape};
pub use parts::uses;
pub use prometheus::{Prometheus, PrometheusShape, SentAlert, Webhook};
pub use slurm::{NodeLoss, Slurm, SlurmShape};
