//! The kinds of nodes a cluster is made of: few, shared by many nodes.

use bedplate_catalog::{Accelerator, Catalog, CatalogError, Instance, LocalStorage, UltraServer};
use bedplate_units::{Bandwidth, Bytes};

/// What one machine holds. Unknown figures are absent, never zero.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeKind {
    /// Unique within a cluster: the instance name, or something like `h100-x8`.
    pub name: String,
    /// Name of the catalog's instance, where the kind comes from there.
    pub instance: Option<String>,
    /// Name of the catalog's accelerator; absent for machines without one.
    pub accelerator: Option<String>,
    /// GPUs per node.
    pub accelerators: u32,
    /// Sizes of the scale-up domains within the node, in the order of its GPUs; they add up to
    /// `accelerators`. Whether such a domain extends over other nodes is up to the cluster.
    pub domain_sizes: Vec<u32>,
    /// Name of the catalog's UltraServer that it is part of, where that changes its figures.
    pub ultraserver: Option<String>,
    /// One way, per GPU. Vendors print both directions added; this is half of that.
    pub scale_up_bandwidth: Option<Bandwidth>,
    /// Name of the fabric between nodes.
    pub scale_out: Option<String>,
    /// One way, over all network cards of the node.
    pub scale_out_bandwidth: Option<Bandwidth>,
    pub network_cards: Option<u32>,
    pub vcpus: Option<u32>,
    /// As sold, where the kind comes from the catalog; else what the description says.
    pub memory: Option<Bytes>,
    /// The memory that the operating system sees, where the description states it next to a catalog instance
    /// (Slurm's `RealMemory`). It is always less than what is sold.
    pub reported_memory: Option<Bytes>,
    pub local_storage: Option<LocalStorage>,
}

impl NodeKind {
    /// A machine of the catalog.
    pub fn from_instance(instance: &Instance, catalog: &Catalog) -> Self {
        let accelerator = catalog.accelerator(&instance.accelerator).ok();
        Self {
            name: instance.name.clone(),
            instance: Some(instance.name.clone()),
            ultraserver: None,
            accelerator: Some(accelerator.map_or(&instance.accelerator, |known| &known.name).clone()),
            accelerators: instance.accelerators,
            domain_sizes: even_domains(instance.accelerators, instance.scale_up_domain),
            scale_up_bandwidth: instance_scale_up(instance)
                .or_else(|| fabric_scale_up(accelerator?, catalog))
                .filter(|_| instance.scale_up_domain > 1),
            scale_out: instance.scale_out.clone(),
            scale_out_bandwidth: instance.scale_out_bandwidth,
            network_cards: instance.scale_out_cards,
            vcpus: instance.vcpus,
            memory: instance.host_memory,
            reported_memory: None,
            local_storage: instance.local_storage.clone(),
        }
    }

    /// A machine of the catalog as part of an UltraServer, which then supplies the figure for the whole domain.
    pub fn from_ultraserver(server: &UltraServer, instance: &Instance, catalog: &Catalog) -> Self {
        let kind = Self::from_instance(instance, catalog);
        let both_directions = server.scale_up_bandwidth.filter(|_| server.accelerators > 0);
        let own = both_directions.map(|both| both / f64::from(server.accelerators) / 2.0);
        match own {
            Some(own) if Some(own) != kind.scale_up_bandwidth => {
                Self { scale_up_bandwidth: Some(own), ultraserver: Some(server.name.clone()), ..kind }
            }
            _ => kind,
        }
    }

    /// A machine with only its accelerators known. They share one scale-up domain where the
    /// accelerator has a switched scale-up fabric; bridges between pairs are not assumed.
    pub fn from_accelerator(accelerator: &Accelerator, count: u32, catalog: &Catalog) -> Self {
        let is_bridge = accelerator.scale_up.as_ref().is_some_and(|fabric| fabric.ends_with("bridge"));
        let bandwidth = fabric_scale_up(accelerator, catalog).filter(|_| !is_bridge);
        Self {
            accelerator: Some(accelerator.name.clone()),
            accelerators: count,
            domain_sizes: even_domains(count, if bandwidth.is_some() { count } else { 1 }),
            scale_up_bandwidth: bandwidth,
            ..Self::bare(format!("{}-x{count}", accelerator.name))
        }
    }

