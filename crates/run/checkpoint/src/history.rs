//! The checkpoints of a run: one branch of its history, with what was left behind set aside.
//!
//! A checkpoint's step is in its facts; the name is for people. Going back to an earlier one takes the later ones out of the list: in a directory they
//! move to `abandoned/` beside it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bedplate_host::clock;

use crate::checkpoint::looks_like_one;
use crate::storage::name_of;
use crate::{Attempt, Checkpoint, CheckpointError, Manifest, PartEntry, RunFacts, Store};

const ABANDONED: &str = "abandoned";
const TAKEN_OVER: &str = ".taken-over";

/// Which checkpoints stay when a new one is published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    /// The newest so many.
    pub count: usize,
    /// And all that are younger.
    pub age: Duration,
}

/// The checkpoints of a run.
#[derive(Debug, Clone)]
pub struct Checkpoints {
    output: PathBuf,
    store: Store,
    keep: Keep,
}

/// A complete checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Published {
    pub step: u64,
    pub path: PathBuf,
}

/// A checkpoint of a list, or what is wrong with it.
#[derive(Debug)]
pub struct Listed {
    pub place: String,
    pub opened: Result<Checkpoint, CheckpointError>,
}

/// Something in the store that looks like a checkpoint, good or not.
struct Found {
    name: String,
    opened: Result<Checkpoint, CheckpointError>,
}

impl Found {
    /// Its step, or where that cannot be read the one in its name.
    fn step(&self) -> u64 {
        self.opened.as_ref().map_or_else(|_| step_in(&self.name).unwrap_or(0), |found| found.facts().step)
    }

    /// Whether this program named it. Others are copies that someone made for a reason, and are not pruned.
    fn has_own_name(&self) -> bool {
        self.name == name_of(self.step())
    }

    fn written(&self) -> u64 {
        self.opened.as_ref().map_or(0, |found| found.manifest().written)
    }

    /// The checkpoint, once all its bytes have been read and are as they were written.
    fn verified(self) -> Result<Checkpoint, CheckpointError> {
        let checkpoint = self.opened?;
        checkpoint.verify()?;
        Ok(checkpoint)
    }
}

fn step_in(name: &str) -> Option<u64> {
    name.strip_prefix("step-").unwrap_or(name).parse().ok()
}

fn now() -> u64 {
    clock::unix_time().as_secs()
}

impl Checkpoints {
    /// Those of a run with an output folder, in a store of their own.
    pub fn new(output: &Path, store: Store, keep: Keep) -> Self {
        Self { output: output.to_owned(), store, keep }
    }

    /// Those in a folder of the output.
    pub fn in_output(output: &Path, keep: Keep) -> Self {
        Self::new(output, Store::folder(&output.join("checkpoints")), keep)
    }

    pub fn store(&self) -> &Store {
        &self.store
    }

    fn read_error(&self) -> impl Fn(std::io::Error) -> CheckpointError {
        let place = self.store.address().to_owned();
        move |source| CheckpointError::Read { place: place.clone(), source }
    }

    fn write_error(&self, name: &str) -> impl Fn(std::io::Error) -> CheckpointError + use<> {
        let place = self.store.place(name);
        move |source| CheckpointError::Write { place: place.clone(), source }
    }

    /// Everything that looks like a checkpoint, oldest first.
    fn all(&self) -> Result<Vec<Found>, CheckpointError> {
        let mut all = Vec::new();
        for name in self.store.storage().names().map_err(self.read_error())? {
            let is_one = self.store.directory().is_none_or(|folder| looks_like_one(&folder.join(&name)));
            if is_one {
                all.push(self.found(name)?);
            }
        }
        all.sort_by_key(|found| (found.step(), found.name.clone()));
        Ok(all)
    }

    /// A flaw is kept with what was found; that the store cannot be read is an error.
    fn found(&self, name: String) -> Result<Found, CheckpointError> {
        let opened = match Checkpoint::in_store(&self.store, &name) {
            Err(error @ CheckpointError::Read { .. }) => return Err(error),
            opened => opened,
        };
        Ok(Found { name, opened })
    }

    /// The checkpoints of this place, oldest first.
    pub fn list(&self) -> Result<Vec<Listed>, CheckpointError> {
        let listed = |found: Found| Listed { place: self.store.place(&found.name), opened: found.opened };
        Ok(self.all()?.into_iter().map(listed).collect())
    }

    /// The step of the newest checkpoint, good or not.
    pub fn newest_step(&self) -> Result<Option<u64>, CheckpointError> {
        Ok(self.all()?.last().map(Found::step))
    }

