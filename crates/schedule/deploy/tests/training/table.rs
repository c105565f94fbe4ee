//! Tables of flags, keys and rules.

use std::collections::BTreeMap;

/// What a flag or a key takes.
#[derive(Debug, Clone)]
pub(crate) struct Accepts {
    pub(crate) kind: String,
    pub(crate) choices: Vec<String>,
}

impl Accepts {
    /// Why a value is not accepted.
    pub(crate) fn objection(&self, value: &str) -> Option<String> {
        let is_of_kind = match self.kind.trim_end_matches('+') {
            "int" => value.parse::<i64>().is_ok(),
            "float" => value.parse::<f64>().is_ok(),
            "bool" => matches!(value.to_lowercase().as_str(), "true" | "false"),
            "switch" => false,
            _ => !value.is_empty(),
        };
        let is_chosen = self.choices.is_empty() || self.choices.iter().any(|choice| choice == value);
        (!is_of_kind || !is_chosen).then(|| format!("`{value}` is no {} of {:?}", self.kind, self.choices))
    }
}

/// The lines of a table without comments and heading, cut at commas.
pub(crate) fn rows(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines().filter(|line| !line.starts_with('#')).skip(1).map(|line| line.split(',').collect())
}

/// `name,kind,choices`, the name in the column `first`.
pub(crate) fn accepted(text: &str, first: usize, what: Option<&str>) -> BTreeMap<String, Accepts> {
    let wanted = rows(text).filter(|row| what.is_none_or(|what| row[0] == what));
    wanted
        .map(|row| {
            let choices = row[first + 2].split('|').filter(|choice| !choice.is_empty());
            let accepts =
                Accepts { kind: row[first + 1].into(), choices: choices.map(String::from).collect() };
            (row[first].to_owned(), accepts)
        })
        .collect()
}
