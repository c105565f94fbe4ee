//! A cluster reduced to the numbers that the model uses.
//!
//! Rates are per GPU and one way, in FLOP/s and bytes/s. Everything that the catalog or the topology may
//! not know is resolved here once, so that the inner model is arithmetic on plain numbers.

use bedplate_catalog::{Accelerator, Catalog, MeasuredRates};
use bedplate_layout::ComputePrecision;
use bedplate_topology::{Cluster, GpuId, NodeId, NodeKind};

use crate::{LocalCollectives, PerfError};

/// One GPU, its neighbours and its network.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hardware {
    pub gpus: u32,
    /// GPUs that reach each other over the scale-up fabric.
    pub domain: u32,
    pub generation: Generation,
    /// Only for a host that trains by itself; not used elsewhere.
    pub peak_fp32: f64,
    /// Dense peaks; a format that the chip lacks has the peak of the next wider one.
    pub peak_bf16: f64,
    pub peak_fp8: f64,
    pub peak_fp4: f64,
    pub has_fp8: bool,
    pub has_fp4: bool,
    pub multiprocessors: f64,
    pub memory_bandwidth: f64,
    /// What a program can allocate.
    pub memory: f64,
    pub scale_up: f64,
    /// Share of the node's network cards, before oversubscription.
    pub scale_out: f64,
    /// How much narrower the network gets above the leaf; 1 is non-blocking.
    pub oversubscription: f64,
    pub network: Network,
    /// Between GPU and host memory: PCIe or NVLink-C2C.
    pub host_link: f64,
    /// What was measured on a host.
    pub measured: Option<MeasuredRates>,
    /// Between the ranks of a host, where there are several.
    pub collectives: LocalCollectives,
}

/// Chips whose kernels reach similar shares of their peaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Generation {
    Ampere,
    Hopper,
    Blackwell,
    BlackwellUltra,
    /// A processor, priced by rates measured on it.
    Host,
    /// No training rows: the mean of the others.
    Other,
}

/// What carries traffic between scale-up domains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Network {
    /// InfiniBand and lossless Ethernet.
    Rdma,
    EfaV1,
    EfaV2,
    EfaV3,
    EfaV4,
    /// The kernel's stack on the same cards.
    Tcp,
}

impl Hardware {
    /// All usable GPUs of a cluster: those of nodes that take work and have no failed GPU. A mixed cluster
    /// has the slowest of every figure, whatever the order of its kinds, and its smallest domain.
    pub fn from_cluster(cluster: &Cluster, catalog: &Catalog) -> Result<Self, PerfError> {
        let name = || cluster.name().to_owned();
        if cluster.gpu_count() == 0 {
            return Err(PerfError::NoGpus { cluster: name() });
        }
        let mut kinds: Vec<&NodeKind> = Vec::new();
        for node in usable_nodes(cluster) {
            let kind = cluster.node(node).kind();
            if !kinds.iter().any(|known| std::ptr::eq(*known, kind)) {
                kinds.push(kind);
            }
        }
        let mut slowest: Option<Self> = None;
        for kind in kinds {
            let hardware = Self::from_kind(kind, catalog)?;
            slowest = Some(slowest.map_or(hardware, |slowest| slowest.slower_of(&hardware)));
        }
        let hardware =
            slowest.ok_or_else(|| PerfError::NoUsableGpus { cluster: name(), gpus: cluster.gpu_count() })?;
        let usable = usable_nodes(cluster).flat_map(|node| cluster.node(node).gpus());
        let gpus = cluster.gpu_count() - Self::left_out_of(cluster);
        let domain = smallest_domain(cluster);
        let network = cluster.scale_out_bandwidth(usable).map(|found| found.per_gpu.get());
        let oversubscription = match network {
            Some(thin) if thin > 0.0 && hardware.scale_out > thin => hardware.scale_out / thin,
            _ => 1.0,
        };
        let hardware = Self { gpus, domain, oversubscription, ..hardware };
        if hardware.generation == Generation::Host && gpus > 1 {
            let name =
                usable_nodes(cluster).next().and_then(|node| cluster.node(node).kind().accelerator.clone());
            let entry = name.and_then(|name| catalog.accelerator(&name).ok());
            return Ok(hardware.among_local_ranks(entry));
        }
        Ok(hardware)
    }

