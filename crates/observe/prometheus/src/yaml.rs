//! Indented maps of YAML, as rules have them for labels and annotations.

use bedplate_document::quote;

/// `key: "value"` lines at an indentation.
pub(crate) fn map(
    indent: usize,
    pairs: impl IntoIterator<Item = (impl AsRef<str>, impl AsRef<str>)>,
) -> String {
    let spaces = " ".repeat(indent);
    pairs
        .into_iter()
        .map(|(key, value)| format!("{spaces}{}: {}\n", key.as_ref(), quote::yaml(value.as_ref())))
        .collect()
}