    /// The newest good checkpoint, and a sentence on each newer one that is not. An error when none is good.
    pub fn newest_good(&self) -> Result<Option<(Checkpoint, Vec<String>)>, CheckpointError> {
        let mut flaws: Vec<(String, String)> = Vec::new();
        for found in self.all()?.into_iter().rev() {
            let place = self.store.place(&found.name);
            match found.verified() {
                Ok(good) => {
                    let said = |(place, flaw)| format!("the newer checkpoint {place} is not used: {flaw}");
                    return Ok(Some((good, flaws.into_iter().map(said).collect())));
                }
                Err(CheckpointError::Old { place }) if flaws.is_empty() => {
                    return Err(CheckpointError::Old { place });
                }
                Err(error) => flaws.push((place, error.into_flaw()?)),
            }
        }
        match flaws.into_iter().next() {
            Some((place, what)) => Err(CheckpointError::Damaged { place, what }),
            None => Ok(None),
        }
    }

    /// The checkpoint that is meant: a folder, an address, the name of one in this run, or its step. Every byte of it has been read.
    pub fn named(&self, named: &Path) -> Result<Checkpoint, CheckpointError> {
        let text = named.to_string_lossy();
        let checkpoint = if text.starts_with("s3://") {
            Checkpoint::open(&text)?
        } else if looks_like_one(named) {
            let path = named.canonicalize().unwrap_or_else(|_| named.to_owned());
            Checkpoint::open(&path.to_string_lossy())?
        } else {
            self.named_here(&text)?
        };
        checkpoint.verify()?;
        Ok(checkpoint)
    }

    fn named_here(&self, name: &str) -> Result<Checkpoint, CheckpointError> {
        let nothing = || CheckpointError::Nothing { place: name.to_owned() };
        let all = self.all()?;
        let step = step_in(name);
        let position = all
            .iter()
            .rposition(|found| found.name == name)
            .or_else(|| all.iter().rposition(|found| Some(found.step()) == step))
            .ok_or_else(nothing)?;
        all.into_iter().nth(position).ok_or_else(nothing)?.opened
    }

    /// Whether a checkpoint lies in this run's store.
    pub fn holds(&self, checkpoint: &Checkpoint) -> bool {
        let published = checkpoint.published();
        let Some(folder) = self.store.directory() else {
            return published.path.parent() == Some(Path::new(self.store.address()));
        };
        let real = |path: Option<&Path>| path.and_then(|path| path.canonicalize().ok());
        let parent = real(std::path::absolute(&published.path).ok().as_deref().and_then(Path::parent));
        parent.is_some() && parent == real(Some(folder))
    }

    /// Makes a checkpoint of this store the newest of its branch: whatever is not before it is set aside, with the files `along` of the
    /// output. Gives the folder where that lies. Of one that was taken over from elsewhere nothing here is before it.
    pub fn branch_off(
        &self,
        from: &Published,
        is_taken_over: bool,
        along: &[&Path],
    ) -> Result<Option<PathBuf>, CheckpointError> {
        let own = self.name_in_store(from);
        let is_left = |found: &Found| found.name != own && (is_taken_over || found.step() >= from.step);
        let left: Vec<String> = self.all()?.into_iter().filter(is_left).map(|found| found.name).collect();
        if left.is_empty() && !(is_taken_over && along.iter().any(|path| path.exists())) {
            return Ok(None);
        }
        // The newest go first: a crash half-way leaves a shorter branch, not one with a gap.
        let aside = self.set_aside(from.step, left.iter().rev())?;
        let can_move = self.beside_checkpoints() == self.output;
        for path in along.iter().filter(|path| can_move && path.is_dir()) {
            fs::rename(path, aside.join(path.file_name().unwrap_or_default()))
                .map_err(self.write_error(&path.to_string_lossy()))?;
        }
        Ok(Some(aside))
    }

    fn name_in_store(&self, published: &Published) -> String {
        let name = published.path.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    fn set_aside<'a>(
        &self,
        step: u64,
        names: impl Iterator<Item = &'a String>,
    ) -> Result<PathBuf, CheckpointError> {
        let aside = self.new_abandoned(step)?;
        for name in names {
            self.store.storage().set_aside(name, &aside).map_err(self.write_error(name))?;
        }
        Ok(aside)
    }

    /// The output folder, or that of the checkpoints where a link has put them on another file system: things move there by
    /// a new name alone.
    fn beside_checkpoints(&self) -> &Path {
        let device = |path: &Path| fs::metadata(path).map(|metadata| metadata.dev()).ok();
        match self.store.directory() {
            Some(folder) if device(folder).is_some_and(|own| device(&self.output) != Some(own)) => folder,
            _ => &self.output,
        }
    }

