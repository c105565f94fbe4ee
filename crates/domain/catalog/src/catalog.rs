//! The catalog as a whole: entries in the order of the files, found by name or alias.

use std::collections::BTreeSet;

use bedplate_diag::{Source, nearest_names, shown};
use bedplate_units::Bytes;

use crate::format;
use crate::{Accelerator, CatalogError, Fabric, Instance, Purchase, Reference, StorageClass, UltraServer};

/// Everything the program knows about hardware. Entries keep the order of the files.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Catalog {
    pub accelerators: Vec<Accelerator>,
    pub instances: Vec<Instance>,
    pub ultraservers: Vec<UltraServer>,
    pub fabrics: Vec<Fabric>,
    pub storage: Vec<StorageClass>,
    pub references: Vec<Reference>,
}

impl Catalog {
    /// The built-in catalog.
    pub fn builtin() -> Self {
        format::read(&[]).expect("the embedded catalog is valid: checked by a test")
    }

    /// The built-in catalog under the user's overlay files; later files win.
    pub fn with_overlays(overlays: &[Source<'_>]) -> Result<Self, CatalogError> {
        format::read(overlays)
    }

    pub fn accelerator(&self, name: &str) -> Result<&Accelerator, CatalogError> {
        find("accelerator", name, &self.accelerators)
    }

    pub fn instance(&self, name: &str) -> Result<&Instance, CatalogError> {
        find("instance", name, &self.instances)
    }

    pub fn ultraserver(&self, name: &str) -> Result<&UltraServer, CatalogError> {
        find("UltraServer", name, &self.ultraservers)
    }

    pub fn fabric(&self, name: &str) -> Result<&Fabric, CatalogError> {
        find("fabric", name, &self.fabrics)
    }

    pub fn storage_class(&self, name: &str) -> Result<&StorageClass, CatalogError> {
        find("storage class", name, &self.storage)
    }

    /// The document behind a source key.
    pub fn reference(&self, key: &str) -> Option<&Reference> {
        self.references.iter().find(|reference| reference.key == key)
    }

    /// Memory of all accelerators of an instance: the vendor's total, or the sum where there is none.
    pub fn total_memory(&self, instance: &Instance) -> Bytes {
        let sum = self.accelerator_of(instance).memory * f64::from(instance.accelerators);
        instance.accelerator_memory.unwrap_or(sum)
    }

    /// The accelerator of an instance; loading the catalog has checked that it exists.
    pub fn accelerator_of(&self, instance: &Instance) -> &Accelerator {
        self.accelerator(&instance.accelerator).expect("instances name known accelerators: checked when read")
    }

    /// A region that no price names would otherwise just leave every price out.
    pub fn refuse_unknown_region(&self, wanted: Option<&str>) -> Result<(), CatalogError> {
        let prices = self.instances.iter().map(|entry| &entry.prices);
        let regions = prices
            .flat_map(|prices| Purchase::ALL.into_iter().flat_map(|(_, purchase)| prices.of(purchase)))
            .map(|price| &price.region);
        refuse_unknown("region", wanted, regions)
    }
}

/// Refuses a name that is not among those of the catalog.
pub fn refuse_unknown<'a>(
    kind: &'static str,
    wanted: Option<&str>,
    known: impl Iterator<Item = &'a String>,
) -> Result<(), CatalogError> {
    let Some(wanted) = wanted else { return Ok(()) };
    let names: BTreeSet<&str> = known.map(String::as_str).collect();
    match names.iter().any(|name| name.eq_ignore_ascii_case(wanted)) {
        true => Ok(()),
        false => Err(unknown(kind, wanted, names)),
    }
}

fn unknown<'a>(kind: &'static str, wanted: &str, known: impl IntoIterator<Item = &'a str>) -> CatalogError {
    let near = nearest_names(wanted, known, 2).into_iter().map(str::to_owned).collect();
    CatalogError::UnknownName { kind, name: shown(wanted), near }
}

/// An entry with a name and perhaps aliases.
pub(crate) trait Named {
    fn name(&self) -> &str;

    fn aliases(&self) -> &[String] {
        &[]
    }

    fn answers_to(&self, wanted: &str) -> bool {
        self.name().eq_ignore_ascii_case(wanted)
            || self.aliases().iter().any(|alias| alias.eq_ignore_ascii_case(wanted))
    }
}

fn find<'a, T: Named>(kind: &'static str, name: &str, entries: &'a [T]) -> Result<&'a T, CatalogError> {
    let found = entries.iter().find(|entry| entry.answers_to(name));
    found.ok_or_else(|| unknown(kind, name, entries.iter().map(Named::name)))
}

impl Named for Accelerator {
    fn name(&self) -> &str {
        &self.name
    }
    fn aliases(&self) -> &[String] {
        &self.aliases
    }
}

macro_rules! named {
    ($($entry:ty),*) => {$(
        impl Named for $entry {
            fn name(&self) -> &str {
                &self.name
            }
        }
    )*};
}
named!(Instance, UltraServer, Fabric, StorageClass);
