//! Where checkpoints go, how fast, and what storing them costs.

use bedplate_catalog::{LocalStorage, StorageClass, StorageTier};
use bedplate_transformer::{Optimizer, TrainingState, Transformer};
use bedplate_units::{Bandwidth, Bytes, Dollars, Seconds};

use crate::{GoodputError, Published};

/// A place for checkpoints with the throughput that a job gets from it.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckpointStore {
    pub name: String,
    pub tier: StorageTier,
    /// What one node can move at most.
    pub per_node: Option<Bandwidth>,
    /// What the whole store can move at most.
    pub total: Option<Bandwidth>,
    /// Dollars per gigabyte and month, the newest trusted price.
    pub per_gb_month: Option<Dollars>,
    /// Provisioned capacity, paid for even when empty; zero where only stored data is paid for.
    pub provisioned: Bytes,
}

impl CheckpointStore {
    /// A shared file system whose throughput grows with its size.
    pub fn shared(class: &StorageClass, capacity: Bytes) -> Self {
        let tib = capacity.get() / TIB;
        Self {
            per_node: class.throughput_per_client,
            total: class.throughput_per_tib.map(|each| each * tib),
            provisioned: capacity,
            ..Self::of(class)
        }
    }

    /// Object storage, which grows with its clients. Without a rate, the published one of a single client.
    pub fn objects(class: &StorageClass, per_node: Option<Bandwidth>, published: &Published) -> Self {
        let usual =
            published.figure("s3-bytes-per-second-per-node").map(|figure| Bandwidth::new(figure.value));
        Self { per_node: per_node.or(usual), ..Self::of(class) }
    }

    /// The disks of each node. No catalog says how fast they are, so the caller gives the rate of one device.
    pub fn local(disks: &LocalStorage, per_device: Bandwidth) -> Self {
        Self {
            name: disks.class.clone(),
            tier: StorageTier::Local,
            per_node: Some(per_device * f64::from(disks.devices)),
            total: None,
            per_gb_month: None,
            provisioned: Bytes::ZERO,
        }
    }

    fn of(class: &StorageClass) -> Self {
        let believed = class.prices.iter().filter(|price| price.doubtful.is_none());
        let newest = believed.max_by(|a, b| a.date.cmp(&b.date).then(b.per_gb_month.cmp(&a.per_gb_month)));
        Self {
            name: class.name.clone(),
            tier: class.tier,
            per_node: class.throughput_per_client,
            total: None,
            per_gb_month: newest.map(|price| price.per_gb_month),
            provisioned: Bytes::ZERO,
        }
    }

    /// What `nodes` nodes move together.
    pub fn throughput(&self, nodes: u32) -> Result<Bandwidth, GoodputError> {
        let clients = self.per_node.map(|each| each * f64::from(nodes));
        let slowest = clients.into_iter().chain(self.total).min();
        slowest
            .filter(|rate| rate.get() > 0.0)
            .ok_or_else(|| GoodputError::UnknownThroughput { store: self.name.clone() })
    }

    pub fn transfer(&self, bytes: Bytes, nodes: u32) -> Result<Seconds, GoodputError> {
        Ok(bytes / self.throughput(nodes)?)
    }

    /// Dollars for keeping `kept` bytes for a time; provisioned capacity is paid in full. `None`: no price known.
    pub fn cost(&self, kept: Bytes, time: Seconds) -> Option<Dollars> {
        if self.tier == StorageTier::Local {
            // The disks come with the machine.
            return Some(Dollars::ZERO);
        }
        let gigabytes = kept.max(self.provisioned).get() / 1e9;
        Some(self.per_gb_month? * (gigabytes * time.as_days() / DAYS_PER_MONTH))
    }
}

/// Bytes of a checkpoint to resume training from: weights in bf16, master weights, optimizer state.
pub fn checkpoint_bytes(model: &Transformer, optimizer: Optimizer) -> Bytes {
    let state = model.training_bytes(TrainingState { optimizer, ..TrainingState::default() });
    state.weights + state.optimizer
}

const TIB: f64 = 1_099_511_627_776.0;
const DAYS_PER_MONTH: f64 = 365.25 / 12.0;
