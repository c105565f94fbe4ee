//! The table `[kubernetes]` of a job file: what pods need and no other cluster has.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use bedplate_units::Bytes;

use crate::NotationError;

/// What a job says about its pods. Secrets stand here by name only.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PodSettings {
    /// The image of the containers; that of the context when absent.
    pub image: Option<String>,
    /// Secrets with which the image is pulled.
    pub pull_secrets: Vec<String>,
    /// Where the job goes; the namespace of the context when absent.
    pub namespace: Option<String>,
    pub service_account: Option<String>,
    /// Kueue's queue; the job's partition when absent.
    pub queue: Option<String>,
    /// The scheduler of the pods; the cluster's own when absent.
    pub scheduler: Option<String>,
    pub priority_class: Option<String>,
    /// The resource by which GPUs are asked for; from the accelerator's name when absent.
    pub gpu_resource: Option<String>,
    /// Resources of each pod beside CPUs, memory and GPUs: `vpc.amazonaws.com/efa = 32`.
    pub resources: BTreeMap<String, u32>,
    /// Labels that every node must have.
    pub node_labels: BTreeMap<String, String>,
    /// Variables whose values lie in secrets.
    pub secret_environment: BTreeMap<String, SecretKey>,
    pub tolerations: Vec<Toleration>,
    pub volumes: Vec<Volume>,
}

/// One value of a secret, written `secret/key`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretKey {
    pub secret: String,
    pub key: String,
}

/// A taint that the pods may stand on. Without a value any value of the key will do, without an effect any effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Toleration {
    pub key: String,
    pub value: Option<String>,
    pub effect: Option<String>,
}

/// A folder of the containers that comes from outside their image.
#[derive(Debug, Clone, PartialEq)]
pub struct Volume {
    /// Where the containers see it.
    pub mount: String,
    pub source: VolumeSource,
    /// A folder inside the source.
    pub sub_path: Option<String>,
    pub is_read_only: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub enum VolumeSource {
    /// A persistent volume claim.
    Claim(String),
    /// A folder or file of the node.
    HostPath(String),
    Secret(String),
    ConfigMap(String),
    /// A folder that begins empty and goes with the pod.
    Empty,
    /// The same in memory, such as `/dev/shm`, of at most this size.
    Memory(Bytes),
}

impl FromStr for SecretKey {
    type Err = NotationError;

    fn from_str(text: &str) -> Result<Self, NotationError> {
        match text.split_once('/') {
            Some((secret, key)) if !secret.is_empty() && !key.is_empty() && !key.contains('/') => {
                Ok(Self { secret: secret.to_owned(), key: key.to_owned() })
            }
            _ => Err(NotationError::new(
                text,
                "a value of a secret such as `wandb/token`",
                "write the name of the secret, a slash and the key in it",
            )),
        }
    }
}

impl fmt::Display for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.secret, self.key)
    }
}
