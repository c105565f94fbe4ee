//! Copies of a journal, with what else a control plane needs to go on elsewhere as the same one.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use bedplate_host::{Replacement, clock, sync_folder};
use bedplate_units::UtcTime;

use crate::check::{JournalCheck, check};
use crate::{JournalError, Reader};

/// Of the state directory, besides the journal: by what the daemon proves itself, and what its cluster is.
const BESIDE: [&str; 6] = ["admin.token", "certificate.der", "key.der", "run.key", "up.json", "cluster.toml"];
const JOURNAL: &str = "journal.sqlite";
/// Where back-ups lie in the state directory.
const FOLDER: &str = "backups";

/// How many back-ups a daemon keeps, and how often it makes one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackupRules {
    pub every_s: u64,
    /// The newest so many stay.
    pub most: usize,
    /// Older ones go first where all take more; the newest always stays.
    pub most_bytes: u64,
    /// No back-up is made that would leave less room on its disk.
    pub free_bytes: u64,
}

impl Default for BackupRules {
    fn default() -> Self {
        Self { every_s: 86_400, most: 7, most_bytes: 10 << 30, free_bytes: 1 << 30 }
    }
}

/// The journals of the back-ups of a state directory, the newest first.
pub fn backups(state: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(state.join(FOLDER)).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> =
        entries.map(|entry| entry.path().join(JOURNAL)).filter(|path| path.is_file()).collect();
    found.sort_unstable_by(|a, b| b.cmp(a));
    found
}

/// Copies the journal of a state directory and what belongs to it into a new folder, while a daemon uses it.
pub fn back_up(state: &Path, to: &Path) -> Result<JournalCheck, JournalError> {
    let failed = |source: io::Error| JournalError::Folder { path: to.to_owned(), source };
    if let Some(above) = to.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(above).map_err(failed)?;
    }
    DirBuilder::new().mode(0o700).create(to).map_err(failed)?;
    copy_beside(state, to).map_err(failed)?;
    let copy = to.join(JOURNAL);
    let reader = Reader::open(&state.join(JOURNAL))?;
    let copied = reader.connection.execute("VACUUM INTO ?1", [copy.to_string_lossy()]);
    copied.map_err(JournalError::reading("all of it"))?;
    // A copy that was cut off does not fit its chain, so nothing but this says that it is whole.
    let made = check(&copy)?;
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o600)).map_err(failed)?;
    File::open(&copy).and_then(|file| file.sync_data()).map_err(failed)?;
    sync_folder(to).map_err(failed)?;
    Ok(made)
}

/// Makes a state directory of a back-up; there must not be a journal in it. Returns what the back-up holds.
pub fn restore_from(backup: &Path, state: &Path) -> Result<JournalCheck, JournalError> {
    let from = if backup.is_dir() { backup } else { backup.parent().unwrap_or(Path::new(".")) };
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source: io::Error| JournalError::Folder { path, source }
    };
    let found = check(&from.join(JOURNAL))?;
    if let Some(damage) = found.damage.first() {
        return Err(JournalError::Hurt { path: from.join(JOURNAL), damage: damage.to_string() });
    }
    let own = state.join(JOURNAL);
    if own.exists() {
        return Err(JournalError::There { path: own });
    }
    DirBuilder::new().recursive(true).mode(0o700).create(state).map_err(failed(state))?;
    copy_beside(from, state).map_err(failed(from))?;
    // The journal last: without it nothing has been restored.
    copy_durably(&from.join(JOURNAL), &own).map_err(failed(&own))?;
    Ok(found)
}

/// A file of any size, there as a whole or not at all.
pub(crate) fn copy_durably(from: &Path, to: &Path) -> io::Result<()> {
    let mut copy = Replacement::create_private(to)?;
    io::copy(&mut File::open(from)?, &mut copy)?;
    copy.commit()
}

fn copy_beside(from: &Path, to: &Path) -> io::Result<()> {
    for name in BESIDE {
        match fs::read(from.join(name)) {
            Ok(bytes) => bedplate_host::replace_private_file(&to.join(name), &bytes)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Makes the back-up that is due, and removes what is beyond the rules. Nothing where none is due; the folder of the new one otherwise.
pub fn keep_backups(state: &Path, rules: &BackupRules) -> Result<Option<PathBuf>, JournalError> {
    let folder = state.join(FOLDER);
    let failed = |source: io::Error| JournalError::Folder { path: folder.clone(), source };
    let now_ms = clock::unix_ms();
    let made_at = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    let newest = backups(state).first().and_then(|path| made_at(path));
    if newest.and_then(|at| at.elapsed().ok()).is_some_and(|age| age.as_secs() < rules.every_s) {
        return Ok(None);
    }
    let size = fs::metadata(state.join(JOURNAL)).map_or(0, |metadata| metadata.len());
    let room = nix::sys::statvfs::statvfs(state).map_err(|error| failed(error.into()))?;
    let free = room.blocks_available() * room.fragment_size();
    if free < rules.free_bytes.saturating_add(size) {
        return Err(JournalError::NoRoom {
            path: folder,
            free,
            needed: rules.free_bytes.saturating_add(size),
        });
    }
    let name = format!("{:#}.{:03}", UtcTime::of(now_ms / 1000), now_ms % 1000).replace(':', "-");
    let made = folder.join(name);
    back_up(state, &made)?;
    trim(state, rules).map_err(failed)?;
    Ok(Some(made))
}

fn trim(state: &Path, rules: &BackupRules) -> io::Result<()> {
    let mut bytes = 0;
    for (place, journal) in backups(state).iter().enumerate() {
        bytes += fs::metadata(journal).map_or(0, |metadata| metadata.len());
        if place > 0 && (place >= rules.most || bytes > rules.most_bytes) {
            fs::remove_dir_all(journal.parent().unwrap_or(journal))?;
        }
    }
    Ok(())
}
