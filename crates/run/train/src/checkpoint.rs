//! The whole state of a run on disk, written aside and renamed, so that a checkpoint exists completely or not at all.
//!
//! A checkpoint is a folder such as `checkpoints/step-00000120` with the trained numbers and their moments
//! (`state.safetensors`), what else a run needs to continue with the same bits (`state.json`), and the checksums of both
//! (`manifest.json`). Its step is in its facts; the name is for people. The order of data follows from the number of
//! samples seen, so only that number is stored.
//!
//! The folder holds one branch of a run's history. Going back to an earlier checkpoint moves the later ones to `abandoned/`.

mod facts;
mod manifest;
mod state;

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bedplate_network::SafetensorsFile;

pub use facts::Change;
use facts::WITHOUT_MANIFEST;
pub(crate) use facts::{Facts, Settings};
use manifest::{MANIFEST_FILE, Manifest, read_json};

use crate::TrainError;
use crate::parameters::Trained;
use crate::trainer::Trainer;

const STATE_FILE: &str = "state.safetensors";
const FACTS_FILE: &str = "state.json";
const UNFINISHED: &str = "unfinished-";
const ABANDONED: &str = "abandoned";
/// The finished weights, in the output folder.
pub(crate) const MODEL_FOLDER: &str = "model";
/// The records of steps, in the output folder.
pub(crate) const METRICS_FILE: &str = "metrics.jsonl";

/// The checkpoints of a run.
#[derive(Debug, Clone)]
pub struct Checkpoints {
    output: PathBuf,
    folder: PathBuf,
    keep: usize,
}

/// A complete checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Published {
    pub step: u64,
    pub path: PathBuf,
}

/// A checkpoint that was read and found good.
#[derive(Debug, Clone)]
pub(crate) struct Verified {
    pub(crate) checkpoint: Published,
    pub(crate) facts: Facts,
}

/// A folder with files of a checkpoint, good or not.
struct Found {
    path: PathBuf,
    facts: Result<Facts, String>,
}

impl Found {
    /// Its step, or where that cannot be read the one in its name.
    fn step(&self) -> u64 {
        let name = self.path.file_name().and_then(|name| name.to_str());
        let named = || step_in(name?);
        self.facts.as_ref().map_or_else(|_| named().unwrap_or(0), |facts| facts.step)
    }

    /// Whether this program named it. Others are copies that someone made for a reason, and are not pruned.
    fn has_own_name(&self) -> bool {
        self.path.file_name().is_some_and(|name| name.to_str() == Some(&name_of(self.step())))
    }

    /// The checkpoint, once all its bytes have been read and are as they were written; otherwise what is wrong.
    fn verify(self) -> Result<Result<Verified, String>, TrainError> {
        let facts = match self.facts {
            Ok(facts) => facts,
            Err(flaw) => return Ok(Err(flaw)),
        };
        let flaw = match facts.version {
            WITHOUT_MANIFEST => {
                SafetensorsFile::open(&self.path.join(STATE_FILE)).err().map(|e| e.to_string())
            }
            _ => Manifest::flaw(&self.path)?,
        };
        let checkpoint = Published { step: facts.step, path: self.path };
        Ok(flaw.map_or(Ok(Verified { checkpoint, facts }), Err))
    }
}

fn name_of(step: u64) -> String {
    format!("step-{step:08}")
}

fn step_in(name: &str) -> Option<u64> {
    name.strip_prefix("step-").unwrap_or(name).parse().ok()
}

impl Checkpoints {
    pub fn new(output: &Path, keep: usize) -> Self {
        Self { output: output.to_owned(), folder: output.join("checkpoints"), keep }
    }

