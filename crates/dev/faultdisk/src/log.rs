//! The log of file operations, and what a power cut may leave of them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::Draw;

const SECTOR: usize = 512;

/// One operation on a file or its folder.
#[derive(Debug)]
enum Action {
    Create,
    Delete,
    Write { offset: usize, bytes: Vec<u8> },
    Truncate { length: usize },
}

#[derive(Debug)]
struct Step {
    /// Its number among all events.
    at: usize,
    path: PathBuf,
    /// Distinguishes successive files of the same name.
    file: usize,
    action: Action,
    /// The sync that made it durable.
    durable_at: Option<usize>,
    /// A sync of it has failed, and the system no longer knows that it is not on disk.
    is_forgotten: bool,
}

impl Step {
    fn concerns_folder(&self) -> bool {
        matches!(self.action, Action::Create | Action::Delete)
    }

    fn is_open(&self) -> bool {
        self.durable_at.is_none() && !self.is_forgotten
    }
}

#[derive(Debug, Default)]
pub(crate) struct Log {
    steps: Vec<Step>,
    /// Steps and syncs so far.
    events: usize,
    /// The current file of each name.
    files: BTreeMap<PathBuf, usize>,
}

impl Log {
    /// How many steps and syncs there were.
    pub(crate) fn position(&self) -> usize {
        self.events
    }

    fn count_event(&mut self) -> usize {
        self.events += 1;
        self.events - 1
    }

    /// Does nothing if the file exists already.
    pub(crate) fn create(&mut self, path: &Path) {
        if !self.files.contains_key(path) {
            self.files.insert(path.to_owned(), self.events);
            self.add(path, Action::Create);
        }
    }

    pub(crate) fn delete(&mut self, path: &Path) {
        self.add(path, Action::Delete);
        self.files.remove(path);
    }

    pub(crate) fn write(&mut self, path: &Path, offset: usize, bytes: &[u8]) {
        self.add(path, Action::Write { offset, bytes: bytes.to_vec() });
    }

    pub(crate) fn truncate(&mut self, path: &Path, length: usize) {
        self.add(path, Action::Truncate { length });
    }

    fn add(&mut self, path: &Path, action: Action) {
        let file = *self.files.get(path).expect("SQLite creates a file before it uses it");
        let at = self.count_event();
        let path = path.to_owned();
        self.steps.push(Step { at, path, file, action, durable_at: None, is_forgotten: false });
    }

    /// Makes the contents of a file durable.
    pub(crate) fn sync(&mut self, path: &Path) {
        let at = self.count_event();
        for step in self.open_steps(path) {
            step.durable_at = Some(at);
        }
    }

    /// Records a failed sync of the contents.
    pub(crate) fn fail_sync(&mut self, path: &Path) {
        for step in self.open_steps(path) {
            step.is_forgotten = true;
        }
    }

    /// Makes the names in the folder durable.
    pub(crate) fn sync_folder(&mut self) {
        let at = self.count_event();
        for step in self.steps.iter_mut().filter(|step| step.concerns_folder() && step.is_open()) {
            step.durable_at = Some(at);
        }
    }

    fn open_steps(&mut self, path: &Path) -> impl Iterator<Item = &mut Step> {
        let file = self.files.get(path).copied();
        let is_meant =
            move |step: &&mut Step| Some(step.file) == file && !step.concerns_folder() && step.is_open();
        self.steps.iter_mut().filter(is_meant)
    }

    /// What the disk may hold after a power cut following the first `position` events.
    pub(crate) fn after_power_cut(&self, position: usize, draw: &mut Draw) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut image = Image::default();
        for step in self.steps.iter().take_while(|step| step.at < position) {
            let is_durable = step.durable_at.is_some_and(|at| at < position);
            match &step.action {
                _ if is_durable => image.apply(step),
                Action::Write { offset, bytes } => image.write_some(step.file, *offset, bytes, draw),
                _ if draw.one_in(2) => image.apply(step),
                _ => {}
            }
        }
        image.files()
    }
}