    /// A host as its ranks see it: each has an equal part of its cores, memory and rates, and they meet in its memory.
    pub(crate) fn among_local_ranks(self, entry: Option<&Accelerator>) -> Self {
        let share = 1.0 / f64::from(self.gpus);
        Self {
            domain: self.gpus,
            peak_fp32: self.peak_fp32 * share,
            peak_bf16: self.peak_bf16 * share,
            peak_fp8: self.peak_fp8 * share,
            peak_fp4: self.peak_fp4 * share,
            memory_bandwidth: self.memory_bandwidth * share,
            memory: self.memory * share,
            measured: self.measured.map(|rates| rates.for_share(share)),
            collectives: entry
                .map_or(self.collectives, |entry| LocalCollectives::of(&entry.collectives, self.gpus)),
            ..self
        }
    }

    /// GPUs of a cluster that [`Hardware::from_cluster`] leaves out: those of nodes that take no work or have a
    /// failed GPU.
    pub fn left_out_of(cluster: &Cluster) -> u32 {
        let usable: u32 = usable_nodes(cluster).map(|node| cluster.node(node).gpus().len()).sum();
        cluster.gpu_count() - usable
    }

    /// Whether a step in a number format can be priced.
    pub fn has(&self, precision: ComputePrecision) -> bool {
        if let Some(measured) = &self.measured {
            return match precision {
                ComputePrecision::Fp32 => measured.fp32.is_some(),
                ComputePrecision::Bf16 => measured.bf16.is_some(),
                _ => false,
            };
        }
        match precision {
            ComputePrecision::Fp32 => false,
            ComputePrecision::Bf16 | ComputePrecision::Fp16 => true,
            ComputePrecision::Fp8 => self.has_fp8,
            ComputePrecision::Fp4 => self.has_fp4,
        }
    }

    /// The peak that utilisation refers to: bf16, or fp32 on a host that computes in fp32.
    pub fn peak(&self, precision: ComputePrecision) -> f64 {
        let is_wide = self.generation == Generation::Host && precision == ComputePrecision::Fp32;
        if is_wide { self.peak_fp32 } else { self.peak_bf16 }
    }

    /// One node of a kind.
    pub fn from_kind(kind: &NodeKind, catalog: &Catalog) -> Result<Self, PerfError> {
        let name = kind.accelerator.as_deref().unwrap_or_default();
        let accelerator =
            catalog.accelerator(name).map_err(|_| PerfError::UnknownAccelerator { name: name.to_owned() })?;
        let chip = Self::from_accelerator(accelerator, catalog)?;
        let accelerators = f64::from(kind.accelerators.max(1));
        Ok(Self {
            gpus: kind.accelerators,
            domain: kind.domain_sizes.first().copied().unwrap_or(1).max(1),
            scale_up: kind.scale_up_bandwidth.map_or(chip.scale_up, |rate| rate.get()),
            scale_out: kind.scale_out_bandwidth.map_or(chip.scale_out, |rate| rate.get() / accelerators),
            network: kind.scale_out.as_deref().map_or(chip.network, Network::of_fabric),
            ..chip
        })
    }