    /// A machine with a number of GPUs of which nothing else is known.
    pub fn of_unknown_gpus(name: impl Into<String>, count: u32) -> Self {
        Self { accelerators: count, domain_sizes: even_domains(count, 1), ..Self::bare(name) }
    }

    /// A machine without accelerators and with nothing else known.
    pub fn bare(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            instance: None,
            ultraserver: None,
            accelerator: None,
            accelerators: 0,
            domain_sizes: Vec::new(),
            scale_up_bandwidth: None,
            scale_out: None,
            scale_out_bandwidth: None,
            network_cards: None,
            vcpus: None,
            memory: None,
            reported_memory: None,
            local_storage: None,
        }
    }

    /// The GPUs, counted within the node, of the scale-up domain that holds GPU `local`.
    pub fn domain_within(&self, local: u32) -> std::ops::Range<u32> {
        let mut start = 0;
        for size in &self.domain_sizes {
            if local < start + size {
                return start..start + size;
            }
            start += size;
        }
        local..local + 1
    }
}

fn instance_scale_up(instance: &Instance) -> Option<Bandwidth> {
    let both_directions = instance.scale_up_bandwidth?;
    (instance.accelerators > 0).then(|| both_directions / f64::from(instance.accelerators) / 2.0)
}

fn fabric_scale_up(accelerator: &Accelerator, catalog: &Catalog) -> Option<Bandwidth> {
    catalog.fabric(accelerator.scale_up.as_ref()?).ok()?.one_way_per_accelerator()
}

/// Domains of `size`, the last one smaller where it does not divide.
pub(crate) fn even_domains(accelerators: u32, size: u32) -> Vec<u32> {
    let size = size.clamp(1, accelerators.max(1));
    let mut sizes = vec![size; (accelerators / size) as usize];
    if !accelerators.is_multiple_of(size) {
        sizes.push(accelerators % size);
    }
    sizes
}

/// Whether this instance's scale-up domain spans other nodes: some UltraServer is made of it.
pub(crate) fn instance_is_multi_node(instance: &str, catalog: &Catalog) -> bool {
    catalog.ultraservers.iter().any(|server| server.instances > 1 && server.instance == instance)
}

/// Whether some machine with this accelerator has a scale-up domain over several nodes.
pub(crate) fn accelerator_is_multi_node(accelerator: &str, catalog: &Catalog) -> bool {
    let of_accelerator = |instance: &&Instance| instance.accelerator == accelerator;
    catalog
        .instances
        .iter()
        .filter(of_accelerator)
        .any(|instance| instance_is_multi_node(&instance.name, catalog))
}

/// The accelerator of a driver's product name, a node label or a GRES type.
///
/// Names and aliases first; then the same without regard to blanks, dashes and underscores, because Slurm
/// turns `NVIDIA H100 80GB HBM3` into `nvidia_h100_80gb_hbm3`.
pub(crate) fn find_accelerator<'a>(
    name: &str,
    catalog: &'a Catalog,
) -> Result<&'a Accelerator, CatalogError> {
    catalog.accelerator(name).or_else(|error| {
        let wanted = letters(name);
        let answers = |known: &&Accelerator| {
            std::iter::once(&known.name)
                .chain(&known.aliases)
                .chain(std::iter::once(&known.title))
                .any(|other| letters(other) == wanted)
        };
        catalog.accelerators.iter().find(answers).ok_or(error)
    })
}

/// Instances that have an accelerator, those with several first; few enough to read.
pub(crate) fn instances_with(accelerator: &Accelerator, catalog: &Catalog) -> Vec<String> {
    let mut found: Vec<&Instance> =
        catalog.instances.iter().filter(|known| catalog.accelerator_of(known) == accelerator).collect();
    found.sort_by_key(|instance| instance.accelerators == 1);
    found.into_iter().take(4).map(|instance| instance.name.clone()).collect()
}

/// The accelerator that a description names for a machine, where it differs from the instance's.
///
/// A name unknown to the catalog contradicts nothing, nor does a shorter one: `a100` may be
/// `a100-40gb`.
pub(crate) fn contradicts(named: &str, kind: &NodeKind, catalog: &Catalog) -> Option<String> {
    let expected = kind.accelerator.as_deref()?;
    let found = find_accelerator(named, catalog).ok()?;
    let is_same = found.name == expected || letters(expected).starts_with(&letters(named));
    (!is_same).then(|| found.name.clone())
}

fn letters(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).take(100).collect()
}
