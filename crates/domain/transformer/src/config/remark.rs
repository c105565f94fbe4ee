//! What a configuration asks for that is not done: a key that the family does not have, or a feature that is left out.

use std::fmt;

use bedplate_diag::{Place, nearest};
use serde_json::Value;

use super::keys::{Keys, shown};
use super::known::{self, Fate};
use crate::Family;

/// A key of a configuration that is not honoured.
#[derive(Debug, Clone, PartialEq)]
pub struct Remark {
    pub key: String,
    pub found: String,
    pub reason: RemarkReason,
    pub place: Place,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemarkReason {
    /// Configurations of this family have no such key.
    Unknown { family: Family, nearest: Option<&'static str> },
    /// A feature that this program does not compute.
    NotComputed { only: &'static str },
    /// Something that this program leaves out of training.
    LeftOut,
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Remark { key, found, .. } = self;
        match self.reason {
            RemarkReason::Unknown { family, nearest: None } => {
                write!(f, "`{key}` is not a key of `{family}` configurations and is ignored")
            }
            RemarkReason::Unknown { family, nearest: Some(nearest) } => {
                write!(
                    f,
                    "`{key}` is not a key of `{family}` configurations and is ignored; did you mean `{nearest}`?"
                )
            }
            RemarkReason::NotComputed { only: "null" } => write!(f, "`{key}` is not computed here"),
            RemarkReason::NotComputed { only } => {
                write!(f, "`{key}` = {found} is not computed here, only {only}")
            }
            RemarkReason::LeftOut => write!(f, "`{key}` = {found} is left out of training"),
        }
    }
}

/// The keys of a language model that are not honoured, in the order of their names.
pub(super) fn remarks(keys: &Keys<'_>, family: Family) -> Vec<Remark> {
    let given = keys.object().iter().filter(|(_, value)| !value.is_null());
    given.filter_map(|(key, value)| remark(keys, family, key, value)).collect()
}

fn remark(keys: &Keys<'_>, family: Family, key: &str, value: &Value) -> Option<Remark> {
    let reason = match known::fate(family, key) {
        Some(Fate::Shape | Fate::Arithmetic | Fate::Harmless) => return None,
        Some(Fate::Only(usual) | Fate::LeftOut(usual)) if is_usual(value, usual) => return None,
        Some(Fate::Only(only)) => RemarkReason::NotComputed { only },
        Some(Fate::LeftOut(_)) => RemarkReason::LeftOut,
        None if is_section(key) => return None,
        None => RemarkReason::Unknown {
            family,
            nearest: nearest(
                key,
                known::keys(family).filter(|(_, fate)| *fate != Fate::Harmless).map(|(key, _)| key),
            ),
        },
    };
    Some(Remark { key: key.to_owned(), found: shown(value), reason, place: keys.place(key) })
}

/// Sections that are read elsewhere or named as left out.
fn is_section(key: &str) -> bool {
    matches!(key, "text_config" | "vision_config" | "audio_config")
}

/// Whether a value is the one in a row; 0 and 0.0 are the same number.
fn is_usual(value: &Value, usual: &str) -> bool {
    let usual: Value = serde_json::from_str(usual).expect("a row holds JSON");
    match (value.as_f64(), usual.as_f64()) {
        (Some(value), Some(usual)) => value == usual,
        _ => *value == usual,
    }
}
