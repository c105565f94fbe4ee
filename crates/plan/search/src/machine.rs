//! What the catalog sells, as units that a search can count: instances and UltraServers.

use bedplate_catalog::{Catalog, Prices};
use bedplate_perf::{Hardware, PerfError};
use bedplate_topology::NodeKind;

/// One unit that can be rented.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    pub name: String,
    pub provider: String,
    /// GPUs of one unit.
    pub gpus: u32,
    /// Nodes of one unit: an UltraServer has several.
    pub nodes: u32,
    /// One unit, or the figure that the catalog lacks.
    pub hardware: Result<Hardware, PerfError>,
    pub prices: Prices,
}

impl Machine {
    /// Every instance and UltraServer with accelerators, in the order of the catalog.
    pub fn of_catalog(catalog: &Catalog) -> Vec<Machine> {
        let instances = catalog.instances.iter().filter(|instance| instance.accelerators > 0);
        let instances = instances.map(|instance| Machine {
            name: instance.name.clone(),
            provider: instance.provider.clone(),
            gpus: instance.accelerators,
            nodes: 1,
            hardware: Hardware::from_kind(&NodeKind::from_instance(instance, catalog), catalog),
            prices: instance.prices.clone(),
        });
        let racks = catalog.ultraservers.iter().filter_map(|rack| {
            let instance = catalog.instance(&rack.instance).ok()?;
            let node = Hardware::from_kind(&NodeKind::from_instance(instance, catalog), catalog);
            let hardware =
                node.map(|node| Hardware { gpus: rack.accelerators, domain: rack.accelerators, ..node });
            Some(Machine {
                name: rack.name.clone(),
                provider: instance.provider.clone(),
                gpus: rack.accelerators,
                nodes: rack.instances,
                hardware,
                prices: rack.prices.clone(),
            })
        });
        instances.chain(racks).collect()
    }
}