    /// A fresh folder for what comes after a step: `after-step-00000040`, then `after-step-00000040.2`.
    fn new_abandoned(&self, step: u64) -> Result<PathBuf, CheckpointError> {
        let parent = self.beside_checkpoints().join(ABANDONED);
        let cannot = |source| CheckpointError::Write { place: parent.display().to_string(), source };
        fs::create_dir_all(&parent).map_err(cannot)?;
        let name = format!("after-{}", name_of(step));
        let mut path = parent.join(&name);
        for number in 2.. {
            match fs::create_dir(&path) {
                Ok(()) => break,
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                    path = parent.join(format!("{name}.{number}"));
                }
                Err(source) => return Err(cannot(source)),
            }
        }
        Ok(path)
    }

    /// Makes room for a checkpoint of a step. One rank does this and tells the others; one attempt is under way at a time.
    pub fn begin(&self, step: u64) -> Result<Attempt, CheckpointError> {
        let attempt = Attempt::new(step);
        let storage = self.store.storage();
        storage
            .clear()
            .and_then(|()| storage.make_room(&attempt))
            .map_err(self.write_error(&attempt.name()))?;
        Ok(attempt)
    }

    /// The same for a folder that is not a run's, where others may write too.
    pub(crate) fn begin_beside(&self, step: u64) -> Result<Attempt, CheckpointError> {
        let attempt = Attempt::new(step);
        self.store.storage().make_room(&attempt).map_err(self.write_error(&attempt.name()))?;
        Ok(attempt)
    }

    /// Removes what there is of an attempt that failed on some rank.
    pub fn discard(&self, attempt: &Attempt) {
        self.store.storage().discard(attempt);
    }

    /// Makes a checkpoint of the parts of all ranks, then removes all but those to keep. One rank does this.
    pub fn publish(
        &self,
        attempt: &Attempt,
        parts: Vec<PartEntry>,
        facts: RunFacts,
    ) -> Result<Published, CheckpointError> {
        let published = self.publish_as(&attempt.name(), attempt, parts, facts)?;
        self.prune(&published)?;
        Ok(published)
    }

    /// Publishes the state of a checkpoint from elsewhere as the first of this store's branch; gives also where the checkpoints are that it
    /// replaces. It lies here before anything else moves, so that a crash loses nothing.
    pub fn publish_taken_over(
        &self,
        attempt: &Attempt,
        parts: Vec<PartEntry>,
        facts: RunFacts,
        along: &[&Path],
    ) -> Result<(Published, Option<PathBuf>), CheckpointError> {
        let name = attempt.name();
        let first = self.publish_as(&format!("{name}{TAKEN_OVER}"), attempt, parts, facts)?;
        let aside = self.branch_off(&first, true, along)?;
        let unnamed = self.name_in_store(&first);
        self.store.storage().rename(&unnamed, &name).map_err(self.write_error(&name))?;
        Ok((Published { step: first.step, path: self.store.path(&name) }, aside))
    }

    pub(crate) fn publish_as(
        &self,
        name: &str,
        attempt: &Attempt,
        parts: Vec<PartEntry>,
        facts: RunFacts,
    ) -> Result<Published, CheckpointError> {
        let outcome = self.try_publish(name, attempt, parts, facts);
        if outcome.is_err() {
            // On a full disk others need the room.
            self.discard(attempt);
        }
        outcome
    }

    fn try_publish(
        &self,
        name: &str,
        attempt: &Attempt,
        parts: Vec<PartEntry>,
        facts: RunFacts,
    ) -> Result<Published, CheckpointError> {
        let manifest = Manifest::new(facts, now(), parts)
            .map_err(|what| CheckpointError::Incomplete { place: self.store.place(name), what })?;
        let cannot = self.write_error(name);
        if self.store.storage().exists(name).map_err(&cannot)? {
            self.set_aside(attempt.step(), [name.to_owned()].iter())?;
        }
        self.store.storage().publish(attempt, name, manifest.to_text().as_bytes()).map_err(&cannot)?;
        Ok(Published { step: manifest.facts.step, path: self.store.path(name) })
    }

    fn prune(&self, newest: &Published) -> Result<(), CheckpointError> {
        let is_old = |found: &Found| found.has_own_name() && found.step() < newest.step;
        let old: Vec<Found> = self.all()?.into_iter().filter(is_old).collect();
        let surplus = old.len().saturating_sub(self.keep.count.saturating_sub(1));
        let youngest = now().saturating_sub(self.keep.age.as_secs());
        for found in &old[..surplus] {
            if self.keep.age.is_zero() || found.written() < youngest {
                self.store.storage().remove(&found.name).map_err(self.write_error(&found.name))?;
            }
        }
        Ok(())
    }
}
