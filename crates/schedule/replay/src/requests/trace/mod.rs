//! Recorded requests: CSV as Azure publishes it, and JSON lines with lengths and block hashes.
//!
//! Nothing is skipped: a line that cannot be read is an error that names it. Times count from the first
//! request.

mod csv;
mod json_lines;

use bedplate_diag::Source;

use super::engine::Picoseconds;
use super::error::TraceError;
use super::planned::Planned;

/// Tokens of one block hash in traces that do not give it: Mooncake's traces hash every 512 tokens.
pub const TOKENS_PER_HASH: u32 = 512;

/// Reads a trace of either format, told apart by its first line.
pub fn read_trace(source: Source<'_>) -> Result<Vec<Planned>, TraceError> {
    let first = source.text.lines().map(str::trim).find(|line| !line.is_empty());
    let mut requests = match first {
        None => return Err(TraceError::Empty { place: source.whole() }),
        Some(line) if line.starts_with('{') => json_lines::read(source)?,
        Some(line) if line.contains(',') => csv::read(source)?,
        Some(_) => return Err(TraceError::UnknownFormat { place: source.line(1) }),
    };
    let began = requests.iter().map(|planned| planned.at).min();
    let Some(began) = began else { return Err(TraceError::Empty { place: source.whole() }) };
    for planned in &mut requests {
        planned.at -= began;
    }
    Ok(requests)
}

/// Lines that are not blank, with their numbers.
fn lines<'a>(source: Source<'a>) -> impl Iterator<Item = (usize, &'a str)> {
    source
        .text
        .lines()
        .enumerate()
        .map(|(at, line)| (at + 1, line))
        .filter(|(_, line)| !line.trim().is_empty())
}

fn malformed(source: Source<'_>, line: usize, reason: String) -> TraceError {
    TraceError::Malformed { reason, place: source.line(line) }
}

/// A count of tokens, positive and within any model's context.
fn tokens(name: &str, value: Option<u64>) -> Result<u32, String> {
    const MOST: u64 = 1 << 30;
    match value {
        Some(0) => Err(format!("{name} is 0")),
        Some(count) if count <= MOST => Ok(count as u32),
        Some(count) => Err(format!("{name} is {count}, more than any context")),
        None => Err(format!("{name} is not a count of tokens")),
    }
}

/// The longest trace that the virtual clock holds, with room for the replay after it: 100 days.
const LONGEST: Picoseconds = 100 * 86_400 * 1_000_000_000_000;
