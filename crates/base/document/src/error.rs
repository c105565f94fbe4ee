//! What can be wrong with a document, and the pages that explain it.

use bedplate_diag::{Diagnostic, Page, Place, nearest, pages};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    #[error("the file has {bytes} bytes; a document has at most 32 MiB")]
    TooLarge { bytes: usize, place: Place },
    #[error("this is not valid {format}: {reason}")]
    Syntax { format: &'static str, reason: String, place: Place },
    #[error("{table} lacks the key `{key}`")]
    MissingKey {
        table: String,
        key: String,
        expected: &'static str,
        /// A key of the table that looks like this one.
        misspelt: Option<String>,
        place: Place,
    },
    #[error("{table} has the unknown key `{key}`")]
    UnknownKey { table: String, key: String, known: Vec<String>, place: Place },
    #[error("`{key}` of {table} is {found}, not {expected}")]
    WrongType { table: String, key: String, expected: &'static str, found: &'static str, place: Place },
    #[error("`{key}` of {table} cannot be used: {reason}")]
    BadValue { table: String, key: String, reason: String, place: Place },
}

pages! { pub PAGES "document":
    TOO_LARGE "too-large" User
        "The file is far larger than any document that the program reads, so it was not parsed."
        "check that this is the file you meant"
    SYNTAX "syntax" User
        "The file is not valid TOML, or not valid JSON where JSON is expected. The parser stopped at the place shown; the mistake is there or just before."
        "check quotes, brackets and `key = value` around the place shown"
    MISSING_KEY "missing-key" User
        "A table of the file lacks a key that it must have."
        "add the key to the table shown"
    UNKNOWN_KEY "unknown-key" User
        "A table has a key that is not part of the format. Unknown keys are refused, because otherwise a misspelt key would be silently ignored."
        "remove the key or correct its spelling"
    WRONG_TYPE "wrong-type" User
        "A value has the wrong type for its key, such as a number instead of a text."
        "write the value as the type named"
    BAD_VALUE "bad-value" User
        "A value has the right type, but cannot be used: a unit is missing, a number is out of range, or a name is not one of the choices."
        "change the value as the message says"
}

impl Diagnostic for DocumentError {
    fn page(&self) -> &'static Page {
        match self {
            DocumentError::TooLarge { .. } => &TOO_LARGE,
            DocumentError::Syntax { .. } => &SYNTAX,
            DocumentError::MissingKey { .. } => &MISSING_KEY,
            DocumentError::UnknownKey { .. } => &UNKNOWN_KEY,
            DocumentError::WrongType { .. } => &WRONG_TYPE,
            DocumentError::BadValue { .. } => &BAD_VALUE,
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            DocumentError::MissingKey { key, misspelt: Some(near), .. } => {
                Some(format!("is `{near}` meant to be `{key}`?"))
            }
            DocumentError::MissingKey { key, expected, .. } => Some(format!("add `{key} = …`, {expected}")),
            DocumentError::UnknownKey { key, known, .. } => {
                Some(match nearest(key, known.iter().map(String::as_str)) {
                    Some(name) => format!("did you mean `{name}`?"),
                    None => format!("the keys here are {}", known.join(", ")),
                })
            }
            _ => None,
        }
    }

    fn place(&self) -> Option<&Place> {
        match self {
            DocumentError::TooLarge { place, .. }
            | DocumentError::Syntax { place, .. }
            | DocumentError::MissingKey { place, .. }
            | DocumentError::UnknownKey { place, .. }
            | DocumentError::WrongType { place, .. }
            | DocumentError::BadValue { place, .. } => Some(place),
        }
    }
}
