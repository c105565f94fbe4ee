//! One entry of each kind, from a merged table to a checked value.

mod collective;
mod measured;

use bedplate_document::{DocumentError, Readable, Table};
use bedplate_units::{Bytes, FlopRate};

use super::{Draft, Layer};
use crate::{
    Accelerator, Catalog, Disagreement, Evidence, Fabric, FabricKind, Instance, LocalStorage, Peaks, Price,
    Prices, Purchase, StorageClass, StoragePrice, StorageTier, UltraServer,
};

/// More accelerators than any machine or domain has.
const MOST_ACCELERATORS: u32 = 100_000;

/// Reads one entry. It may refer only to what the catalog already holds.
pub(super) struct Reader<'a> {
    draft: &'a Draft,
    table: &'a Table,
    catalog: &'a Catalog,
}

impl<'a> Reader<'a> {
    pub(super) fn new(draft: &'a Draft, catalog: &'a Catalog) -> Self {
        Self { draft, table: &draft.table, catalog }
    }

    pub(super) fn fabric(self) -> Result<Fabric, DocumentError> {
        let fabric = Fabric {
            name: self.name()?,
            title: self.table.required("title")?,
            kind: self.table.choice("kind", &FabricKind::ALL)?,
            family: self.table.required("family")?,
            generation: self.table.optional("generation")?,
            per_accelerator: self.positive("per_accelerator")?,
            directions: self.table.or("directions", 1)?,
            per_port: self.positive("per_port")?,
            latency: self.table.optional("latency")?,
            protocol: self.table.optional("protocol")?,
            notes: self.table.optional("notes")?,
            evidence: self.evidence()?,
        };
        if !matches!(fabric.directions, 1 | 2) {
            return Err(self.table.bad_value("directions", "a link has 1 or 2 directions"));
        }
        self.table.finish().map(|()| fabric)
    }

    pub(super) fn storage(self) -> Result<StorageClass, DocumentError> {
        let storage = StorageClass {
            name: self.name()?,
            title: self.table.required("title")?,
            tier: self.table.choice("tier", &StorageTier::ALL)?,
            is_durable: self.table.required("durable")?,
            is_posix: self.table.required("posix")?,
            has_gpu_direct: self.table.or("gpu_direct", false)?,
            latency: self.table.optional("latency")?,
            throughput_per_tib: self.positive("throughput_per_tib")?,
            throughput_per_client: self.positive("throughput_per_client")?,
            throughput_per_volume: self.positive("throughput_per_volume")?,
            iops: self.table.optional("iops")?,
            max_object: self.table.optional("max_object")?,
            cannot: self.table.or("cannot", Vec::new())?,
            prices: self.storage_prices()?,
            notes: self.table.optional("notes")?,
            evidence: self.evidence()?,
        };
        self.table.finish().map(|()| storage)
    }

    pub(super) fn accelerator(self) -> Result<Accelerator, DocumentError> {
        let accelerator = Accelerator {
            name: self.name()?,
            title: self.table.required("title")?,
            aliases: self.table.or("aliases", Vec::new())?,
            vendor: self.table.required("vendor")?,
            generation: self.table.required("generation")?,
            peaks: self.peaks()?,
            memory: self.memory()?,
            memory_usable: self.table.optional("memory_usable")?,
            memory_kind: self.table.optional("memory_kind")?,
            memory_bandwidth: self.positive("memory_bandwidth")?,
            multiprocessors: self.table.optional("multiprocessors")?,
            compute_capability: self.table.optional("compute_capability")?,
            power: self.table.optional("power")?,
            scale_up: self.fabric_name("scale_up", FabricKind::ScaleUp)?,
            host_link: self.fabric_name("host_link", FabricKind::HostLink)?,
            measured: measured::read(self.table)?,
            collectives: collective::read(self.table)?,
            notes: self.table.optional("notes")?,
            evidence: self.evidence()?,
        };
        // Vendors print GiB of memory as GB, so usable memory may exceed the nominal figure by 7 %.
        if accelerator.memory_usable.is_some_and(|usable| usable > accelerator.memory * 1.08) {
            return Err(self.table.bad_value("memory_usable", "it is larger than `memory`"));
        }
        self.table.finish().map(|()| accelerator)
    }

