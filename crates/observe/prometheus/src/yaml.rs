//! As much of YAML as our files need: quoted strings and indented maps.

/// A string in double quotes; JSON's escapes are YAML's too.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// `key: "value"` lines at an indentation.
pub(crate) fn map(
    indent: usize,
    pairs: impl IntoIterator<Item = (impl AsRef<str>, impl AsRef<str>)>,
) -> String {
    let spaces = " ".repeat(indent);
    pairs
        .into_iter()
        .map(|(key, value)| format!("{spaces}{}: {}\n", key.as_ref(), quoted(value.as_ref())))
        .collect()
}
