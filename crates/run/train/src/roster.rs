//! Who waits to join a run, and where the ranks of its next world meet: small files in the run's folder.
//!
//! A process that waits keeps a file of its own fresh; the ranks count such files. The lowest rank writes where the next world
//! gathers; those who wait read it and knock there. A file that is stale counts for nothing, so nobody needs to clean up.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use bedplate_comm::{JoinError, MeetingPoint, Options, Rendezvous, World};
use serde_json::{Value, json};

use crate::TrainError;

const FOLDER: &str = "ranks";
const MEETING: &str = "meeting.json";
const WAITING: &str = "waiting-";
/// Who waits says so this often, and is believed for a little longer.
const FRESHENED: Duration = Duration::from_millis(500);
const STALE: Duration = Duration::from_secs(3);
/// One attempt to be let in; then it is looked again where to knock.
const ATTEMPT: Duration = Duration::from_secs(5);
const AGAIN: Duration = Duration::from_millis(100);

/// The place where those who wait and those who train find each other.
#[derive(Debug, Clone)]
pub struct Roster {
    folder: PathBuf,
}

impl Roster {
    /// In the folder of a run.
    pub fn of(output: &Path) -> Self {
        Self { folder: output.join(FOLDER) }
    }

    /// Whether the ranks have met since some time.
    pub fn has_met_since(&self, time: SystemTime) -> bool {
        let note = fs::metadata(self.folder.join(MEETING)).and_then(|note| note.modified());
        note.is_ok_and(|written| written >= time)
    }

    /// Whether a process waits to join.
    pub fn waits(&self, process: u32) -> bool {
        self.sign_of(process).exists()
    }

    fn sign_of(&self, process: u32) -> PathBuf {
        self.folder.join(format!("{WAITING}{process}"))
    }

    /// How many processes wait to join.
    pub(crate) fn waiting(&self) -> u32 {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let is_waiting = |entry: &fs::DirEntry| {
            let is_one = entry.file_name().to_string_lossy().starts_with(WAITING);
            let changed = entry.metadata().and_then(|metadata| metadata.modified());
            let age = changed.ok().and_then(|changed| SystemTime::now().duration_since(changed).ok());
            is_one && age.is_none_or(|age| age < STALE)
        };
        entries.filter(is_waiting).count() as u32
    }

    /// Says where the next world gathers.
    pub(crate) fn meet_at(&self, point: MeetingPoint) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        let aside = self.folder.join(format!("{MEETING}.{}", std::process::id()));
        fs::write(&aside, json!({"address": point.address.to_string(), "epoch": point.epoch}).to_string())?;
        fs::rename(aside, self.folder.join(MEETING))
    }

    /// Whether a world at a later epoch than the next one has been made: the run went on without whoever asks.
    pub(crate) fn has_passed(&self, epoch: u64) -> bool {
        self.meeting().is_some_and(|point| point.epoch > epoch + 1)
    }

    fn meeting(&self) -> Option<MeetingPoint> {
        let text = fs::read_to_string(self.folder.join(MEETING)).ok()?;
        let value: Value = serde_json::from_str(&text).ok()?;
        Some(MeetingPoint {
            address: value["address"].as_str()?.parse().ok()?,
            epoch: value["epoch"].as_u64()?,
        })
    }

    /// Waits for a place in the run and takes it. Gives nothing when it is told to `stop`.
    pub fn join(
        &self,
        rendezvous: &Rendezvous,
        options: &Options,
        stop: &AtomicBool,
    ) -> Result<Option<World>, TrainError> {
        let cannot = |source| TrainError::WriteOutput { path: self.folder.clone(), source };
        fs::create_dir_all(&self.folder).map_err(cannot)?;
        let sign = Sign::raise(self.sign_of(std::process::id())).map_err(cannot)?;
        let options = Options { join: ATTEMPT, ..options.clone() };
        loop {
            if stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let joined = self.meeting().map(|point| World::join_next(point, rendezvous, &options));
            match joined {
                Some(Ok(world)) => {
                    drop(sign);
                    return Ok(Some(world));
                }
                Some(Err(error @ (JoinError::WrongSecret { .. } | JoinError::Protocol { .. }))) => {
                    return Err(error.into());
                }
                _ => thread::sleep(AGAIN),
            }
        }
    }
}

/// The file of somebody who waits, kept fresh until it is dropped.
struct Sign {
    path: PathBuf,
    is_down: Arc<AtomicBool>,
    keeper: Option<JoinHandle<()>>,
}

impl Sign {
    fn raise(path: PathBuf) -> io::Result<Self> {
        fs::write(&path, "")?;
        let is_down = Arc::new(AtomicBool::new(false));
        let (own, down) = (path.clone(), Arc::clone(&is_down));
        let keep = move || {
            while !down.load(Ordering::Relaxed) {
                let _ = fs::write(&own, "");
                thread::park_timeout(FRESHENED);
            }
        };
        let keeper = thread::Builder::new().name("waiting".into()).spawn(keep)?;
        Ok(Self { path, is_down, keeper: Some(keeper) })
    }
}

impl Drop for Sign {
    fn drop(&mut self) {
        self.is_down.store(true, Ordering::Relaxed);
        // Who keeps it fresh could write it once more.
        if let Some(keeper) = self.keeper.take() {
            keeper.thread().unpark();
            let _ = keeper.join();
        }
        let _ = fs::remove_file(&self.path);
    }
}
