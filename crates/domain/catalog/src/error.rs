//! What can be wrong with a catalog or with a lookup in it.

use bedplate_diag::{Diagnostic, Page, Place, pages};
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

pages! { pub PAGES "catalog":
    UNKNOWN_NAME "unknown-name" User
        "The catalog has no entry of that name. Names and aliases are compared without regard to case."
        "list what exists with `bedplate catalog`, or describe your own hardware in an overlay file"
    DUPLICATE "duplicate" User
        "One file defines the same entry twice, or two entries share a name or alias."
        "remove or rename one of the two entries"
}

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
