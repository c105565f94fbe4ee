//! Flags that take one of a few named values, which help and shell completion list.

use clap::builder::{PossibleValuesParser, TypedValueParser};

/// A parser over a table of names, as the domain crates keep them (`Purchase::ALL`).
pub fn choice<T: Copy + Send + Sync + 'static>(
    all: &'static [(&'static str, T)],
) -> impl TypedValueParser<Value = T> {
    let names = all.iter().map(|(name, _)| *name);
    PossibleValuesParser::new(names).map(move |chosen| {
        let found = all.iter().find(|(name, _)| *name == chosen);
        found.map(|(_, value)| *value).expect("the parser takes only these names")
    })
}