    pub(super) fn instance(self) -> Result<Instance, DocumentError> {
        let name = self.name()?;
        let accelerators = self.accelerator_count("accelerators")?;
        let instance = Instance {
            name,
            title: self.table.optional("title")?,
            provider: self.table.required("provider")?,
            accelerator: self.accelerator_name()?,
            accelerators,
            vcpus: self.table.optional("vcpus")?,
            host_memory: self.table.optional("host_memory")?,
            accelerator_memory: self.table.optional("accelerator_memory")?,
            scale_up_domain: self.scale_up_domain(accelerators)?,
            scale_up_bandwidth: self.positive("scale_up_bandwidth")?,
            scale_out: self.fabric_name("scale_out", FabricKind::ScaleOut)?,
            scale_out_bandwidth: self.positive("scale_out_bandwidth")?,
            scale_out_cards: self.table.optional("scale_out_cards")?,
            host_link: self.fabric_name("host_link", FabricKind::HostLink)?,
            local_storage: self.local_storage()?,
            ultracluster: self.table.optional("ultracluster")?,
            is_only_in_ultraservers: self.table.or("only_in_ultraservers", false)?,
            prices: self.prices()?,
            notes: self.table.optional("notes")?,
            evidence: self.evidence()?,
        };
        if !(1..=accelerators).contains(&instance.scale_up_domain) {
            let reason = format!("a domain within the machine has 1 to {accelerators} accelerators");
            return Err(self.table.bad_value("scale_up_domain", reason));
        }
        self.table.finish().map(|()| instance)
    }

    pub(super) fn ultraserver(self) -> Result<UltraServer, DocumentError> {
        let ultraserver = UltraServer {
            name: self.name()?,
            title: self.table.optional("title")?,
            instance: self.instance_name()?,
            instances: self.accelerator_count("instances")?,
            accelerators: self.accelerator_count("accelerators")?,
            accelerator_memory: self.table.optional("accelerator_memory")?,
            scale_up_bandwidth: self.positive("scale_up_bandwidth")?,
            scale_out: self.fabric_name("scale_out", FabricKind::ScaleOut)?,
            scale_out_bandwidth: self.positive("scale_out_bandwidth")?,
            prices: self.prices()?,
            notes: self.table.optional("notes")?,
            evidence: self.evidence()?,
        };
        let per_instance = self.catalog.instance(&ultraserver.instance).map_or(0, |found| found.accelerators);
        if per_instance.checked_mul(ultraserver.instances) != Some(ultraserver.accelerators) {
            let reason = format!(
                "{} instances with {per_instance} accelerators each do not make that many",
                ultraserver.instances
            );
            return Err(self.table.bad_value("accelerators", reason));
        }
        self.table.finish().map(|()| ultraserver)
    }

    fn name(&self) -> Result<String, DocumentError> {
        let name: String = self.table.required("name")?;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || name.len() > 80 || !name.chars().all(is_plain) {
            let reason = "a name has 1 to 80 letters, digits, `.`, `-` or `_`";
            return Err(self.table.bad_value("name", reason));
        }
        Ok(name)
    }

    fn peaks(&self) -> Result<Peaks, DocumentError> {
        let peak = |format: &str| self.positive::<FlopRate>(format);
        Ok(Peaks {
            fp32: peak("fp32")?,
            tf32: peak("tf32")?,
            bf16: peak("bf16")?,
            fp8: peak("fp8")?,
            fp4: peak("fp4")?,
            int8: peak("int8")?,
        })
    }

    fn memory(&self) -> Result<Bytes, DocumentError> {
        let memory: Bytes = self.table.required("memory")?;
        if memory.is_zero() || memory > Bytes::tb(1000.0) {
            return Err(self.table.bad_value("memory", "an accelerator has more than 0 and less than 1 PB"));
        }
        Ok(memory)
    }

    /// A quantity that is not zero where it is given: a link without bandwidth is left out instead.
    fn positive<T: Readable + Ord + Default>(&self, key: &str) -> Result<Option<T>, DocumentError> {
        let value: Option<T> = self.table.optional(key)?;
        match value {
            Some(value) if value == T::default() => {
                Err(self.table.bad_value(key, "it is zero; leave the key out where there is none"))
            }
            other => Ok(other),
        }
    }

    fn accelerator_count(&self, key: &str) -> Result<u32, DocumentError> {
        let count: u32 = self.table.required(key)?;
        if (1..=MOST_ACCELERATORS).contains(&count) {
            return Ok(count);
        }
        Err(self.table.bad_value(key, format!("{count} is not between 1 and {MOST_ACCELERATORS}")))
    }

