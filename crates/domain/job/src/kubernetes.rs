//! Jobs on Kubernetes: what a job file says about pods, and jobs as manifests and back.

pub mod names;
mod settings;

pub use settings::{PodSettings, SecretKey, Toleration, Volume, VolumeSource};
