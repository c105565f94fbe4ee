//! The one connection that writes.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bedplate_control::record::{EndedRow, Record, Restored};
use bedplate_gangs::JobId;
use bedplate_host::{FolderLock, clock, sync_folder};
use rusqlite::{Connection, OpenFlags, TransactionBehavior};

use crate::chain::{ChainHead, Keeper};
use crate::check::Depth;
use crate::mark::{Mark, Marked};
use crate::reserve::Reserve;
use crate::{JournalError, check, commit, lock, repair, restore, schema};

/// How long to wait for another program's transaction.
pub(crate) const BUSY: Duration = Duration::from_secs(5);
/// Statements that are kept ready.
const STATEMENTS: usize = 64;

/// The journal of one cluster. While it lives, no other process can open the same one.
#[derive(Debug)]
pub struct Journal {
    pub(crate) connection: Connection,
    /// The text of the job written last, and its row.
    last_text: Option<LastText>,
    /// What all commits amount to, and what keeps it while one is made.
    head: ChainHead,
    keeper: Keeper,
    mark: Mark,
    pub(crate) reserve: Option<Reserve>,
    depth: Depth,
    path: PathBuf,
    file: Option<FileIdentity>,
    _lock: FolderLock,
}

/// Which file a path leads to: that on the disk before it is another one than that on the disk after it was mounted again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileIdentity {
    device: u64,
    inode: u64,
}

impl FileIdentity {
    fn find(path: &Path) -> Option<Self> {
        let metadata = std::fs::metadata(path).ok()?;
        Some(Self { device: metadata.dev(), inode: metadata.ino() })
    }
}

#[derive(Debug, Clone)]
pub(crate) struct LastText {
    pub(crate) text: Arc<str>,
    pub(crate) id: i64,
}

/// How the file is used. Durability is guaranteed for the default only.
#[derive(Debug, Clone)]
pub struct JournalOptions {
    /// The SQLite file layer of this name instead of the system's. For tests.
    pub file_layer: Option<String>,
    pub synchronous: Synchronous,
    /// The write-ahead log goes into the main file after this many pages of 4 KiB.
    pub checkpoint_pages: u32,
    /// A journal up to this size is read as a whole before it is opened, a larger one while it is used
    /// ([`Journal::is_examined`]).
    pub examined_bytes: u64,
}

impl Default for JournalOptions {
    fn default() -> Self {
        Self {
            file_layer: None,
            synchronous: Synchronous::Full,
            checkpoint_pages: 2_000,
            examined_bytes: 256 << 20,
        }
    }
}

/// When to wait for the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Synchronous {
    /// In every commit.
    Full,
    /// Only before the log goes into the main file: a power cut loses commits. For comparison.
    Normal,
    /// Never: a power cut can destroy the file. For comparison.
    Off,
}

impl Journal {
    /// Opens the journal at `path`, or makes one. Its folder must exist.
    pub fn open(path: &Path) -> Result<Self, JournalError> {
        Self::open_with(path, &JournalOptions::default())
    }

    pub fn open_with(path: &Path, options: &JournalOptions) -> Result<Self, JournalError> {
        let lock = lock::take(path)?;
        let marked = check::read_mark(path)?;
        let mut connection = connect(path, options).map_err(JournalError::opening(path))?;
        schema::refuse_others(&connection, path)?;
        let before = schema::format_of(&connection, path)?;
        // Before anything is written: a file that was emptied stays empty.
        let size = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
        let depth = match size <= options.examined_bytes || suspicion(path).exists() {
            true => Depth::Whole,
            false => Depth::Quick,
        };
        refuse_hurt(&connection, path, before, &marked, depth)?;
        if depth == Depth::Whole {
            // What was suspected has been put right.
            let _ = std::fs::remove_file(suspicion(path));
        }
        configure(&connection, options).map_err(JournalError::opening(path))?;
        schema::prepare(&mut connection, path)?;
        // A step of the schema changes rows.
        let known = match before == schema::FORMAT {
            true => ChainHead::load(&connection).map_err(JournalError::reading("the chain"))?,
            false => None,
        };
        let head = known.map_or_else(|| repair::begin_chain(&connection), Ok)?;
        let keeper = Keeper::attach(&connection, head.sums).map_err(JournalError::opening(path))?;
        let folder = |source| JournalError::Folder { path: path.to_owned(), source };
        let mark = Mark::open(path).map_err(folder)?;
        mark.begin(&head).map_err(folder)?;
        make_entry_durable(path)?;
        let file = FileIdentity::find(path);
        let path = path.to_owned();
        Ok(Self {
            connection,
            last_text: None,
            head,
            keeper,
            mark,
            reserve: None,
            depth,
            path,
            file,
            _lock: lock,
        })
    }

    /// The error where another file is in the place of the one that is open. What is written to that one is lost, so nothing is gained
    /// by trying again; while nothing is there, a disk may be about to be mounted.
    pub(crate) fn find_replacement(&self) -> Option<JournalError> {
        let there = FileIdentity::find(&self.path)?;
        (self.file? != there).then(|| JournalError::Replaced { path: self.path.clone() })
    }

