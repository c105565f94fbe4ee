//! What joins accelerators, machines and hosts.

use bedplate_units::{Bandwidth, Seconds};

use crate::Evidence;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FabricKind {
    /// Inside a scale-up domain: NVLink, NeuronLink.
    ScaleUp,
    /// Between machines: EFA, InfiniBand.
    ScaleOut,
    /// Between an accelerator and its host: PCIe, NVLink-C2C.
    HostLink,
}

impl FabricKind {
    pub const ALL: [(&'static str, FabricKind); 3] = [
        ("scale-up", FabricKind::ScaleUp),
        ("scale-out", FabricKind::ScaleOut),
        ("host-link", FabricKind::HostLink),
    ];

    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].0
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Fabric {
    pub name: String,
    pub title: String,
    pub kind: FabricKind,
    /// `nvlink`, `efa`, `infiniband`, …
    pub family: String,
    pub generation: Option<String>,
    /// Per accelerator, as the vendor prints it; `directions` says whether both ways are added.
    pub per_accelerator: Option<Bandwidth>,
    pub directions: u32,
    /// Per port of a network card, one way.
    pub per_port: Option<Bandwidth>,
    pub latency: Option<Seconds>,
    pub protocol: Option<String>,
    pub notes: Option<String>,
    pub evidence: Evidence,
}

impl Fabric {
    /// Bandwidth per accelerator in one direction, which is what a collective can use.
    pub fn one_way_per_accelerator(&self) -> Option<Bandwidth> {
        self.per_accelerator.map(|both| both / f64::from(self.directions))
    }
}
