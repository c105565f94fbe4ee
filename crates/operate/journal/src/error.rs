//! What can go wrong with the journal, and the pages that explain it.

use std::path::{Path, PathBuf};

use bedplate_diag::{Diagnostic, Page, pages};
use rusqlite::ErrorCode;

#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("cannot open the journal {}", .path.display())]
    Open { path: PathBuf, source: rusqlite::Error },
    #[error("cannot use the folder of the journal {}", .path.display())]
    Folder { path: PathBuf, source: std::io::Error },
    #[error("the journal {} is in use{}", .path.display(), by(.pid))]
    InUse { path: PathBuf, pid: Option<u32> },
    #[error("{} is a SQLite database, but not a journal", .path.display())]
    NotAJournal { path: PathBuf },
    #[error("the journal {} has format {found}; this program knows formats up to {known}", .path.display())]
    Newer { path: PathBuf, found: u32, known: u32 },
    #[error("the journal {} has format {found}; only the daemon brings it to format {known}", .path.display())]
    Older { path: PathBuf, found: u32, known: u32 },
    #[error("the journal {} is hurt: {damage}", .path.display())]
    Hurt { path: PathBuf, damage: String },
    #[error("there is a journal already: {}", .path.display())]
    There { path: PathBuf },
    #[error("no back-up is made in {}: {free} bytes are free, {needed} are needed", .path.display())]
    NoRoom { path: PathBuf, free: u64, needed: u64 },
    #[error("cannot bring the journal {} to format {to}", .path.display())]
    Migrate { path: PathBuf, to: u32, source: rusqlite::Error },
    #[error("cannot write to the journal")]
    Write { source: rusqlite::Error },
    #[error("a record is about job {job}, which was never submitted")]
    UnknownJob { job: u64 },
    #[error("cannot read {what} from the journal")]
    Read { what: &'static str, source: rusqlite::Error },
    #[error("another file is in the place of the journal {} that is open", .path.display())]
    Replaced { path: PathBuf },
    #[error("the journal's writer has stopped")]
    Stopped,
}

fn by(pid: &Option<u32>) -> String {
    pid.map_or_else(String::new, |pid| format!(" by process {pid}"))
}

impl JournalError {
    /// The same records may be written once the disk has room or works again. Every other error is permanent: a
    /// flaw of the records or of the file.
    pub fn is_passing(&self) -> bool {
        let JournalError::Write { source } = self else { return false };
        matches!(
            source.sqlite_error_code(),
            Some(
                ErrorCode::DiskFull
                    | ErrorCode::SystemIoFailure
                    | ErrorCode::CannotOpen
                    | ErrorCode::ReadOnly
                    | ErrorCode::DatabaseBusy
                    | ErrorCode::DatabaseLocked
                    | ErrorCode::OutOfMemory
            )
        )
    }

    /// The disk has no room.
    pub fn is_full(&self) -> bool {
        std::ptr::eq(self.page(), &FULL)
    }

    pub(crate) fn reading(what: &'static str) -> impl FnOnce(rusqlite::Error) -> Self {
        move |source| JournalError::Read { what, source }
    }

    pub(crate) fn opening(path: &Path) -> impl FnOnce(rusqlite::Error) -> Self {
        move |source| JournalError::Open { path: path.to_owned(), source }
    }

    pub(crate) fn writing(source: rusqlite::Error) -> Self {
        JournalError::Write { source }
    }
}

