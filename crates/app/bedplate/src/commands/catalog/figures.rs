//! The figures of an entry as one list, for `show` and `compare`.

use bedplate_catalog::{
    Accelerator, Catalog, CatalogError, CollectiveTimes, Evidence, Fabric, Instance, Prices, Purchase,
    StorageClass, UltraServer,
};
use bedplate_diag::{nearest_names, shown};
use bedplate_units::Bandwidth;
use serde_json::Value;

use super::json;

/// An entry of any kind.
#[derive(Clone, Copy)]
pub(super) enum Entry<'a> {
    Accelerator(&'a Accelerator),
    Instance(&'a Instance),
    UltraServer(&'a UltraServer),
    Fabric(&'a Fabric),
    Storage(&'a StorageClass),
}

/// One figure: its label, its text, its number where it has one, and its source.
pub(super) struct Figure {
    pub(super) label: String,
    pub(super) text: String,
    pub(super) number: Option<f64>,
    /// Key of the source; prices have their own list of sources and none here.
    pub(super) source: Option<String>,
}

/// The entry of that name, whatever its kind.
pub(super) fn find<'a>(name: &str, catalog: &'a Catalog) -> Result<Entry<'a>, CatalogError> {
    let found = (catalog.instance(name).map(Entry::Instance))
        .or_else(|_| catalog.ultraserver(name).map(Entry::UltraServer))
        .or_else(|_| catalog.accelerator(name).map(Entry::Accelerator))
        .or_else(|_| catalog.fabric(name).map(Entry::Fabric))
        .or_else(|_| catalog.storage_class(name).map(Entry::Storage));
    found.map_err(|_| {
        let names = (catalog.instances.iter().map(|entry| entry.name.as_str()))
            .chain(catalog.ultraservers.iter().map(|entry| entry.name.as_str()))
            .chain(catalog.accelerators.iter().map(|entry| entry.name.as_str()))
            .chain(catalog.fabrics.iter().map(|entry| entry.name.as_str()))
            .chain(catalog.storage.iter().map(|entry| entry.name.as_str()));
        let near = nearest_names(name, names, 2).into_iter().map(str::to_owned).collect();
        CatalogError::UnknownName { kind: "entry", name: shown(name), near }
    })
}

impl<'a> Entry<'a> {
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Entry::Accelerator(_) => "accelerator",
            Entry::Instance(_) | Entry::UltraServer(_) => "machine",
            Entry::Fabric(_) => "fabric",
            Entry::Storage(_) => "storage class",
        }
    }

    pub(super) fn name(&self) -> &str {
        match self {
            Entry::Accelerator(entry) => &entry.name,
            Entry::Instance(entry) => &entry.name,
            Entry::UltraServer(entry) => &entry.name,
            Entry::Fabric(entry) => &entry.name,
            Entry::Storage(entry) => &entry.name,
        }
    }

    /// The long name, where the short one is not clear.
    pub(super) fn title(&self) -> Option<&'a str> {
        match self {
            Entry::Accelerator(entry) => Some(&entry.title),
            Entry::Instance(entry) => entry.title.as_deref(),
            Entry::UltraServer(entry) => entry.title.as_deref(),
            Entry::Fabric(entry) => Some(&entry.title),
            Entry::Storage(entry) => Some(&entry.title),
        }
    }

    pub(super) fn evidence(&self) -> &'a Evidence {
        match self {
            Entry::Accelerator(entry) => &entry.evidence,
            Entry::Instance(entry) => &entry.evidence,
            Entry::UltraServer(entry) => &entry.evidence,
            Entry::Fabric(entry) => &entry.evidence,
            Entry::Storage(entry) => &entry.evidence,
        }
    }

    pub(super) fn notes(&self) -> Option<&str> {
        match self {
            Entry::Accelerator(entry) => entry.notes.as_deref(),
            Entry::Instance(entry) => entry.notes.as_deref(),
            Entry::UltraServer(entry) => entry.notes.as_deref(),
            Entry::Fabric(entry) => entry.notes.as_deref(),
            Entry::Storage(entry) => entry.notes.as_deref(),
        }
    }

    pub(super) fn json(&self, catalog: &Catalog) -> Value {
        match self {
            Entry::Accelerator(entry) => json::accelerator(entry),
            Entry::Instance(entry) => json::instance(entry, catalog),
            Entry::UltraServer(entry) => json::ultraserver(entry),
            Entry::Fabric(entry) => json::fabric(entry),
            Entry::Storage(entry) => json::storage(entry),
        }
    }

    pub(super) fn figures(&self, catalog: &'a Catalog) -> Vec<Figure> {
        let mut list = Figures { figures: Vec::new(), evidence: self.evidence() };
        match self {
            Entry::Accelerator(entry) => list.add_accelerator(entry),
            Entry::Instance(entry) => list.add_instance(entry, catalog),
            Entry::UltraServer(entry) => list.add_ultraserver(entry, catalog),
            Entry::Fabric(entry) => list.add_fabric(entry),
            Entry::Storage(entry) => list.add_storage(entry),
        }
        list.figures
    }
}

