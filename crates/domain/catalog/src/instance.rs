//! Machines that can be rented or owned: instances, and UltraServers made of several instances.

use bedplate_units::{Bandwidth, Bytes};

use crate::{Evidence, Prices};

/// One machine type. Bandwidths are aggregates over the machine, as vendors print them.
#[derive(Debug, Clone, PartialEq)]
pub struct Instance {
    pub name: String,
    pub title: Option<String>,
    pub provider: String,
    /// Name of the accelerator.
    pub accelerator: String,
    pub accelerators: u32,
    pub vcpus: Option<u32>,
    pub host_memory: Option<Bytes>,
    /// Memory of all accelerators, as the vendor prints it.
    pub accelerator_memory: Option<Bytes>,
    /// Accelerators of this machine that share one scale-up domain.
    pub scale_up_domain: u32,
    /// Both directions added, over all accelerators.
    pub scale_up_bandwidth: Option<Bandwidth>,
    /// Name of the fabric between machines.
    pub scale_out: Option<String>,
    /// One direction, over all network cards.
    pub scale_out_bandwidth: Option<Bandwidth>,
    pub scale_out_cards: Option<u32>,
    /// Name of the fabric between accelerators and host, where it is slower than the accelerator's own.
    pub host_link: Option<String>,
    pub local_storage: Option<LocalStorage>,
    pub ultracluster: Option<String>,
    /// It cannot be had by itself, only as part of an [`UltraServer`].
    pub is_only_in_ultraservers: bool,
    pub prices: Prices,
    pub notes: Option<String>,
    pub evidence: Evidence,
}

/// Disks inside the machine; their content is lost with it.
#[derive(Debug, Clone, PartialEq)]
pub struct LocalStorage {
    /// Name of the storage class.
    pub class: String,
    pub devices: u32,
    pub device_size: Bytes,
}

impl LocalStorage {
    pub fn capacity(&self) -> Bytes {
        self.device_size * f64::from(self.devices)
    }
}

/// Several instances whose accelerators form one scale-up domain, sold as one unit.
#[derive(Debug, Clone, PartialEq)]
pub struct UltraServer {
    pub name: String,
    pub title: Option<String>,
    /// Name of the instance it is made of.
    pub instance: String,
    pub instances: u32,
    /// Accelerators in the one scale-up domain.
    pub accelerators: u32,
    pub accelerator_memory: Option<Bytes>,
    /// Both directions added, over the whole domain.
    pub scale_up_bandwidth: Option<Bandwidth>,
    pub scale_out: Option<String>,
    /// One direction, over all network cards.
    pub scale_out_bandwidth: Option<Bandwidth>,
    pub prices: Prices,
    pub notes: Option<String>,
    pub evidence: Evidence,
}
