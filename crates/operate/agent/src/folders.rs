//! Folders of runs that are over: the oldest go when they are too old or all of them too large.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use bedplate_control::wire::RunId;
use bedplate_host::OwnFolder;

/// How long folders stay, and how much they may hold together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FolderLimits {
    pub(crate) age: Duration,
    pub(crate) bytes: u64,
}

/// One that has just been made may be of a run that is not listed yet.
const YOUNG: Duration = Duration::from_secs(60);

struct Folder {
    path: PathBuf,
    changed: SystemTime,
    bytes: u64,
}

/// Removes what is beyond the limits of the folders `runs/JOB.RUN/NODE`, but none of these runs. Takes long: not to be
/// called where others wait.
pub(crate) fn prune(runs: &Path, node: &str, alive: &BTreeSet<RunId>, limits: FolderLimits, now: SystemTime) {
    let mut folders = over(runs, node, alive);
    folders.sort_by_key(|folder| folder.changed);
    let mut bytes: u64 = folders.iter().map(|folder| folder.bytes).sum();
    for folder in folders {
        let age = now.duration_since(folder.changed).unwrap_or_default();
        if age < YOUNG || (age < limits.age && bytes <= limits.bytes) {
            continue;
        }
        bytes = bytes.saturating_sub(folder.bytes);
        // What cannot be removed now is tried again the next time.
        let _ = remove(&folder.path);
        // Gone with the last of its nodes.
        let _ = folder.path.parent().map(fs::remove_dir);
    }
}

fn over(runs: &Path, node: &str, alive: &BTreeSet<RunId>) -> Vec<Folder> {
    let Ok(entries) = fs::read_dir(runs) else { return Vec::new() };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let over = names.filter(|name| run_of(name).is_some_and(|run| !alive.contains(&run)));
    let paths = over.map(|name| runs.join(name).join(node));
    let folder = |path: PathBuf| {
        let own = OwnFolder::open(&path).ok()?;
        let changed = fs::symlink_metadata(&path).ok().filter(fs::Metadata::is_dir)?.modified().ok()?;
        Some(Folder { bytes: own.bytes(), path, changed })
    };
    paths.filter_map(folder).collect()
}

fn run_of(name: &str) -> Option<RunId> {
    let (job, number) = name.split_once('.')?;
    Some(RunId { job: job.parse().ok()?, number: number.parse().ok()? })
}

/// All that the job left behind, but not what lies behind its links and mounts.
fn remove(folder: &Path) -> io::Result<()> {
    let own = OwnFolder::open(folder)?;
    own.names()?.iter().try_for_each(|name| own.remove(name))?;
    fs::remove_dir(folder)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn left(limits: FolderLimits, hours_later: u32) -> Vec<String> {
        let name = format!("bedplate-folders-{}-{hours_later}-{}", std::process::id(), limits.bytes);
        let runs = std::env::temp_dir().join(name);
        let began = SystemTime::now() - Duration::from_secs(1);
        for (at, run) in (0..).zip(["1.1", "2.1", "3.2", "stray"]) {
            let folder = runs.join(run).join("n1");
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("rank-0.out"), vec![b'x'; 100]).unwrap();
            File::open(&folder).unwrap().set_modified(began + Duration::from_millis(20) * at).unwrap();
        }
        let alive = BTreeSet::from([RunId { job: 2, number: 1 }]);
        prune(&runs, "n1", &alive, limits, SystemTime::now() + HOUR * hours_later);
        let mut left: Vec<String> = fs::read_dir(&runs)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        fs::remove_dir_all(&runs).unwrap();
        left
    }

    #[test]
    fn the_old_and_the_oldest_of_too_many_go_and_the_living_stay() {
        let limits = |hours, bytes| FolderLimits { age: HOUR * hours, bytes };
        assert_eq!(left(limits(10, 1_000), 1), ["1.1", "2.1", "3.2", "stray"]);
        assert_eq!(left(limits(10, 1_001), 11), ["2.1", "stray"]);
        assert_eq!(left(limits(10, 150), 1), ["2.1", "3.2", "stray"]);
        assert_eq!(left(limits(0, 0), 0), ["1.1", "2.1", "3.2", "stray"], "they are young");
    }
}