    /// The default: all accelerators of the machine if they have a scale-up fabric, else each alone.
    fn scale_up_domain(&self, accelerators: u32) -> Result<u32, DocumentError> {
        let name: String = self.table.required("accelerator")?;
        let is_joined = self.catalog.accelerator(&name).is_ok_and(|found| found.scale_up.is_some());
        self.table.or("scale_up_domain", if is_joined { accelerators } else { 1 })
    }

    fn fabric_name(&self, key: &str, kind: FabricKind) -> Result<Option<String>, DocumentError> {
        let Some(name) = self.table.optional::<String>(key)? else { return Ok(None) };
        match self.catalog.fabric(&name) {
            Ok(fabric) if fabric.kind == kind => Ok(Some(fabric.name.clone())),
            Ok(fabric) => {
                let reason = format!("`{name}` is a {} fabric, not {}", fabric.kind.name(), kind.name());
                Err(self.table.bad_value(key, reason))
            }
            Err(error) => Err(self.unknown_reference(key, &error)),
        }
    }

    fn accelerator_name(&self) -> Result<String, DocumentError> {
        let name: String = self.table.required("accelerator")?;
        let found = self.catalog.accelerator(&name);
        found.map(|found| found.name.clone()).map_err(|error| self.unknown_reference("accelerator", &error))
    }

    fn instance_name(&self) -> Result<String, DocumentError> {
        let name: String = self.table.required("instance")?;
        let found = self.catalog.instance(&name);
        found.map(|found| found.name.clone()).map_err(|error| self.unknown_reference("instance", &error))
    }

    fn unknown_reference(&self, key: &str, error: &crate::CatalogError) -> DocumentError {
        let help = bedplate_diag::Diagnostic::help(error).map(|help| format!("; {help}")).unwrap_or_default();
        self.table.bad_value(key, format!("{error}{help}"))
    }

    fn local_storage(&self) -> Result<Option<LocalStorage>, DocumentError> {
        let class: Option<String> = self.table.optional("local_storage")?;
        let devices: Option<u32> = self.table.optional("local_devices")?;
        let device_size: Option<Bytes> = self.table.optional("local_device_size")?;
        let Some(class) = class else { return Ok(None) };
        if let Err(error) = self.catalog.storage_class(&class) {
            return Err(self.unknown_reference("local_storage", &error));
        }
        match (devices, device_size) {
            (Some(devices), Some(device_size)) => Ok(Some(LocalStorage { class, devices, device_size })),
            _ => {
                Err(self.table.bad_value("local_storage", "it needs `local_devices` and `local_device_size`"))
            }
        }
    }

    /// Prices of all layers; a later layer replaces those of the same purchase and region.
    fn prices(&self) -> Result<Prices, DocumentError> {
        self.table.allow("prices");
        let mut prices = Prices::default();
        for layer in &self.draft.layers {
            let mut of_layer = Prices::default();
            for table in layer.table.tables("prices")? {
                let table = table.titled(format!("a price of {}", self.table.title()));
                let purchase = table.choice("kind", &Purchase::ALL)?;
                of_layer.of_mut(purchase).push(Price {
                    per_hour: table.required("per_hour")?,
                    region: table.required("region")?,
                    date: date(&table)?,
                    source: self.price_source(&table, layer)?,
                    note: table.optional("note")?,
                });
                table.finish()?;
            }
            for (_, purchase) in Purchase::ALL {
                let newer = std::mem::take(of_layer.of_mut(purchase));
                let older = prices.of_mut(purchase);
                older.retain(|price| !newer.iter().any(|other| other.region == price.region));
                older.extend(newer);
            }
        }
        Ok(prices)
    }

    fn storage_prices(&self) -> Result<Vec<StoragePrice>, DocumentError> {
        self.table.allow("prices");
        let mut prices: Vec<StoragePrice> = Vec::new();
        for layer in &self.draft.layers {
            let mut of_layer = Vec::new();
            for table in layer.table.tables("prices")? {
                let table = table.titled(format!("a price of {}", self.table.title()));
                of_layer.push(StoragePrice {
                    per_gb_month: table.required("per_gb_month")?,
                    region: table.required("region")?,
                    date: date(&table)?,
                    source: self.price_source(&table, layer)?,
                    note: table.optional("note")?,
                    doubtful: table.optional("doubtful")?,
                });
                table.finish()?;
            }
            prices.retain(|price| !of_layer.iter().any(|other| other.region == price.region));
            prices.extend(of_layer);
        }
        Ok(prices)
    }

