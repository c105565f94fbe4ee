//! JSON read into Rust types, with the place of any error.

use bedplate_diag::Source;
use serde::Deserialize;

use crate::TopologyError;

/// Nesting is bounded by the parser itself.
pub(crate) fn parse<'a, T: Deserialize<'a>>(
    source: Source<'a>,
    expected: &'static str,
) -> Result<T, TopologyError> {
    serde_json::from_str(source.text).map_err(|error| {
        let message = error.to_string();
        let reason = message.split(" at line ").next().unwrap_or(&message);
        let reason = reason.chars().take(200).map(|c| if c.is_control() { ' ' } else { c }).collect();
        let place = match error.line() {
            0 => source.whole(),
            line => source.place_at(line, error.column()),
        };
        TopologyError::Malformed { expected, reason, place }
    })
}