    /// One chip alone, with the links its vendor gives it and the network such chips usually have.
    pub fn from_accelerator(accelerator: &Accelerator, catalog: &Catalog) -> Result<Self, PerfError> {
        let missing = |what| PerfError::MissingFigure { accelerator: accelerator.name.clone(), what };
        let generation = Generation::named(&accelerator.generation);
        let measured = accelerator.measured.filter(|_| generation == Generation::Host);
        if generation == Generation::Host && measured.is_none() {
            return Err(missing("what `bedplate bench machine` measures"));
        }
        // A processor without a bf16 unit computes bf16 in fp32.
        let peak_bf16 = accelerator.peaks.bf16.or(measured.and(accelerator.peaks.fp32));
        let peak_bf16 = peak_bf16.ok_or_else(|| missing("a bf16 peak"))?.get();
        let bandwidth = accelerator.memory_bandwidth.ok_or_else(|| missing("a memory bandwidth"))?.get();
        let peak_fp8 = accelerator.peaks.fp8.map_or(peak_bf16, |peak| peak.get());
        let link = |name: &Option<String>| {
            name.as_deref().and_then(|name| catalog.fabric(name).ok()?.one_way_per_accelerator())
        };
        let host_link = link(&accelerator.host_link).map_or(PCIE_4, |rate| rate.get());
        Ok(Self {
            gpus: 1,
            domain: 1,
            generation,
            peak_fp32: accelerator.peaks.fp32.map_or(peak_bf16, |peak| peak.get()),
            peak_bf16,
            peak_fp8,
            peak_fp4: accelerator.peaks.fp4.map_or(peak_fp8, |peak| peak.get()),
            has_fp8: accelerator.peaks.fp8.is_some(),
            has_fp4: accelerator.peaks.fp4.is_some(),
            multiprocessors: accelerator.multiprocessors.map_or(108.0, f64::from),
            memory_bandwidth: bandwidth,
            memory: accelerator.memory_for_programs().get(),
            // Without a scale-up fabric neighbours communicate through the host.
            scale_up: link(&accelerator.scale_up).map_or(host_link, |rate| rate.get()),
            scale_out: usual_network(Generation::named(&accelerator.generation)),
            oversubscription: 1.0,
            network: Network::Rdma,
            host_link,
            measured,
            collectives: LocalCollectives::default(),
        })
    }

    /// The same machine with the largest power of two of each domain's GPUs, and the rest idle: groups of ranks then stay
    /// inside domains. `None` where a domain is a power of two, small, or not whole.
    pub fn with_idle_gpus(self) -> Option<Self> {
        let used = 1u32 << self.domain.max(1).ilog2();
        let is_rack = self.domain > 8 && used < self.domain && self.gpus.is_multiple_of(self.domain);
        is_rack.then(|| Self { gpus: self.gpus / self.domain * used, domain: used, ..self })
    }

    /// The same machine with TCP on the same network cards.
    pub fn without_rdma(self) -> Self {
        Self { network: Network::Tcp, ..self }
    }

    /// Whether the host is as near as Grace, over NVLink-C2C.
    pub fn has_grace(&self) -> bool {
        self.host_link >= 200e9
    }

    /// Bytes per second that a GPU can count on between domains, before protocol losses.
    pub(crate) fn network_bandwidth(&self) -> f64 {
        self.scale_out / self.oversubscription
    }

    fn slower_of(&self, other: &Self) -> Self {
        // Use the efficiency of the chip with the lower peak.
        let key = |hardware: &Self| (hardware.peak_bf16, hardware.generation);
        let slower = if key(other) < key(self) { other } else { self };
        Self {
            gpus: self.gpus.min(other.gpus),
            generation: slower.generation,
            measured: slower.measured,
            collectives: slower.collectives,
            peak_fp32: self.peak_fp32.min(other.peak_fp32),
            has_fp8: self.has_fp8 && other.has_fp8,
            has_fp4: self.has_fp4 && other.has_fp4,
            multiprocessors: self.multiprocessors.min(other.multiprocessors),
            oversubscription: self.oversubscription.max(other.oversubscription),
            network: self.network.slower_of(other.network),
            domain: self.domain.min(other.domain),
            peak_bf16: self.peak_bf16.min(other.peak_bf16),
            peak_fp8: self.peak_fp8.min(other.peak_fp8),
            peak_fp4: self.peak_fp4.min(other.peak_fp4),
            memory_bandwidth: self.memory_bandwidth.min(other.memory_bandwidth),
            memory: self.memory.min(other.memory),
            scale_up: self.scale_up.min(other.scale_up),
            scale_out: self.scale_out.min(other.scale_out),
            host_link: self.host_link.min(other.host_link),
        }
    }
}