    fn price_source(&self, table: &Table, layer: &Layer) -> Result<String, DocumentError> {
        match (table.optional::<String>("source")?, &layer.default_source) {
            (Some(key), _) => self.known_source(table, "source", key),
            (None, Some(file)) => Ok(file.clone()),
            (None, None) => table.required("source"),
        }
    }

    /// Which source each field has. Read last: a source may be given only for fields that the entry has.
    fn evidence(&self) -> Result<Evidence, DocumentError> {
        for key in ["source", "sources", "also", "notes"] {
            self.table.allow(key);
        }
        let mut evidence = Evidence::default();
        for (index, layer) in self.draft.layers.iter().enumerate() {
            let default = self.default_source(layer)?;
            if index == 0 {
                evidence.source = default;
            } else {
                let fields = layer.table.keys().filter(|key| *key != "name");
                evidence.by_field.extend(fields.map(|field| (field.to_owned(), default.clone())));
            }
            self.add_exceptions(layer, &mut evidence)?;
            self.add_disagreements(layer, &mut evidence)?;
        }
        Ok(evidence)
    }

    fn default_source(&self, layer: &Layer) -> Result<String, DocumentError> {
        match (layer.table.optional::<String>("source")?, &layer.default_source) {
            (Some(key), _) => self.known_source(&layer.table, "source", key),
            (None, Some(file)) => Ok(file.clone()),
            (None, None) => layer.table.required("source"),
        }
    }

    fn add_exceptions(&self, layer: &Layer, evidence: &mut Evidence) -> Result<(), DocumentError> {
        let Some(exceptions) = layer.table.table("sources")? else { return Ok(()) };
        let exceptions = exceptions.titled(format!("`sources` of {}", self.table.title()));
        for field in exceptions.keys().map(str::to_owned).collect::<Vec<_>>() {
            let key: String = exceptions.required(&field)?;
            self.refuse_unknown_field(&exceptions, &field, &field)?;
            let key = self.known_source(&exceptions, &field, key)?;
            evidence.by_field.insert(field, key);
        }
        Ok(())
    }

    fn add_disagreements(&self, layer: &Layer, evidence: &mut Evidence) -> Result<(), DocumentError> {
        for table in layer.table.tables("also")? {
            let table = table.titled(format!("a disagreement about {}", self.table.title()));
            let key: String = table.required("source")?;
            let field: String = table.required("field")?;
            self.refuse_unknown_field(&table, "field", &field)?;
            evidence.also.push(Disagreement {
                field,
                value: table.required("value")?,
                source: self.known_source(&table, "source", key)?,
                note: table.optional("note")?,
            });
            table.finish()?;
        }
        Ok(())
    }

    fn refuse_unknown_field(&self, table: &Table, key: &str, field: &str) -> Result<(), DocumentError> {
        match self.table.knows(field) {
            true => Ok(()),
            false => Err(table.bad_value(key, format!("{} has no field `{field}`", self.table.title()))),
        }
    }

    fn known_source(&self, table: &Table, field: &str, key: String) -> Result<String, DocumentError> {
        if self.catalog.reference(&key).is_some() {
            return Ok(key);
        }
        let known = self.catalog.references.iter().map(|reference| reference.key.as_str());
        let hint = match bedplate_diag::nearest(&key, known) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("describe it under [sources.{key}]"),
        };
        Err(table.bad_value(field, format!("no source is called `{key}`; {hint}")))
    }
}

/// A date as `2025-06` or `2025-06-05`: sorts as text, and reads the same everywhere.
fn date(table: &Table) -> Result<String, DocumentError> {
    let text: String = table.required("date")?;
    let parts: Vec<&str> = text.split('-').collect();
    let is_number =
        |part: &&str, digits: usize| part.len() == digits && part.bytes().all(|b| b.is_ascii_digit());
    let is_date = match parts.as_slice() {
        [year, month] => is_number(year, 4) && is_number(month, 2),
        [year, month, day] => is_number(year, 4) && is_number(month, 2) && is_number(day, 2),
        _ => false,
    };
    if is_date { Ok(text) } else { Err(table.bad_value("date", "a date reads like 2025-06 or 2025-06-05")) }
}
