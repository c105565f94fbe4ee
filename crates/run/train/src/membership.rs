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

use bedplate_comm::{JoinError, MeetingPoint, Rendezvous, World, WorldOptions};
use bedplate_host::replace_file;
use serde_json::{Value, json};

use crate::TrainError;

const FOLDER: &str = "ranks";
const MEETING: &str = "meeting.json";
const WAITING: &str = "waiting-";
const CLOSED: &str = "closed";
/// Who waits says so this often, and is believed for a little longer.
const FRESHENED: Duration = Duration::from_millis(500);
const STALE: Duration = Duration::from_secs(3);
/// One attempt to be let in; then it is looked again where to knock.
const ATTEMPT: Duration = Duration::from_secs(5);
const AGAIN: Duration = Duration::from_millis(100);

/// The membership files, by which those who wait and those who train find each other.
#[derive(Debug, Clone)]
pub struct Membership {
    folder: PathBuf,
    /// The node of this process: what is there is lost together.
    node: String,
}

impl Membership {
    /// In the folder of a run.
    pub fn of(output: &Path) -> Self {
        Self { folder: output.join(FOLDER), node: String::new() }
    }

    /// For a process on this node; ranks keep their copies on other nodes where there are any.
    pub fn on(self, node: String) -> Self {
        Self { node, ..self }
    }

    pub(crate) fn node(&self) -> &str {
        &self.node
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
        self.note(json!({"address": point.address.to_string(), "epoch": point.epoch}))
    }

    /// Says the same, and that this many ranks must come before the run can go on.
    pub(crate) fn await_at(&self, point: MeetingPoint, missing: u32) -> io::Result<()> {
        self.note(json!({"address": point.address.to_string(), "epoch": point.epoch, "missing": missing}))
    }

    /// Says that the run is over, so that nobody waits for a place any more.
    pub(crate) fn end(&self) {
        let _ = self.note(json!({"is_over": true}));
    }

    fn note(&self, note: Value) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        replace_file(&self.folder.join(MEETING), note.to_string().as_bytes())
    }

    fn read_note(&self) -> Option<Value> {
        serde_json::from_str(&fs::read_to_string(self.folder.join(MEETING)).ok()?).ok()
    }

    /// How many ranks must come before the run can go on.
    pub fn missing(&self) -> u32 {
        let missing = self.read_note().and_then(|note| note["missing"].as_u64());
        missing.map_or(0, |missing| missing as u32)
    }

    fn is_over_since(&self, time: SystemTime) -> bool {
        self.read_note().is_some_and(|note| note["is_over"] == true) && self.has_met_since(time)
    }

    /// Says whether anybody may still come who does not wait yet. Ranks that are too few do not wait for nobody.
    pub fn set_closed(&self, is_closed: bool) -> io::Result<()> {
        let path = self.folder.join(CLOSED);
        match is_closed {
            true => fs::create_dir_all(&self.folder).and_then(|()| fs::write(path, "")),
            false => match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            },
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.folder.join(CLOSED).exists()
    }

    /// Whether a world at a later epoch than the next one has been made: the run went on without whoever asks.
    pub(crate) fn has_passed(&self, epoch: u64) -> bool {
        self.meeting().is_some_and(|point| point.epoch > epoch + 1)
    }

    fn meeting(&self) -> Option<MeetingPoint> {
        let value = self.read_note()?;
        Some(MeetingPoint {
            address: value["address"].as_str()?.parse().ok()?,
            epoch: value["epoch"].as_u64()?,
        })
    }

    /// Waits for a place in the run and takes it. Gives nothing when it is told to `stop`, or the run is over, as was said after
    /// some time: earlier runs may have used the folder.
    pub fn join(
        &self,
        rendezvous: &Rendezvous,
        options: &WorldOptions,
        stop: &AtomicBool,
        since: SystemTime,
    ) -> Result<Option<World>, TrainError> {
        let cannot = |source| TrainError::WriteOutput { path: self.folder.clone(), source };
        fs::create_dir_all(&self.folder).map_err(cannot)?;
        let sign = Sign::raise(self.sign_of(std::process::id())).map_err(cannot)?;
        let options = WorldOptions { join: ATTEMPT, ..options.clone() };
        loop {
            if stop.load(Ordering::Relaxed) || self.is_over_since(since) {
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