/// Nodes that take work and have GPUs, none of them failed.
fn usable_nodes(cluster: &Cluster) -> impl Iterator<Item = NodeId> + Clone {
    cluster.nodes().into_iter().filter(|node| is_usable(cluster, *node))
}

fn is_usable(cluster: &Cluster, node: NodeId) -> bool {
    let gpus = cluster.node(node).gpus();
    let has_failed = !cluster.failed_gpus().is_empty() && gpus.iter().any(|gpu| cluster.has_failed(gpu));
    !gpus.is_empty() && cluster.health(node).takes_work() && !has_failed
}

/// GPUs of the smallest scale-up domain, counting only usable nodes.
fn smallest_domain(cluster: &Cluster) -> u32 {
    let is_whole = Hardware::left_out_of(cluster) == 0;
    let size = |gpu: GpuId| {
        let domain = cluster.domain_of(gpu);
        let is_usable = |gpu: &GpuId| is_usable(cluster, cluster.node_of(*gpu));
        if is_whole { domain.len() } else { domain.iter().filter(is_usable).count() as u32 }
    };
    let domains = |node: NodeId| {
        let gpus = cluster.node(node).gpus();
        let is_first = move |gpu: &GpuId| gpu.0 == gpus.start() || cluster.domain_of(*gpu).start() == gpu.0;
        gpus.iter().filter(is_first).map(size).min()
    };
    usable_nodes(cluster).filter_map(domains).min().unwrap_or(1)
}

/// PCIe 4 x16, one way, where no link is named.
const PCIE_4: f64 = 32e9;

/// One 200 Gbit/s card per A100, 400 per H100 and B200, 800 per B300: the vendors' reference designs.
fn usual_network(generation: Generation) -> f64 {
    match generation {
        Generation::Ampere => 25e9,
        Generation::Hopper | Generation::Blackwell => 50e9,
        Generation::BlackwellUltra => 100e9,
        Generation::Host | Generation::Other => 12.5e9,
    }
}

impl Generation {
    /// Whether constants were fitted to published runs on such chips.
    pub fn is_fitted(self) -> bool {
        !matches!(self, Generation::Host | Generation::Other)
    }

    pub fn named(name: &str) -> Self {
        match name {
            "ampere" => Generation::Ampere,
            "hopper" => Generation::Hopper,
            "blackwell" => Generation::Blackwell,
            "blackwell-ultra" => Generation::BlackwellUltra,
            "host" => Generation::Host,
            _ => Generation::Other,
        }
    }
}

impl Network {
    /// The one with less bandwidth, or the longer hops.
    fn slower_of(self, other: Self) -> Self {
        const BY_PACE: [Network; 6] =
            [Network::Tcp, Network::EfaV1, Network::EfaV2, Network::EfaV3, Network::EfaV4, Network::Rdma];
        BY_PACE.into_iter().find(|network| [self, other].contains(network)).unwrap_or(self)
    }

    /// The class of a fabric of the catalog.
    pub fn of_fabric(name: &str) -> Self {
        match name {
            "efa-v1" => Network::EfaV1,
            "efa-v2" => Network::EfaV2,
            "efa-v3" => Network::EfaV3,
            "efa-v4" => Network::EfaV4,
            _ if name.contains("tcp") || name.contains("ethernet") => Network::Tcp,
            _ => Network::Rdma,
        }
    }
}
