//! Where data and checkpoints live.

use bedplate_units::{Bandwidth, Bytes, Dollars, Seconds};

use crate::Evidence;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StorageTier {
    /// Disks of one machine: fast, lost with the machine.
    Local,
    /// A file system that all machines mount.
    Shared,
    /// Object storage that outlives clusters.
    Durable,
}

impl StorageTier {
    pub const ALL: [(&'static str, StorageTier); 3] =
        [("local", StorageTier::Local), ("shared", StorageTier::Shared), ("durable", StorageTier::Durable)];

    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].0
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct StorageClass {
    pub name: String,
    pub title: String,
    pub tier: StorageTier,
    /// Survives the loss of the machine or device that wrote it.
    pub is_durable: bool,
    pub is_posix: bool,
    pub has_gpu_direct: bool,
    pub latency: Option<Seconds>,
    pub throughput_per_tib: Option<Bandwidth>,
    pub throughput_per_client: Option<Bandwidth>,
    pub throughput_per_volume: Option<Bandwidth>,
    pub iops: Option<u64>,
    pub max_object: Option<Bytes>,
    /// Operations that applications expect and this class refuses.
    pub cannot: Vec<String>,
    pub prices: Vec<StoragePrice>,
    pub notes: Option<String>,
    pub evidence: Evidence,
}

#[derive(Debug, Clone, PartialEq)]
pub struct StoragePrice {
    pub per_gb_month: Dollars,
    pub region: String,
    pub date: String,
    pub source: String,
    pub note: Option<String>,
    /// Why the figure is doubtful; such a price is shown and never used.
    pub doubtful: Option<String>,
}