    /// Everything that looks like a checkpoint, oldest first.
    fn all(&self) -> Result<Vec<Found>, TrainError> {
        let cannot = |source| TrainError::ReadCheckpoint { path: self.folder.clone(), source };
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(cannot(source)),
        };
        let mut all = Vec::new();
        for entry in entries {
            let entry = entry.map_err(cannot)?;
            // A link such as `latest` is another name of a checkpoint, not another checkpoint.
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                all.extend(found(&entry.path())?);
            }
        }
        all.sort_by_key(|found| (found.step(), found.path.clone()));
        Ok(all)
    }

    /// The step of the newest checkpoint, good or not.
    pub(crate) fn newest_step(&self) -> Result<Option<u64>, TrainError> {
        Ok(self.all()?.last().map(Found::step))
    }

    /// The newest good checkpoint, and a sentence on each newer one that is not. An error when none is good.
    pub(crate) fn newest_good(&self) -> Result<Option<(Verified, Vec<String>)>, TrainError> {
        let mut flaws: Vec<(PathBuf, String)> = Vec::new();
        for found in self.all()?.into_iter().rev() {
            let path = found.path.clone();
            match found.verify()? {
                Ok(good) => {
                    let said = |(path, flaw): (PathBuf, String)| {
                        format!("the newer checkpoint {} is not used: {flaw}", path.display())
                    };
                    return Ok(Some((good, flaws.into_iter().map(said).collect())));
                }
                Err(flaw) => flaws.push((path, flaw)),
            }
        }
        match flaws.into_iter().next() {
            Some((path, what)) => Err(TrainError::DamagedCheckpoint { path, what }),
            None => Ok(None),
        }
    }

    /// The checkpoint that is meant: a folder, the name of one in this run, or its step.
    pub(crate) fn named(&self, named: &Path) -> Result<Verified, TrainError> {
        let path = if named.exists() { named.to_owned() } else { self.folder.join(named) };
        let path = path.canonicalize().unwrap_or(path);
        let nothing = || TrainError::NothingToResume { folder: named.to_owned() };
        let found = match found(&path)? {
            Some(found) => found,
            None => {
                let step = named.to_str().and_then(step_in).ok_or_else(nothing)?;
                let is_meant = |found: &Found| found.step() == step;
                self.all()?.into_iter().rev().find(is_meant).ok_or_else(nothing)?
            }
        };
        let path = found.path.clone();
        found.verify()?.map_err(|what| TrainError::DamagedCheckpoint { path, what })
    }

    /// Whether a checkpoint lies in this run's folder.
    pub(crate) fn holds(&self, checkpoint: &Published) -> bool {
        let real = |path: Option<&Path>| path.and_then(|path| path.canonicalize().ok());
        let parent = real(std::path::absolute(&checkpoint.path).ok().as_deref().and_then(Path::parent));
        parent.is_some() && parent == real(Some(&self.folder))
    }

    /// Makes a checkpoint of this folder the newest of its branch: whatever is not before it moves to a new folder in
    /// `abandoned/`, which this gives. Of one that was `taken_over` from elsewhere nothing here is before it.
    pub(crate) fn branch_off(
        &self,
        from: &Published,
        is_taken_over: bool,
    ) -> Result<Option<PathBuf>, TrainError> {
        let is_same = |found: &Found| found.path.file_name() == from.path.file_name();
        let is_left = |found: &Found| !is_same(found) && (is_taken_over || found.step() >= from.step);
        let left: Vec<Found> = self.all()?.into_iter().filter(is_left).collect();
        let has_records = is_taken_over && self.output.join(METRICS_FILE).exists();
        if left.is_empty() && !has_records {
            return Ok(None);
        }
        // The result of what is left goes with it. The newest go first: a crash half-way leaves a shorter branch, not one
        // with a gap.
        let model = self.output.join(MODEL_FOLDER);
        let can_move = self.beside_checkpoints() == self.output;
        let model = Some(model.as_path()).filter(|model| can_move && model.exists());
        let paths = left.iter().rev().map(|found| found.path.as_path()).chain(model);
        Ok(Some(self.set_aside(from.step, paths)?))
    }

    fn set_aside<'a>(&self, step: u64, paths: impl Iterator<Item = &'a Path>) -> Result<PathBuf, TrainError> {
        let aside = self.new_abandoned(step)?;
        let cannot = |source| TrainError::WriteOutput { path: aside.clone(), source };
        for path in paths {
            fs::rename(path, aside.join(path.file_name().unwrap_or_default())).map_err(cannot)?;
        }
        sync_folder(&aside).and_then(|()| sync_folder(&self.folder)).map_err(cannot)?;
        Ok(aside)
    }

    /// The output folder, or that of the checkpoints where a link has put them on another file system: things move there by
    /// a new name alone.
    fn beside_checkpoints(&self) -> &Path {
        let device = |path: &Path| fs::metadata(path).map(|metadata| metadata.dev()).ok();
        if device(&self.folder).is_none_or(|own| device(&self.output) == Some(own)) {
            &self.output
        } else {
            &self.folder
        }
    }

    /// A fresh folder for what comes after a step: `after-step-00000040`, then `after-step-00000040.2`.
    fn new_abandoned(&self, step: u64) -> Result<PathBuf, TrainError> {
        let parent = self.beside_checkpoints().join(ABANDONED);
        let cannot = |source| TrainError::WriteOutput { path: parent.clone(), source };
        fs::create_dir_all(&parent).map_err(cannot)?;
        let name = format!("after-{}", name_of(step));
        let mut path = parent.join(&name);
        for number in 2.. {
            match fs::create_dir(&path) {
                Ok(()) => break,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    path = parent.join(format!("{name}.{number}"));
                }
                Err(source) => return Err(cannot(source)),
            }
        }
        Ok(path)
    }

    /// Writes the current state, then removes all checkpoints but the newest few of this branch.
    pub(crate) fn publish<E: Trained>(
        &self,
        trainer: &Trainer<E>,
        settings: &Settings,
    ) -> Result<Published, TrainError> {
        let published = self.write(&name_of(trainer.step), trainer, settings)?;
        self.prune(&published)?;
        Ok(published)
    }

    /// Makes the current state, that of a checkpoint from elsewhere, the first of this folder's branch; says where the
    /// checkpoints are that it replaces. It lies here before anything else moves, so that a crash loses nothing.
    pub(crate) fn take_over<E: Trained>(
        &self,
        trainer: &Trainer<E>,
        settings: &Settings,
    ) -> Result<(Published, Option<PathBuf>), TrainError> {
        let name = name_of(trainer.step);
        let first = self.write(&format!("{name}.taken-over"), trainer, settings)?;
        let aside = self.branch_off(&first, true)?;
        let path = self.folder.join(name);
        let cannot = |source| TrainError::WriteOutput { path: path.clone(), source };
        fs::rename(&first.path, &path).and_then(|()| sync_folder(&self.folder)).map_err(cannot)?;
        Ok((Published { step: first.step, path }, aside))
    }

    fn write<E: Trained>(
        &self,
        name: &str,
        trainer: &Trainer<E>,
        settings: &Settings,
    ) -> Result<Published, TrainError> {
        let step = trainer.step;
        let path = self.folder.join(name);
        let aside = self.folder.join(format!("{UNFINISHED}{step:08}"));
        let cannot = |source| TrainError::WriteOutput { path: path.clone(), source };
        self.remove_unfinished();
        fs::create_dir_all(&aside).map_err(cannot)?;
        if let Err(source) = trainer.write_state(&aside, settings) {
            // On a full disk others need the room.
            let _ = fs::remove_dir_all(&aside);
            return Err(cannot(source));
        }
        if path.exists() {
            self.set_aside(step, [path.as_path()].into_iter())?;
        }
        fs::rename(&aside, &path).map_err(cannot)?;
        sync_folder(&self.folder).map_err(cannot)?;
        Ok(Published { step, path })
    }

    /// What a run left that was killed while it wrote.
    fn remove_unfinished(&self) {
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }

    fn prune(&self, newest: &Published) -> Result<(), TrainError> {
        let is_old = |found: &Found| found.has_own_name() && found.step() < newest.step;
        let old: Vec<Found> = self.all()?.into_iter().filter(is_old).collect();
        let kept = self.keep.saturating_sub(1);
        for found in &old[..old.len().saturating_sub(kept)] {
            fs::remove_dir_all(&found.path)
                .map_err(|source| TrainError::WriteOutput { path: found.path.clone(), source })?;
        }
        Ok(())
    }
}

/// What a folder holds; `None` when nothing in it is of a checkpoint.
fn found(path: &Path) -> Result<Option<Found>, TrainError> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let has_any = [FACTS_FILE, STATE_FILE, MANIFEST_FILE].iter().any(|file| path.join(file).exists());
    let is_one = path.is_dir() && !name.starts_with(UNFINISHED) && (has_any || name.starts_with("step-"));
    if !is_one {
        return Ok(None);
    }
    let facts = read_json(&path.join(FACTS_FILE))?.and_then(|value| Facts::parse(&value));
    Ok(Some(Found { path: path.to_owned(), facts }))
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}
