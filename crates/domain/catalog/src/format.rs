//! Reading the catalog from its TOML files, and applying overlays.
//!
//! Entries of the same name are merged before they are read: field by field, prices by purchase and region,
//! disagreements collected. Each field keeps the source of the file that set it. Kinds are read in the order
//! in which they refer to each other.

mod entries;

use std::collections::{BTreeMap, BTreeSet};

use bedplate_diag::Source;
use bedplate_document::{DocumentError, Table};

use crate::catalog::Named;
use crate::{Accelerator, Catalog, CatalogError, Reference, SourceKind};
use entries::Reader;

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
        drafts.add(&Table::parse(file)?, None)?;
    }
    for overlay in overlays {
        let document = Table::parse(*overlay)?;
        if let Some(sources) = document.table("sources")? {
            let references = read_references(&sources)?;
            refuse_taken_keys(&references, &catalog, &sources)?;
            catalog.references.extend(references);
        }
        catalog.references.push(overlay_reference(overlay.name));
        drafts.add(&document, Some(overlay.name))?;
    }
    drafts.read_into(&mut catalog)?;
    Ok(catalog)
}

/// Figures of an overlay that names no source are attributed to the file itself.
fn overlay_reference(file: &str) -> Reference {
    Reference {
        key: file.to_owned(),
        title: format!("your overlay {file}"),
        kind: SourceKind::User,
        url: None,
        date: None,
    }
}

/// Redefining a source would change where figures of other files seem to come from.
fn refuse_taken_keys(
    references: &[Reference],
    catalog: &Catalog,
    sources: &Table,
) -> Result<(), CatalogError> {
    match references.iter().find(|reference| catalog.reference(&reference.key).is_some()) {
        None => Ok(()),
        Some(taken) => Err(CatalogError::Duplicate {
            kind: "source",
            name: taken.key.clone(),
            place: sources.place_of(&taken.key),
        }),
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
    /// All layers merged, for reading the fields.
    table: Table,
    /// What each file said, the built-in one first.
    layers: Vec<Layer>,
}

/// What one file says about an entry.
struct Layer {
    table: Table,
    /// The source of its figures when it names none: the overlay file.
    default_source: Option<String>,
}

impl Draft {
    fn is_overlaid(&self) -> bool {
        self.layers.iter().any(|layer| layer.default_source.is_some())
    }
}

const KINDS: [&str; 5] = ["fabric", "storage", "accelerator", "instance", "ultraserver"];

impl Drafts {
    /// Takes in the entries of one file. Within a file each name may occur once.
    fn add(&mut self, document: &Table, default_source: Option<&str>) -> Result<(), CatalogError> {
        for kind in KINDS {
            let mut seen: BTreeSet<String> = BTreeSet::new();
            for table in document.tables(kind)? {
                let table = table.titled(kind);
                let name: String = table.required("name")?;
                if !seen.insert(name.to_ascii_lowercase()) {
                    return Err(CatalogError::Duplicate { kind, name, place: table.place_of("name") });
                }
                self.merge(kind, name, table, default_source);
            }
        }
        Ok(document.finish()?)
    }

    fn merge(&mut self, kind: &'static str, name: String, table: Table, default_source: Option<&str>) {
        let table = table.titled(format!("{kind} `{name}`"));
        let layer = Layer { table: table.clone(), default_source: default_source.map(str::to_owned) };
        let drafts = self.by_kind.entry(kind).or_default();
        match drafts.iter_mut().find(|draft| draft.name.eq_ignore_ascii_case(&name)) {
            None => drafts.push(Draft { name, table, layers: vec![layer] }),
            Some(draft) => {
                draft.table = draft.table.clone().overlay(table);
                draft.layers.push(layer);
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

/// Two accelerators with one name would make lookups depend on their order.
fn refuse_taken_names(
    accelerator: &Accelerator,
    catalog: &Catalog,
    drafts: &[Draft],
) -> Result<(), CatalogError> {
    for spelling in std::iter::once(&accelerator.name).chain(&accelerator.aliases) {
        let Some(other) = catalog.accelerators.iter().find(|other| other.answers_to(spelling)) else {
            continue;
        };
        // The built-in files are consistent, so the user's entry is the one to fix.
        let pair = drafts.iter().filter(|draft| [&accelerator.name, &other.name].contains(&&draft.name));
        let place = pair.max_by_key(|draft| draft.is_overlaid()).map(|draft| draft.table.place_of("aliases"));
        return Err(CatalogError::Duplicate {
            kind: "accelerator",
            name: spelling.clone(),
            place: place.expect("every accelerator was read from a draft"),
        });
    }
    Ok(())
}