    /// Returns once all records are on disk, or none of them ever will be.
    pub fn commit(&mut self, records: &[Record]) -> Result<(), JournalError> {
        if records.is_empty() {
            return Ok(());
        }
        let mut last_text = self.last_text.clone();
        let newest = records.iter().filter_map(|record| match record {
            Record::Submitted(row) => Some(row.id.0),
            _ => None,
        });
        let jobs = newest.max().unwrap_or_default();
        self.change(records.len() as u64, jobs, |transaction| {
            commit::write(transaction, records, &mut last_text)
        })?;
        self.last_text = last_text;
        Ok(())
    }

    /// One transaction, and with it one link of the chain.
    pub(crate) fn change<T>(
        &mut self,
        records: u64,
        jobs: u64,
        work: impl FnOnce(&Connection) -> Result<T, JournalError>,
    ) -> Result<T, JournalError> {
        let (keeper, head) = (&self.keeper, &self.head);
        let attempt = || {
            let behavior = TransactionBehavior::Immediate;
            let transaction =
                self.connection.transaction_with_behavior(behavior).map_err(JournalError::writing)?;
            let done = work(&transaction)?;
            let next = head.next(records, clock::unix_ms(), jobs, keeper.sums());
            next.store(&transaction).map_err(JournalError::writing)?;
            transaction.commit().map_err(JournalError::writing)?;
            Ok((done, next))
        };
        match attempt() {
            Ok((done, next)) => {
                // A mark that stays behind proves less, and harms nothing.
                let _ = self.mark.write(&next);
                self.head = next;
                Ok(done)
            }
            Err(error) => {
                keeper.reset(head.sums);
                Err(error)
            }
        }
    }

    /// Whether all of it was read before it was opened. Otherwise [`check`](crate::check) is to be called soon, and what that finds noted by
    /// [`suspect`](crate::suspect), so that the journal is not opened again as it is.
    pub fn is_examined(&self) -> bool {
        self.depth == Depth::Whole
    }

    pub(crate) fn forget_last_text(&mut self) {
        self.last_text = None;
    }

    /// How these jobs ended, of those that have.
    pub fn ended(&self, jobs: &[JobId]) -> Result<Vec<EndedRow>, JournalError> {
        restore::ended_jobs(&self.connection, jobs).map_err(JournalError::reading("the jobs that ended"))
    }

    /// What all committed records amount to; [`Restored::awaited`] is left to the caller.
    pub fn restore(&mut self) -> Result<Restored, JournalError> {
        restore::restore(&self.connection)
    }
}

/// From now on the journal is read as a whole before it is opened, whatever its size.
pub fn suspect(path: &Path) -> std::io::Result<()> {
    std::fs::write(suspicion(path), "")
}

pub(crate) fn suspicion(path: &Path) -> PathBuf {
    path.with_extension("suspect")
}

/// What is not what was written must not be built on.
fn refuse_hurt(
    connection: &Connection,
    path: &Path,
    format: u32,
    marked: &Marked,
    depth: Depth,
) -> Result<(), JournalError> {
    let has_begun = format >= schema::FIRST_WITH_CHAIN && ChainHead::has_begun(connection).unwrap_or(true);
    if !has_begun && matches!(marked, Marked::Nothing) {
        return Ok(());
    }
    let examined = match format {
        0 => check::empty(marked),
        _ => check::examine(connection, marked, depth),
    };
    if examined.is_whole() {
        return Ok(());
    }
    let damage: Vec<String> = examined.damage.iter().map(ToString::to_string).collect();
    Err(JournalError::Hurt { path: path.to_owned(), damage: damage.join("; ") })
}

fn connect(path: &Path, options: &JournalOptions) -> rusqlite::Result<Connection> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    match &options.file_layer {
        Some(layer) => Connection::open_with_flags_and_vfs(path, flags, layer.as_str()),
        None => Connection::open_with_flags(path, flags),
    }
}

fn configure(connection: &Connection, options: &JournalOptions) -> rusqlite::Result<()> {
    connection.busy_timeout(BUSY)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    connection.pragma_update_and_check(None, "journal_mode", "wal", |row| {
        let mode: String = row.get(0)?;
        // A file system without shared memory, such as some network ones, keeps the old mode.
        if mode == "wal" { Ok(()) } else { Err(rusqlite::Error::InvalidParameterName(mode)) }
    })?;
    let synchronous = match options.synchronous {
        Synchronous::Full => "FULL",
        Synchronous::Normal => "NORMAL",
        Synchronous::Off => "OFF",
    };
    connection.pragma_update(None, "synchronous", synchronous)?;
    connection.pragma_update(None, "foreign_keys", true)?;
    connection.pragma_update(None, "wal_autocheckpoint", options.checkpoint_pages)?;
    connection.pragma_update(None, "cache_size", -32_000)
}

/// SQLite syncs the folder for its log, but not for the main file that it has just made.
fn make_entry_durable(path: &Path) -> Result<(), JournalError> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    sync_folder(folder).map_err(|source| JournalError::Folder { path: path.to_owned(), source })
}
