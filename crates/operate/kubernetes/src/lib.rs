//! The way to a Kubernetes API server, and the names by which jobs and gangs are known there.
//!
//! [`ApiConnection`] is opened by a kubeconfig as it stands, or by the service account of the pod that we run in. What is done
//! over it belongs to the driver and to the scheduler; the labels and annotations in [`names`] are what they agree on, with each
//! other and with people who write manifests by hand.

mod connection;
mod error;

pub use bedplate_job::kubernetes::names;
pub use connection::{ApiConnection, KubernetesPlace};
pub use error::{KUBERNETES_PAGES, KubernetesError};

pub use k8s_openapi;
pub use kube;
