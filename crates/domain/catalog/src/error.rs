//! What can be wrong with a catalog or with a lookup in it.

use bedplate_diag::{Class, Diagnostic, Page, Place};
use bedplate_document::DocumentError;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CatalogError {
    #[error("the catalog has no {kind} called `{name}`")]
    UnknownName { kind: &'static str, name: String, near: Vec<String> },
    #[error("{kind} `{name}` is defined twice")]
    Duplicate { kind: &'static str, name: String, place: Place },
    #[error(transparent)]
    Document(#[from] DocumentError),
}

pub const PAGES: &[&Page] = &[&UNKNOWN_NAME, &DUPLICATE];

static UNKNOWN_NAME: Page = Page {
    code: "catalog/unknown-name",
    class: Class::User,
    meaning: "The catalog has no entry of that name. Names and aliases are compared without regard to case.",
    remedy: "list what exists with `bedplate catalog`, or describe your own hardware in an overlay file",
};
static DUPLICATE: Page = Page {
    code: "catalog/duplicate",
    class: Class::User,
    meaning: "One file defines the same entry twice, or two entries share a name or alias.",
    remedy: "remove or rename one of the two entries",
};

impl Diagnostic for CatalogError {
    fn page(&self) -> &'static Page {
        match self {
            CatalogError::UnknownName { .. } => &UNKNOWN_NAME,
            CatalogError::Duplicate { .. } => &DUPLICATE,
            CatalogError::Document(error) => error.page(),
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            CatalogError::UnknownName { near, .. } if !near.is_empty() => {
                let names: Vec<String> = near.iter().map(|name| format!("`{name}`")).collect();
                Some(format!("did you mean {}?", names.join(" or ")))
            }
            CatalogError::Document(error) => error.help(),
            _ => None,
        }
    }

    fn place(&self) -> Option<&Place> {
        match self {
            CatalogError::UnknownName { .. } => None,
            CatalogError::Duplicate { place, .. } => Some(place),
            CatalogError::Document(error) => error.place(),
        }
    }
}