pages! { pub PAGES "journal":
    OPEN "cannot-open" User
        "The file of the journal cannot be opened or created, or it is damaged. The journal holds all jobs and their history in one SQLite file."
        "check that the folder exists, may be written by this user and has room"
    IN_USE "in-use" User
        "Another daemon has this journal open. Two of them would each believe that the cluster is theirs."
        "stop the other daemon with `bedplate down`, or give this one its own folder"
    NOT_A_JOURNAL "not-a-journal" User
        "The file is a database of some other program. It is left as it is."
        "name another path for the journal"
    NEWER "newer" User
        "The journal was written by a later release, with a format that this one does not know. Opening it could lose what it cannot see."
        "use the release that wrote the journal, or a later one"
    OLDER "older" User
        "The journal has the format of an earlier release, and it was opened only to be read. The daemon brings it to the current format when it starts."
        "start the daemon of this release once"
    HURT "hurt" User
        "The journal is not what the daemon wrote: it was emptied, cut, altered or replaced by an older copy. Going on from it could run jobs twice or forget them, so the daemon does not start."
        "put the right file back if you have it; else `bedplate journal repair` goes on from what is left or from the newest back-up, tells what is lost and keeps the hurt files"
    THERE "exists" User
        "A back-up is brought up in a state directory without a journal, because the one that is there would be lost."
        "name another directory with `--state-dir DIR`, or move the journal away"
    NO_ROOM "backup-room" Transient
        "A back-up would leave too little room for the journal itself on the disk of the state directory."
        "make room, or back up elsewhere with `bedplate journal backup DIR`"
    MIGRATION "migration" Bug
        "A step that brings the journal to a newer format has failed. The step was undone as a whole, and the journal is as it was."
        "keep the file, go back to the former release and report this"
    FULL "disk-full" Transient
        "The disk has no room for the journal. Nothing that was not written has been acknowledged, and the write is tried again."
        "make room on the disk of the journal"
    READ_ONLY "read-only" Transient
        "The file system of the journal, or its file, may only be read: a kernel that found errors on a disk mounts it so. Nothing that was not written has been acknowledged, and the write is tried again. Where the repaired disk, or a copy, is mounted in the place of the old one, the daemon ends and is started again with what is there."
        "look at the kernel's log for errors of the disk, repair and mount it for writing, or check who owns the file"
    REPLACED "replaced" Transient
        "A write failed, and the journal's path no longer leads to the file that the daemon has open: a repaired disk was mounted there, or another file was put in its place. Nothing that was not written has been acknowledged."
        "start the daemon again, which its supervisor does by itself; it continues from what the file there holds"
    DISK "disk" Transient
        "The disk or file system refused to read or write. Nothing that was not written has been acknowledged, and the write is tried again."
        "look at the kernel's log and at the health of the disk; copy the journal elsewhere"
    BUSY "busy" Transient
        "Another program holds the journal's database for longer than we wait, for example an SQL shell with an open transaction."
        "end the other program's transaction; read with `sqlite3 -readonly`"
    WRITE "write" Bug
        "The database refused a record for a reason that will not pass: a value out of range or a broken rule of the schema. Nothing of its batch is kept."
        "report this with the daemon's log; a restart continues from what the journal holds"
    UNKNOWN_JOB "unknown-job" Bug
        "A change was recorded for a job that the journal does not have. Nothing of its batch is kept."
        "report this with the daemon's log; a restart continues from what the journal holds"
    READ "read" Transient
        "A question to the journal could not be answered."
        "try again; if it persists, check the file with `sqlite3 FILE 'PRAGMA integrity_check'`"
    STOPPED "stopped" Transient
        "The thread that writes the journal has ended, because the daemon is shutting down or because a batch could never be written. What it had not acknowledged is not on disk."
        "start the daemon again; it continues from what the journal holds"
}

impl Diagnostic for JournalError {
    fn page(&self) -> &'static Page {
        match self {
            JournalError::Open { source, .. } => match source.sqlite_error_code() {
                Some(ErrorCode::DiskFull) => &FULL,
                Some(ErrorCode::ReadOnly) => &READ_ONLY,
                _ => &OPEN,
            },
            JournalError::Folder { source, .. } => match source.kind() {
                std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => &FULL,
                std::io::ErrorKind::ReadOnlyFilesystem => &READ_ONLY,
                _ => &OPEN,
            },
            JournalError::InUse { .. } => &IN_USE,
            JournalError::NotAJournal { .. } => &NOT_A_JOURNAL,
            JournalError::Newer { .. } => &NEWER,
            JournalError::Older { .. } => &OLDER,
            JournalError::Hurt { .. } => &HURT,
            JournalError::There { .. } => &THERE,
            JournalError::Replaced { .. } => &REPLACED,
            JournalError::NoRoom { .. } => &NO_ROOM,
            JournalError::Migrate { .. } => &MIGRATION,
            JournalError::Write { source } => write_page(source),
            JournalError::UnknownJob { .. } => &UNKNOWN_JOB,
            JournalError::Read { .. } => &READ,
            JournalError::Stopped => &STOPPED,
        }
    }
}

fn write_page(source: &rusqlite::Error) -> &'static Page {
    match source.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => &FULL,
        Some(ErrorCode::ReadOnly) => &READ_ONLY,
        Some(ErrorCode::SystemIoFailure | ErrorCode::CannotOpen) => &DISK,
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::OutOfMemory) => &BUSY,
        _ => &WRITE,
    }
}
