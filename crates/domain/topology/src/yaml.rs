//! YAML read into Rust types, with limits that follow the size of the input.

use bedplate_diag::Source;
use serde::de::DeserializeOwned;
use serde_saphyr::{DuplicateKeyPolicy, MergeKeyPolicy, UserMessageFormatter};

use crate::TopologyError;
use crate::draft::shown;

/// Aliases let a small text expand to a huge one; descriptions of clusters need few.
const MAX_ALIASES: usize = 1000;
const MAX_DEPTH: usize = 64;

pub(crate) fn parse<T: DeserializeOwned>(
    source: Source<'_>,
    expected: &'static str,
) -> Result<T, TopologyError> {
    let size = source.text.len() + 1000;
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: 2 * size,
            max_nodes: 2 * size,
            max_total_scalar_bytes: 2 * size,
            max_aliases: MAX_ALIASES,
            max_depth: MAX_DEPTH,
        },
        duplicate_keys: DuplicateKeyPolicy::Error,
        merge_keys: MergeKeyPolicy::Error,
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options(source.text, options).map_err(|error| TopologyError::Malformed {
        expected,
        reason: reason(&error),
        place: match error.location() {
            Some(at) => source.place_at(at.line() as usize, at.column() as usize),
            None => source.whole(),
        },
    })
}

/// The message without the position, which the place already gives.
fn reason(error: &serde_saphyr::Error) -> String {
    let message = error.render_with_formatter(&UserMessageFormatter);
    let message = message.split(" at line ").next().unwrap_or(&message);
    message.split_inclusive('\n').next().map_or_else(String::new, |line| shown_long(line.trim()))
}

fn shown_long(text: &str) -> String {
    if text.len() <= 200 { text.replace(char::is_control, " ") } else { shown(text) }
}