/// Contents and names are separate: a file may have contents before its name is on disk.
#[derive(Default)]
struct Image {
    names: BTreeMap<PathBuf, usize>,
    contents: BTreeMap<usize, Vec<u8>>,
}

impl Image {
    fn apply(&mut self, step: &Step) {
        match &step.action {
            Action::Create => {
                self.names.insert(step.path.clone(), step.file);
            }
            Action::Delete => {
                self.names.remove(&step.path);
            }
            Action::Write { offset, bytes } => self.write(step.file, *offset, bytes),
            Action::Truncate { length } => {
                self.contents.entry(step.file).or_default().resize(*length, 0);
            }
        }
    }

    fn write(&mut self, file: usize, offset: usize, bytes: &[u8]) {
        let content = self.contents.entry(file).or_default();
        let end = offset + bytes.len();
        if content.len() < end {
            content.resize(end, 0);
        }
        content[offset..end].copy_from_slice(bytes);
    }

    /// The whole write, nothing of it, or some of its sectors.
    fn write_some(&mut self, file: usize, offset: usize, bytes: &[u8], draw: &mut Draw) {
        match draw.below(4) {
            0 => {}
            1 => self.write(file, offset, bytes),
            _ => {
                let mut from = 0;
                while from < bytes.len() {
                    let to = ((offset + from) / SECTOR * SECTOR + SECTOR - offset).min(bytes.len());
                    if draw.one_in(2) {
                        self.write(file, offset + from, &bytes[from..to]);
                    }
                    from = to;
                }
            }
        }
    }

    fn files(mut self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut content = |file| self.contents.remove(&file).unwrap_or_default();
        self.names.into_iter().map(|(path, file)| (path, content(file))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn images(log: &Log, position: usize) -> Vec<Option<Vec<u8>>> {
        let cut = |seed| log.after_power_cut(position, &mut Draw::new(seed)).remove(Path::new("f"));
        (0..200).map(cut).collect()
    }

    fn written() -> Log {
        let (mut log, path) = (Log::default(), Path::new("f"));
        log.create(path);
        log.sync_folder();
        log.write(path, 0, &[1; 1024]);
        log
    }

    #[test]
    fn a_write_that_was_not_synced_is_there_or_not_or_in_part() {
        let log = written();
        let found = images(&log, log.position());
        for expected in [vec![], vec![1; 1024], vec![1; 512], [vec![0; 512], vec![1; 512]].concat()] {
            assert!(found.contains(&Some(expected.clone())), "{} bytes never seen", expected.len());
        }
    }

    #[test]
    fn a_synced_write_is_there_but_not_before_its_sync() {
        let mut log = written();
        let before = log.position();
        log.sync(Path::new("f"));
        let synced = log.position();
        log.write(Path::new("f"), 0, &[2; 512]);
        assert!(images(&log, before).contains(&Some(vec![])));
        assert!(images(&log, synced).iter().all(|found| *found == Some(vec![1; 1024])));
        let later = images(&log, log.position());
        assert!(later.iter().flatten().all(|found| found[512..] == [1; 512]));
        assert!(later.iter().flatten().any(|found| found[..512] == [2; 512]));
    }

    #[test]
    fn a_failed_sync_is_not_made_good_by_a_later_one_but_by_writing_again() {
        let (mut log, path) = (written(), Path::new("f"));
        log.fail_sync(path);
        log.sync(path);
        assert!(images(&log, log.position()).contains(&Some(vec![])));
        log.write(path, 0, &[1; 1024]);
        log.sync(path);
        assert!(images(&log, log.position()).iter().all(|found| *found == Some(vec![1; 1024])));
    }

    #[test]
    fn names_are_durable_once_their_folder_is_synced() {
        let (mut log, path) = (Log::default(), Path::new("f"));
        log.create(path);
        log.write(path, 0, &[1]);
        log.sync(path);
        assert!(images(&log, log.position()).contains(&None));
        log.sync_folder();
        assert!(images(&log, log.position()).iter().all(|found| *found == Some(vec![1])));
        log.delete(path);
        let deleted = images(&log, log.position());
        assert!(deleted.contains(&None) && deleted.contains(&Some(vec![1])));
    }
}
