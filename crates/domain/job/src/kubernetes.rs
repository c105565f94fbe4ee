//! Jobs on Kubernetes: what a job file says about pods, and jobs as manifests and back.

pub mod names;
mod read;
mod render;
mod settings;

pub use render::{ManifestKind, Manifests, PodGroup, RenderOptions, render};
pub use settings::{PodSettings, SecretKey, Toleration, Volume, VolumeSource};
