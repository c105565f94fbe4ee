//! What a node is, as far as it can be read: plain data between gathering and judging.
//!
//! Everything is optional. What could not be read is absent, and `remarks` says why where that matters.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::version::Version;

/// Everything that is known about one node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeFacts {
    pub node: String,
    /// What the firmware calls the machine; on EC2 the instance type.
    pub product: Option<String>,
    pub kernel: Option<Version>,
    /// Loaded kernel modules that matter, with their versions where they have one.
    pub modules: BTreeMap<String, Option<Version>>,
    pub driver: Option<Driver>,
    pub libraries: Vec<LibraryCopy>,
    pub limits: SystemLimits,
    pub gpus: Vec<GpuFacts>,
    /// The node's GPUs belong to other jobs and could not be seen.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub hides_gpus: bool,
    pub pci: Pci,
    pub cards: Vec<Card>,
    /// Device files that matter and are there.
    pub devices: Vec<String>,
    /// Processes that matter and run: the fabric manager, the persistence daemon.
    pub services: Vec<String>,
    pub mounts: Vec<Mount>,
    pub environment: BTreeMap<String, String>,
    /// What kept something from being read.
    pub remarks: Vec<UnreadSource>,
}

/// NVIDIA's kernel driver.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Driver {
    pub version: Version,
    /// The open kernel modules, which offer DMA-BUF and which Blackwell needs.
    pub is_open: bool,
}

/// One copy of a library; a node may have several.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LibraryCopy {
    /// `nccl`, `aws-ofi-nccl`, `libfabric`, `cuda-runtime`, `cuda-toolkit`, `cudnn`, `ucx`, `pytorch`, `gdrcopy`.
    pub name: String,
    pub version: Option<Version>,
    pub path: String,
    /// The CUDA version that it was built for, where it says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cuda: Option<Version>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SystemLimits {
    pub locked_memory: Option<SystemLimit>,
    pub open_files: Option<SystemLimit>,
    pub processes: Option<SystemLimit>,
    pub huge_pages: Option<u64>,
    pub shared_memory_bytes: Option<u64>,
    pub memory_bytes: Option<u64>,
    pub numa_balancing: Option<bool>,
    pub governor: Option<String>,
}

/// A limit of the operating system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SystemLimit {
    At(u64),
    Unlimited,
}

/// One GPU with its settings.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuFacts {
    pub index: u32,
    pub name: String,
    pub is_persistent: Option<bool>,
    pub has_ecc: Option<bool>,
    pub has_mig: Option<bool>,
    pub compute_mode: Option<String>,
    /// Clocks in MHz.
    pub clock_limit: Option<f64>,
    pub clock_most: Option<f64>,
    /// Watts.
    pub power_limit: Option<f64>,
    pub power_default: Option<f64>,
    pub link_width: Option<f64>,
    pub link_width_most: Option<f64>,
    pub memory_mib: Option<f64>,
    /// Bits of NVML that say why clocks are held down.
    pub throttle_reasons: Option<u64>,
    /// NVLinks that are up, and all of them.
    pub nvlinks: Option<(u32, u32)>,
}

/// What the PCI bus has, whether or not a driver serves it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pci {
    pub nvidia_gpus: u32,
    pub nvswitches: u32,
    pub efa_cards: u32,
    pub infiniband_cards: u32,
}

/// A network card with RDMA.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Card {
    pub name: String,
    /// `efa`, `mlx5_core`: the kernel driver.
    pub driver: String,
    pub state: Option<String>,
    pub rate_gbps: Option<f64>,
}

/// A mounted file system, or one that should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    pub kind: String,
    pub path: String,
    pub is_mounted: bool,
}

/// A source that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnreadSource {
    pub source: String,
    pub told: String,
}

impl NodeFacts {
    /// All copies of a library.
    pub fn copies<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a LibraryCopy> {
        self.libraries.iter().filter(move |library| library.name == name)
    }

    /// The version of a library; where there are several copies, of the first found.
    pub fn version(&self, name: &str) -> Option<&Version> {
        self.libraries
            .iter()
            .filter(|library| library.name == name)
            .find_map(|library| library.version.as_ref())
    }

    pub fn has_module(&self, name: &str) -> bool {
        self.modules.contains_key(name)
    }

    pub fn has_rdma(&self) -> bool {
        self.pci.efa_cards + self.pci.infiniband_cards > 0 || !self.cards.is_empty()
    }

    pub fn has_gpus(&self) -> bool {
        self.pci.nvidia_gpus > 0 || !self.gpus.is_empty()
    }
}

impl NodeFacts {
    /// The document in what a job wrote; a site's profiles and prologs may write around it.
    pub fn find_in(text: &[u8]) -> Option<Self> {
        let lines = text.split_inclusive(|byte| *byte == b'\n').scan(0, |at, line| {
            let here = *at;
            *at += line.len();
            Some((here, line))
        });
        let mut begins = lines.filter(|(_, line)| line.starts_with(b"{"));
        begins.find_map(|(at, _)| serde_json::Deserializer::from_slice(&text[at..]).into_iter().next()?.ok())
    }

    /// The facts of a reader that may not have seen the GPUs of its node.
    pub fn with_hidden_gpus(mut self) -> Self {
        self.hides_gpus = self.gpus.is_empty();
        if self.hides_gpus {
            // It fails where it may see none.
            self.remarks.retain(|remark| remark.source != "nvidia-smi");
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_found_between_what_a_site_prints() {
        let facts = NodeFacts { node: "n1".into(), ..NodeFacts::default() };
        let json = serde_json::to_string(&facts).unwrap();
        let text = format!("welcome\n{{ not ours\n{json}\nbye\n");
        assert_eq!(NodeFacts::find_in(text.as_bytes()), Some(facts));
        assert_eq!(NodeFacts::find_in(b"welcome\n{}"), NodeFacts::find_in(b"{}"));
        assert_eq!(NodeFacts::find_in(&json.as_bytes()[..json.len() / 2]), None);
    }
}
