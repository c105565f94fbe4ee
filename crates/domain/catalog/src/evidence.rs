//! Where a figure comes from, and what other sources say.

use std::collections::BTreeMap;

/// How far a source can be trusted. Where sources disagree, the vendor's figure is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SourceKind {
    Vendor,
    Measured,
    Paper,
    Reseller,
    Mission,
    /// From memory, not checked against a document.
    Recalled,
    /// The user's own overlay.
    User,
}

impl SourceKind {
    pub const ALL: [(&'static str, SourceKind); 7] = [
        ("vendor", SourceKind::Vendor),
        ("measured", SourceKind::Measured),
        ("paper", SourceKind::Paper),
        ("reseller", SourceKind::Reseller),
        ("mission", SourceKind::Mission),
        ("recalled", SourceKind::Recalled),
        ("user", SourceKind::User),
    ];

    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].0
    }
}

/// A document that figures are taken from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    pub key: String,
    pub title: String,
    pub kind: SourceKind,
    pub url: Option<String>,
    pub date: Option<String>,
}

/// The sources of one entry: a default, exceptions by field, and the values not used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Evidence {
    pub source: String,
    pub by_field: BTreeMap<String, String>,
    pub also: Vec<Disagreement>,
}

impl Evidence {
    /// Key of the source that a field's figure was taken from.
    pub fn source_of(&self, field: &str) -> &str {
        self.by_field.get(field).unwrap_or(&self.source)
    }
}

/// What another source says about a field, and why it is not used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disagreement {
    pub field: String,
    pub value: String,
    pub source: String,
    pub note: Option<String>,
}
