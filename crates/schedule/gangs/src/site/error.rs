//! What can be wrong with a site's rules, and the pages that explain it.

use bedplate_diag::{Diagnostic, Page, Place, nearest, pages};
use bedplate_document::DocumentError;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    #[error("there is no {what} called `{name}`")]
    Undefined { what: &'static str, name: String, near: Option<String>, place: Place },
    #[error("{what} `{name}` is stated twice")]
    Duplicate { what: &'static str, name: String, place: Place },
    #[error("{what} `{name}` is above itself")]
    Cycle { what: &'static str, name: String, place: Place },
    #[error("there are more than {limit} entries of {what}")]
    TooMany { what: &'static str, limit: usize, place: Place },
    #[error(transparent)]
    Document(#[from] DocumentError),
}

impl SettingsError {
    pub(super) fn undefined<'a>(
        what: &'static str,
        name: &str,
        known: impl Iterator<Item = &'a str>,
        place: Place,
    ) -> Self {
        let near = nearest(name, known).map(str::to_owned);
        SettingsError::Undefined { what, name: name.to_owned(), near, place }
    }
}

pages! { pub PAGES "site":
    UNDEFINED "undefined" User
        "The site's rules name a node, a GPU type, an account, a queue or a quality of service that neither the file nor the cluster has."
        "correct the spelling, or add the entry"
    DUPLICATE "duplicate" User
        "Two entries of the same kind in the site's rules have the same name, and nothing says which one is meant. The account `root` always exists and needs no entry."
        "remove or rename one of the two"
    CYCLE "cycle" User
        "Accounts or queues name each other as parents in a circle. They form trees: following parents must come to an end."
        "remove one of the `parent` keys"
    TOO_MANY "too-many" User
        "The site's rules have more entries of a kind than any real site, so the file is probably not the one that was meant."
        "check that this is the file you meant"
}

impl Diagnostic for SettingsError {
    fn page(&self) -> &'static Page {
        match self {
            SettingsError::Undefined { .. } => &UNDEFINED,
            SettingsError::Duplicate { .. } => &DUPLICATE,
            SettingsError::Cycle { .. } => &CYCLE,
            SettingsError::TooMany { .. } => &TOO_MANY,
            SettingsError::Document(error) => error.page(),
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            SettingsError::Undefined { near: Some(near), .. } => Some(format!("did you mean `{near}`?")),
            SettingsError::Document(error) => error.help(),
            _ => None,
        }
    }

    fn place(&self) -> Option<&Place> {
        match self {
            SettingsError::Undefined { place, .. }
            | SettingsError::Duplicate { place, .. }
            | SettingsError::Cycle { place, .. }
            | SettingsError::TooMany { place, .. } => Some(place),
            SettingsError::Document(error) => error.place(),
        }
    }
}
