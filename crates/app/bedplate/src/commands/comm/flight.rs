//! `bedplate comm flight DIR`: which rank has not entered which collective, from the records of all ranks.
//!
//! Ranks wrote the folder, so nothing in it is trusted: only regular files of a sensible size are read, and one that cannot be
//! used is named and left out.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bedplate_comm::{FlightRecord, Standstill, compare};
use bedplate_diag::{Diagnostic, Page, pages};
use bedplate_host::read_regular;
use bedplate_terminal::present::printable_line;
use bedplate_terminal::{CliError, Console};
use serde_json::{Value, json};

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  BEDPLATE_FLIGHT=/tmp/flight srun bedplate train job.toml
  bedplate comm flight /tmp/flight
  bedplate comm flight /tmp/flight --json

Exits with 1 if ranks wait for others, make different calls or left no record,
else with 0. It names and skips files that are not flight records.")]
pub(crate) struct Arguments {
    /// The folder that BEDPLATE_FLIGHT named when the ranks ran
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

#[derive(Debug, thiserror::Error)]
enum FlightError {
    #[error("cannot read the folder `{}`", folder.display())]
    Folder { folder: PathBuf, source: io::Error },
    #[error("`{}` has no flight record of a rank{}", folder.display(), left_out(*unusable))]
    NoRecords { folder: PathBuf, unusable: usize },
}

fn left_out(unusable: usize) -> String {
    if unusable == 0 { String::new() } else { format!("; {unusable} files cannot be used") }
}

pages! { pub(super) PAGES "flight":
    FOLDER "folder" User
        "The folder with the flight records could not be listed."
        "give the folder that BEDPLATE_FLIGHT named when the ranks ran"
    NO_RECORDS "no-records" User
        "Ranks write a file flight-RANK.json each when something goes wrong or stands still. The folder has none that can be read."
        "give the folder that BEDPLATE_FLIGHT named when the ranks ran; a run without faults or stalls writes nothing"
}

impl Diagnostic for FlightError {
    fn page(&self) -> &'static Page {
        match self {
            FlightError::Folder { .. } => &FOLDER,
            FlightError::NoRecords { .. } => &NO_RECORDS,
        }
    }
}

/// A recorder with its default 1024 calls writes a few hundred kilobytes.
const LARGEST: u64 = 64 << 20;
/// Ranks of a world; a record that claims more is damaged.
const MOST_RANKS: u32 = 1 << 20;

/// What a folder holds.
struct Found {
    records: Vec<FlightRecord>,
    unusable: Vec<Unusable>,
}

struct Unusable {
    file: String,
    why: String,
}

pub(super) fn run(arguments: &Arguments, console: &mut Console) -> Result<(), CliError> {
    let folder = &arguments.folder;
    let found = find(folder)?;
    for Unusable { file, why } in &found.unusable {
        console.say(&format!("left out `{}`: {}", printable_line(file), printable_line(why)));
    }
    if found.records.is_empty() {
        let unusable = found.unusable.len();
        return Err(FlightError::NoRecords { folder: folder.clone(), unusable }.into());
    }
    let standstills = compare(&found.records);
    if console.is_json() {
        console.json(&report(&found, &standstills))?;
    } else {
        show(&found.records, &standstills, console)?;
    }
    if standstills.is_empty() { Ok(()) } else { Err(CliError::Refused) }
}

fn find(folder: &Path) -> Result<Found, FlightError> {
    let failed = |source| FlightError::Folder { folder: folder.to_owned(), source };
    let mut ranks: Vec<u32> = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        ranks.extend(rank_of(&entry.map_err(failed)?.file_name().to_string_lossy()));
    }
    ranks.sort_unstable();
    let mut found = Found { records: Vec::new(), unusable: Vec::new() };
    for rank in ranks {
        let file = FlightRecord::file_name(rank);
        match read(&folder.join(&file), rank) {
            Ok(record) => found.records.push(record),
            Err(why) => found.unusable.push(Unusable { file, why }),
        }
    }
    Ok(found)
}

/// The rank of a file's name, if it is spelled as ranks spell it.
fn rank_of(name: &str) -> Option<u32> {
    let rank = name.strip_prefix("flight-")?.strip_suffix(".json")?.parse().ok()?;
    (FlightRecord::file_name(rank) == name).then_some(rank)
}

fn read(path: &Path, rank: u32) -> Result<FlightRecord, String> {
    let bytes = read_regular(path, LARGEST).map_err(|error| format!("it cannot be read: {error}"))?;
    let record: FlightRecord =
        serde_json::from_slice(&bytes).map_err(|error| format!("it is not a flight record: {error}"))?;
    check(record, rank)
}

