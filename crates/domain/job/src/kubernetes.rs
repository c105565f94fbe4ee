//! Jobs on Kubernetes: what a job file says about pods, and jobs as manifests and back.

pub mod names;
mod read;
mod render;
mod settings;
mod yaml;

pub use render::{ManifestKind, Manifests, PodGroup, RenderOptions, object_name, render};
pub use settings::{PodSettings, SecretKey, Toleration, Volume, VolumeSource};
pub use yaml::to_yaml;