/// The list under construction; figures are attributed to the sources of `evidence`.
struct Figures<'a> {
    figures: Vec<Figure>,
    evidence: &'a Evidence,
}

impl<'a> Figures<'a> {
    /// A quantity that may be unknown; unknown ones are left out.
    fn number<T: ToString + Copy>(&mut self, field: &str, label: &str, value: Option<T>, get: fn(T) -> f64) {
        if let Some(value) = value {
            self.push(field, label, value.to_string(), Some(get(value)));
        }
    }

    fn text<T: ToString>(&mut self, field: &str, label: &str, value: Option<T>) {
        if let Some(value) = value {
            self.push(field, label, value.to_string(), None);
        }
    }

    fn push(&mut self, field: &str, label: &str, text: String, number: Option<f64>) {
        let source = Some(self.evidence.source_of(field).to_owned());
        self.figures.push(Figure { label: label.to_owned(), text, number, source });
    }

    fn add_accelerator(&mut self, entry: &Accelerator) {
        self.text("vendor", "vendor", Some(format!("{}, {}", entry.vendor, entry.generation)));
        self.add_peaks(entry);
        self.number("memory", "memory, as sold", Some(entry.memory), |size| size.get());
        self.text("memory_kind", "memory kind", entry.memory_kind.as_ref());
        let usable = entry.memory_usable.map(|size| format!("{size} ({size:#})"));
        self.text("memory_usable", "usable memory", usable);
        self.number("memory_bandwidth", "memory bandwidth", entry.memory_bandwidth, |rate| rate.get());
        self.add_measured(entry);
        self.text("scale_up", "scale-up fabric", entry.scale_up.as_ref());
        self.text("host_link", "host link", entry.host_link.as_ref());
        self.number("multiprocessors", "multiprocessors", entry.multiprocessors, f64::from);
        self.text("compute_capability", "compute capability", entry.compute_capability.as_ref());
        self.number("power", "power", entry.power, |power| power.get());
        let aliases = (!entry.aliases.is_empty()).then(|| entry.aliases.join(", "));
        self.text("aliases", "also called", aliases);
    }

    fn add_peaks(&mut self, entry: &Accelerator) {
        for (format, peak) in entry.peaks.by_format() {
            self.number(format, &format!("{format}, dense"), peak, |rate| rate.get());
        }
    }

    /// Rates measured on a host.
    fn add_measured(&mut self, entry: &Accelerator) {
        let Some(measured) = entry.measured else { return };
        self.number("measured", "measured with threads", Some(measured.threads), f64::from);
        for (format, rates) in measured.by_format() {
            let Some(rates) = rates else { continue };
            for (key, rate) in rates.flop_rates() {
                let label = format!("{format} {}, measured", key.replace('_', " "));
                self.number("measured", &label, Some(rate), |rate| rate.get());
            }
            for (key, rate) in rates.bandwidths() {
                let label = format!("{format} {}, measured", key.replace('_', " "));
                self.number("measured", &label, Some(rate), |rate| rate.get());
            }
        }
        self.number("measured", "memory copy, measured", Some(measured.copy), |rate| rate.get());
        self.number("measured", "optimizer, measured", Some(measured.optimizer), |rate| rate.get());
        for CollectiveTimes { operation, ranks, curve } in &entry.collectives {
            let (size, time) = curve.points().last().expect("a curve has a point: checked when it is made");
            let label = format!("{} on {ranks} ranks, measured", operation.replace('_', " "));
            self.number("collective", &label, Some(Bandwidth::new(size.get() / time.get())), |rate| {
                rate.get()
            });
        }
    }

    fn add_instance(&mut self, entry: &'a Instance, catalog: &'a Catalog) {
        let accelerator = catalog.accelerator_of(entry);
        self.text("provider", "provider", Some(&entry.provider));
        self.text("accelerator", "accelerator", Some(&accelerator.name));
        self.number("accelerators", "accelerators", Some(entry.accelerators), f64::from);
        self.add_per_accelerator(accelerator, entry.host_link.is_some());
        self.number("accelerator_memory", "memory, total", Some(catalog.total_memory(entry)), |size| {
            size.get()
        });
        self.number("scale_up_domain", "scale-up domain", Some(entry.scale_up_domain), f64::from);
        self.number("scale_up_bandwidth", "scale-up, both ways", entry.scale_up_bandwidth, |rate| rate.get());
        self.text("scale_out", "scale-out fabric", entry.scale_out.as_ref());
        self.number("scale_out_bandwidth", "scale-out, one way", entry.scale_out_bandwidth, |rate| {
            rate.get()
        });
        self.number("scale_out_cards", "network cards", entry.scale_out_cards, f64::from);
        self.text("host_link", "host link", entry.host_link.as_ref());
        self.number("vcpus", "vCPUs", entry.vcpus, f64::from);
        if let Some(memory) = entry.host_memory {
            self.push("host_memory", "host memory", format!("{memory:#}"), Some(memory.get()));
        }
        let capacity = entry.local_storage.as_ref().map(|disks| disks.capacity());
        self.number("local_device_size", "local disks", capacity, |size| size.get());
        self.text("ultracluster", "UltraCluster", entry.ultracluster.as_ref());
        self.add_prices(&entry.prices);
    }

