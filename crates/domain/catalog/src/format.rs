//! Reading the catalog from its TOML files, and laying overlays over them.
//!
//! Entries of the same name are merged field by field before they are read, so an overlay that sets only
//! a price leaves the rest as it is. Kinds are read in the order in which they refer to each other.

mod entries;

use std::collections::{BTreeMap, BTreeSet};

use bedplate_diag::Source;
use bedplate_document::{DocumentError, Table};

use crate::catalog::Named;
use crate::{Accelerator, Catalog, CatalogError, Reference, SourceKind};
use entries::Reader;

/// The key under which figures of an overlay are booked when it names no source.
const OVERLAY: &str = "overlay";

const SOURCES: Source<'static> =
    embedded("sources.toml", include_str!("../../../../data/catalog/sources.toml"));
const FILES: [Source<'static>; 4] = [
    embedded("fabrics.toml", include_str!("../../../../data/catalog/fabrics.toml")),
    embedded("storage.toml", include_str!("../../../../data/catalog/storage.toml")),
    embedded("accelerators.toml", include_str!("../../../../data/catalog/accelerators.toml")),
    embedded("instances.toml", include_str!("../../../../data/catalog/instances.toml")),
];

const fn embedded(name: &'static str, text: &'static str) -> Source<'static> {
    Source { name, text }
}

pub(crate) fn read(overlays: &[Source<'_>]) -> Result<Catalog, CatalogError> {
    let mut drafts = Drafts::default();
    let sources = Table::parse(SOURCES)?;
    let mut catalog = Catalog { references: read_references(&sources)?, ..Catalog::default() };
    for file in FILES {
        drafts.add(&Table::parse(file)?, false)?;
    }
    for overlay in overlays {
        let document = Table::parse(*overlay)?;
        if let Some(sources) = document.table("sources")? {
            catalog.references.extend(read_references(&sources)?);
        }
        catalog.references.push(overlay_reference(overlay.name));
        drafts.add(&document, true)?;
    }
    drafts.read_into(&mut catalog)?;
    Ok(catalog)
}

fn overlay_reference(file: &str) -> Reference {
    Reference {
        key: OVERLAY.into(),
        title: format!("your overlay {file}"),
        kind: SourceKind::User,
        url: None,
        date: None,
    }
}

fn read_references(sources: &Table) -> Result<Vec<Reference>, DocumentError> {
    let keys: Vec<String> = sources.keys().map(str::to_owned).collect();
    let read = |key: String| {
        let table = sources.table(&key)?.unwrap_or_else(|| sources.clone()).titled(format!("source `{key}`"));
        let reference = Reference {
            title: table.required("title")?,
            kind: table.choice("kind", &SourceKind::ALL)?,
            url: table.optional("url")?,
            date: table.optional("date")?,
            key,
        };
        table.finish().map(|()| reference)
    };
    keys.into_iter().map(read).collect()
}

/// The entries of all files by kind, merged but not yet read.
#[derive(Default)]
struct Drafts {
    by_kind: BTreeMap<&'static str, Vec<Draft>>,
}

/// An entry before it is read.
struct Draft {
    name: String,
    table: Table,
    /// Fields that an overlay has set without naming a source.
    from_overlay: Vec<String>,
}

const KINDS: [&str; 5] = ["fabric", "storage", "accelerator", "instance", "ultraserver"];

impl Drafts {
    /// Takes in the entries of one file. Within a file each name may stand once.
    fn add(&mut self, document: &Table, is_overlay: bool) -> Result<(), CatalogError> {
        for kind in KINDS {
            let mut seen: BTreeSet<String> = BTreeSet::new();
            for table in document.tables(kind)? {
                let table = table.titled(kind);
                let name: String = table.required("name")?;
                if !seen.insert(name.to_ascii_lowercase()) {
                    return Err(CatalogError::Duplicate { kind, name, place: table.place_of("name") });
                }
                self.merge(kind, name, table, is_overlay);
            }
        }
        Ok(document.finish()?)
    }

    fn merge(&mut self, kind: &'static str, name: String, table: Table, is_overlay: bool) {
        let table = table.titled(format!("{kind} `{name}`"));
        let set_here: Vec<String> = match is_overlay && !table.has("source") {
            true => table.keys().map(str::to_owned).collect(),
            false => Vec::new(),
        };
        let drafts = self.by_kind.entry(kind).or_default();
        match drafts.iter_mut().find(|draft| draft.name.eq_ignore_ascii_case(&name)) {
            None => drafts.push(Draft { name, table, from_overlay: set_here }),
            Some(draft) => {
                draft.table = draft.table.clone().overlay(table);
                draft.from_overlay.extend(set_here);
            }
        }
    }

    fn read_into(self, catalog: &mut Catalog) -> Result<(), CatalogError> {
        let drafts = |kind| self.by_kind.get(kind).map_or(&[][..], Vec::as_slice);
        for draft in drafts("fabric") {
            let fabric = Reader::new(draft, catalog).fabric()?;
            catalog.fabrics.push(fabric);
        }
        for draft in drafts("storage") {
            let storage = Reader::new(draft, catalog).storage()?;
            catalog.storage.push(storage);
        }
        for draft in drafts("accelerator") {
            let accelerator = Reader::new(draft, catalog).accelerator()?;
            refuse_taken_names(&accelerator, catalog, drafts("accelerator"))?;
            catalog.accelerators.push(accelerator);
        }
        for draft in drafts("instance") {
            let instance = Reader::new(draft, catalog).instance()?;
            catalog.instances.push(instance);
        }
        for draft in drafts("ultraserver") {
            let ultraserver = Reader::new(draft, catalog).ultraserver()?;
            catalog.ultraservers.push(ultraserver);
        }
        Ok(())
    }
}

/// Two accelerators that answer to one name would make look-ups depend on their order.
fn refuse_taken_names(
    accelerator: &Accelerator,
    catalog: &Catalog,
    drafts: &[Draft],
) -> Result<(), CatalogError> {
    for spelling in std::iter::once(&accelerator.name).chain(&accelerator.aliases) {
        let Some(other) = catalog.accelerators.iter().find(|other| other.answers_to(spelling)) else {
            continue;
        };
        // Our own files are consistent, so of the two entries the user's is the one to mend.
        let pair = drafts.iter().filter(|draft| [&accelerator.name, &other.name].contains(&&draft.name));
        let place =
            pair.max_by_key(|draft| draft.from_overlay.len()).map(|draft| draft.table.place_of("aliases"));
        return Err(CatalogError::Duplicate {
            kind: "accelerator",
            name: spelling.clone(),
            place: place.expect("every accelerator was read from a draft"),
        });
    }
    Ok(())
}
