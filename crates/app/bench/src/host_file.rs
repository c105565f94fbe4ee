//! The end of this host's catalog file: times of collectives, which `bench comm` measures and `bench machine` leaves in place.

use std::fmt::Write;
use std::path::Path;

use bedplate_catalog::{Catalog, CollectiveTimes};
use bedplate_diag::{Diagnostic, Page, Source};
use bedplate_local::host::NAME;
use bedplate_terminal::benchmarks::NOT_MEASURED;
use bedplate_terminal::{CliError, files};

/// The line that this part begins with.
const MARK: &str =
    "\n# Collectives between ranks of this host, as `bedplate bench comm --save` measured them.\n";

#[derive(Debug, thiserror::Error)]
#[error("`{path}` does not describe this host, so times of collectives cannot join it")]
struct NoHostFile {
    path: String,
}

impl Diagnostic for NoHostFile {
    fn page(&self) -> &'static Page {
        &NOT_MEASURED
    }
}

/// The part about collectives, as it stands in a file; empty where there is none.
pub(super) fn collectives_of(text: &str) -> &str {
    text.find(MARK).map_or("", |at| &text[at..])
}

/// Puts times into the file of this host. Those of other operations and numbers of ranks stay.
pub(super) fn save(path: &Path, measured: &[CollectiveTimes]) -> Result<(), CliError> {
    let shown = path.display().to_string();
    let missing = || NoHostFile { path: shown.clone() };
    let text = files::read_text(&shown).map_err(|_| missing())?;
    let known = read(&shown, &text).ok_or_else(missing)?;
    let is_new = |times: &CollectiveTimes| {
        measured.iter().any(|new| (&new.operation, new.ranks) == (&times.operation, times.ranks))
    };
    let mut all: Vec<CollectiveTimes> = known.into_iter().filter(|times| !is_new(times)).collect();
    all.extend_from_slice(measured);
    all.sort_by(|a, b| (&a.operation, a.ranks).cmp(&(&b.operation, b.ranks)));
    let first = text.find(MARK).map_or(text.as_str(), |at| &text[..at]);
    let whole = format!("{first}{}", section(&all));
    // Several accelerators in one file would make it another's table.
    if read(&shown, &whole).map(|found| kinds(&found)) != Some(kinds(&all)) {
        return Err(missing().into());
    }
    files::write_own(path, &whole)?;
    Ok(())
}

fn kinds(list: &[CollectiveTimes]) -> Vec<(String, u32)> {
    list.iter().map(|times| (times.operation.clone(), times.ranks)).collect()
}

/// The times in a file that describes this host.
fn read(path: &str, text: &str) -> Option<Vec<CollectiveTimes>> {
    let catalog = Catalog::with_overlays(&[Source::new(path, text)]).ok()?;
    let host = catalog.accelerator(NAME).ok().filter(|host| host.measured.is_some())?;
    Some(host.collectives.clone())
}

fn section(all: &[CollectiveTimes]) -> String {
    let mut text = MARK.to_owned();
    for CollectiveTimes { operation, ranks, curve } in all {
        let (mut sizes, mut times) = (Vec::new(), Vec::new());
        for (size, time) in curve.points() {
            sizes.push(size.get().to_string());
            times.push(format!("{:.3}", time.get() * 1e6));
        }
        let _ = write!(
            text,
            "[[accelerator.collective]]\nop = \"{operation}\"\nranks = {ranks}\nbytes = [{}]\nus = [{}]\n\n",
            sizes.join(", "),
            times.join(", ")
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use bedplate_catalog::CollectiveCurve;
    use bedplate_units::{Bytes, Seconds};

    fn times(operation: &str, ranks: u32, us: f64) -> CollectiveTimes {
        let curve = CollectiveCurve::new(
            &[Bytes::new(1024.0), Bytes::new(4194304.0)],
            &[Seconds::us(1.5), Seconds::us(us)],
        );
        CollectiveTimes { operation: operation.into(), ranks, curve: curve.unwrap() }
    }

    #[test]
    fn times_join_the_file_and_replace_older_ones_of_the_same_kind() {
        let folder = std::env::temp_dir().join(format!("bedplate-host-file-{}", std::process::id()));
        let path = folder.join("host.toml");
        let host = include_str!("../../bedplate/tests/inputs/host.toml");
        files::write_own(&path, host).unwrap();
        save(&path, &[times("all_reduce", 2, 400.0), times("broadcast", 2, 300.0)]).unwrap();
        save(&path, &[times("all_reduce", 2, 500.0), times("all_reduce", 4, 900.0)]).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let empty = folder.join("empty.toml");
        files::write_own(&empty, "").unwrap();
        assert!(save(&empty, &[times("all_reduce", 2, 1.0)]).is_err());
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(text.starts_with(host), "what was measured before stays");
        let expected =
            [times("all_reduce", 2, 500.0), times("all_reduce", 4, 900.0), times("broadcast", 2, 300.0)];
        let found = read("host.toml", &text).unwrap();
        assert_eq!(kinds(&found), kinds(&expected));
        let largest = found[0].curve.seconds(Bytes::new(4194304.0)).get();
        assert!((largest / 500e-6 - 1.0).abs() < 1e-9);
        assert_eq!(format!("{host}{}", collectives_of(&text)), text);
    }
}