    fn add_ultraserver(&mut self, entry: &'a UltraServer, catalog: &'a Catalog) {
        if let Ok(instance) = catalog.instance(&entry.instance) {
            let accelerator = catalog.accelerator_of(instance);
            self.text("instance", "made of", Some(format!("{} x {}", entry.instances, entry.instance)));
            self.text("accelerator", "accelerator", Some(&accelerator.name));
            self.number("accelerators", "accelerators", Some(entry.accelerators), f64::from);
            self.add_per_accelerator(accelerator, instance.host_link.is_some());
        }
        self.number("accelerator_memory", "memory, total", entry.accelerator_memory, |size| size.get());
        self.number("accelerators", "scale-up domain", Some(entry.accelerators), f64::from);
        self.number("scale_up_bandwidth", "scale-up, both ways", entry.scale_up_bandwidth, |rate| rate.get());
        self.text("scale_out", "scale-out fabric", entry.scale_out.as_ref());
        self.number("scale_out_bandwidth", "scale-out, one way", entry.scale_out_bandwidth, |rate| {
            rate.get()
        });
        self.add_prices(&entry.prices);
    }

    /// Figures of one accelerator of a machine, attributed to the accelerator's own sources.
    fn add_per_accelerator(&mut self, accelerator: &'a Accelerator, has_own_link: bool) {
        let of_machine = std::mem::replace(&mut self.evidence, &accelerator.evidence);
        self.number("bf16", "bf16, each", accelerator.peaks.bf16, |rate| rate.get());
        self.number("fp8", "fp8, each", accelerator.peaks.fp8, |rate| rate.get());
        self.number("fp4", "fp4, each", accelerator.peaks.fp4, |rate| rate.get());
        self.number("memory", "memory, each, as sold", Some(accelerator.memory), |size| size.get());
        let bandwidth = accelerator.memory_bandwidth;
        self.number("memory_bandwidth", "memory bandwidth, each", bandwidth, |rate| rate.get());
        self.add_measured(accelerator);
        if !has_own_link {
            self.text("host_link", "host link", accelerator.host_link.as_ref());
        }
        self.evidence = of_machine;
    }

    fn add_prices(&mut self, prices: &Prices) {
        for (name, purchase) in Purchase::ALL {
            let newest = prices.newest(purchase, None);
            self.figures.extend(newest.map(|price| Figure {
                label: format!("{name} price"),
                text: price.per_hour.to_string(),
                number: Some(price.per_hour.get()),
                source: None,
            }));
        }
    }

    fn add_fabric(&mut self, entry: &Fabric) {
        self.text("kind", "kind", Some(entry.kind.name()));
        self.text("family", "family", Some(&entry.family));
        let directions = if entry.directions == 2 { "both ways" } else { "one way" };
        let label = format!("per accelerator, {directions}");
        self.number("per_accelerator", &label, entry.per_accelerator, |rate| rate.get());
        self.number("per_port", "per port, one way", entry.per_port, |rate| rate.get());
        self.number("latency", "latency", entry.latency, |time| time.get());
        self.text("protocol", "protocol", entry.protocol.as_ref());
    }

    fn add_storage(&mut self, entry: &StorageClass) {
        let yes_no = |answer: bool| Some(if answer { "yes" } else { "no" });
        self.text("tier", "tier", Some(entry.tier.name()));
        self.text("durable", "outlives the machine", yes_no(entry.is_durable));
        self.text("posix", "POSIX file system", yes_no(entry.is_posix));
        self.text("gpu_direct", "GPUDirect Storage", yes_no(entry.has_gpu_direct));
        let cannot = (!entry.cannot.is_empty()).then(|| entry.cannot.join("; "));
        self.text("cannot", "cannot", cannot);
        self.number("latency", "latency", entry.latency, |time| time.get());
        self.number("throughput_per_tib", "throughput per TiB", entry.throughput_per_tib, |rate| rate.get());
        let per_client = entry.throughput_per_client;
        self.number("throughput_per_client", "throughput per client", per_client, |rate| rate.get());
        let per_volume = entry.throughput_per_volume;
        self.number("throughput_per_volume", "throughput per volume", per_volume, |rate| rate.get());
        self.number("iops", "IOPS", entry.iops, |count| count as f64);
        self.number("max_object", "largest object", entry.max_object, |size| size.get());
    }
}
