//! Selecting instances by what a run needs.

use bedplate_units::{Bandwidth, Bytes, Dollars};

use crate::{Bound, Catalog, Instance, Purchase};

/// What an instance must offer. An instance whose figure is unknown does not meet a bound on it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Need {
    /// Memory of one accelerator.
    pub memory: Option<Bound<Bytes>>,
    /// Memory of all accelerators of the instance.
    pub total_memory: Option<Bound<Bytes>>,
    pub accelerators: Option<Bound<u32>>,
    /// Name or alias of the accelerator.
    pub accelerator: Option<String>,
    /// Name or family of a fabric: `efa`, `efa-v3`, `nvlink`.
    pub fabric: Option<String>,
    pub scale_out: Option<Bound<Bandwidth>>,
    pub provider: Option<String>,
    /// Dollars per hour, at the newest price known of this purchase and region.
    pub price: Option<Bound<Dollars>>,
    pub purchase: Purchase,
    pub region: Option<String>,
}

impl Need {
    pub fn is_met_by(&self, instance: &Instance, catalog: &Catalog) -> bool {
        let accelerator = catalog.accelerator_of(instance);
        let price = instance.prices.newest(self.purchase, self.region.as_deref());
        let price = price.map(|price| price.per_hour.hourly());
        holds(&self.memory, Some(accelerator.memory))
            && holds(&self.total_memory, Some(catalog.total_memory(instance)))
            && holds(&self.accelerators, Some(instance.accelerators))
            && holds(&self.scale_out, instance.scale_out_bandwidth)
            && holds(&self.price, price)
            && self.provider.as_ref().is_none_or(|name| name.eq_ignore_ascii_case(&instance.provider))
            && self.is_wanted_accelerator(instance, catalog)
            && self.has_wanted_fabric(instance, catalog)
    }

    fn is_wanted_accelerator(&self, instance: &Instance, catalog: &Catalog) -> bool {
        self.accelerator.as_ref().is_none_or(|wanted| {
            catalog.accelerator(wanted).is_ok_and(|found| found.name == instance.accelerator)
        })
    }

    fn has_wanted_fabric(&self, instance: &Instance, catalog: &Catalog) -> bool {
        let Some(wanted) = &self.fabric else { return true };
        let scale_up = catalog.accelerator_of(instance).scale_up.as_ref();
        [instance.scale_out.as_ref(), scale_up].into_iter().flatten().any(|name| {
            catalog.fabric(name).is_ok_and(|fabric| {
                fabric.name.eq_ignore_ascii_case(wanted) || fabric.family.eq_ignore_ascii_case(wanted)
            })
        })
    }
}

fn holds<T: Ord>(bound: &Option<Bound<T>>, value: Option<T>) -> bool {
    match bound {
        None => true,
        Some(bound) => value.is_some_and(|value| bound.holds(&value)),
    }
}