fn check(record: FlightRecord, rank: u32) -> Result<FlightRecord, String> {
    if record.rank != rank {
        return Err(format!("it is the record of rank {}", record.rank));
    }
    if record.world > MOST_RANKS || record.rank >= record.world {
        return Err(format!("it is of rank {} in a world of {}", record.rank, record.world));
    }
    Ok(record)
}

fn show(records: &[FlightRecord], standstills: &[Standstill], console: &mut Console) -> Result<(), CliError> {
    let newest = records.iter().map(|record| record.epoch).max().unwrap_or(0);
    let of_newest = || records.iter().filter(|record| record.epoch == newest);
    let world = of_newest().map(|record| record.world).max().unwrap_or(0);
    console.line(&format!("{} of {world} ranks left a record at epoch {newest}", of_newest().count()))?;
    for record in of_newest() {
        if let Some(fault) = &record.fault {
            console.line(&format!(
                "rank {} ended with: {}",
                record.rank,
                printable_line(&fault.to_string())
            ))?;
        }
    }
    let (silent, standing): (Vec<_>, Vec<_>) =
        standstills.iter().partition(|found| matches!(found, Standstill::NoRecord { .. }));
    for standstill in standing {
        console.line(&format!("\n{standstill}"))?;
    }
    if !silent.is_empty() {
        console.line(&format!("\n{}", without_record(&silent)))?;
    }
    if standstills.is_empty() {
        console.line("nothing stands still: no rank waits for another")?;
    }
    Ok(())
}

fn without_record(silent: &[&Standstill]) -> String {
    const SHOWN: usize = 16;
    let ranks: Vec<String> = silent
        .iter()
        .filter_map(|found| match found {
            Standstill::NoRecord { rank } => Some(rank.to_string()),
            _ => None,
        })
        .collect();
    let first = ranks.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    let more = if ranks.len() > SHOWN { format!(" and {} more", ranks.len() - SHOWN) } else { String::new() };
    let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{noun} {first}{more} left no record that can be read: the process ended, or never joined")
}

fn report(found: &Found, standstills: &[Standstill]) -> Value {
    let unusable = |it: &Unusable| json!({ "file": it.file, "why": it.why });
    let rank = |record: &FlightRecord| {
        let fault = record.fault.as_ref();
        json!({
            "rank": record.rank,
            "epoch": record.epoch,
            "calls": record.calls.len(),
            "fault": fault,
            "fault_text": fault.map(ToString::to_string),
        })
    };
    json!({
        "ranks": found.records.iter().map(rank).collect::<Vec<_>>(),
        "left_out": found.unusable.iter().map(unusable).collect::<Vec<_>>(),
        "standstills": standstills,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_that_ranks_name_are_looked_at() {
        for (name, rank) in [
            ("flight-0.json", Some(0)),
            ("flight-17.json", Some(17)),
            ("flight-+1.json", None),
            ("flight-01.json", None),
            (".flight-1.json.77", None),
            ("flight-.json", None),
        ] {
            assert_eq!(rank_of(name), rank, "{name}");
        }
    }

    #[test]
    fn a_pipe_a_link_a_folder_and_a_lie_are_left_out() {
        let folder = std::env::temp_dir().join(format!("bedplate-flight-{}", std::process::id()));
        fs::create_dir_all(folder.join("flight-2.json")).unwrap();
        nix::unistd::mkfifo(&folder.join("flight-0.json"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        std::os::unix::fs::symlink("/dev/zero", folder.join("flight-1.json")).unwrap();
        let record =
            |rank, world| FlightRecord { rank, world, epoch: 0, at_us: 0, fault: None, calls: Vec::new() };
        let write = |name: &str, record: &FlightRecord| {
            fs::write(folder.join(name), serde_json::to_vec(record).unwrap()).unwrap();
        };
        write("flight-3.json", &record(4, 5));
        write("flight-4.json", &record(4, u32::MAX));
        write("flight-5.json", &record(5, 6));
        let found = find(&folder).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(found.records.iter().map(|record| record.rank).collect::<Vec<_>>(), [5]);
        let files: Vec<&str> = found.unusable.iter().map(|it| it.file.as_str()).collect();
        let expected = ["flight-0.json", "flight-1.json", "flight-2.json", "flight-3.json", "flight-4.json"];
        assert_eq!(files, expected);
    }
}
