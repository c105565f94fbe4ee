//! What can go wrong with checkpoints.

use std::io;

use bedplate_diag::{Diagnostic, Page, pages};
use bedplate_network::NetworkError;

#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error("the checkpoint {place} is not good: {what}")]
    Damaged { place: String, what: String },
    #[error("the checkpoint {place} has the format of an earlier release")]
    Old { place: String },
    #[error("the checkpoint {place} is of another run: {what}")]
    Foreign { place: String, what: String },
    #[error("there is no checkpoint in {place}")]
    Nothing { place: String },
    #[error("cannot read the checkpoint {place}")]
    Read { place: String, source: io::Error },
    #[error("cannot write the checkpoint {place}")]
    Write { place: String, source: io::Error },
    #[error("the parts of the checkpoint {place} do not make up a state: {what}")]
    Incomplete { place: String, what: String },
    #[error("`{address}` is not a place for checkpoints: {what}")]
    Address { address: String, what: String },
    #[error("the checkpoint {place} cannot be converted: {what}")]
    Unconvertible { place: String, what: String },
    #[error(transparent)]
    Network(#[from] NetworkError),
}

impl CheckpointError {
    /// Why this checkpoint cannot be used, where another one may be good; otherwise the error itself.
    pub(crate) fn into_flaw(self) -> Result<String, Self> {
        match self {
            CheckpointError::Damaged { what, .. } => Ok(what),
            CheckpointError::Old { .. } => Ok("it has the format of an earlier release".to_owned()),
            error => Err(error),
        }
    }

    /// What is missing or broken is a flaw of the checkpoint; anything else may pass, so nothing may be concluded from it.
    pub(crate) fn reading(place: &str, file: &str, source: io::Error) -> Self {
        const BROKEN_SECTOR: i32 = 5;
        let damaged = |what| CheckpointError::Damaged { place: place.to_owned(), what };
        match source.kind() {
            io::ErrorKind::NotFound => damaged(format!("{file} is missing")),
            io::ErrorKind::InvalidInput | io::ErrorKind::IsADirectory => {
                damaged(format!("{file} is not a file"))
            }
            io::ErrorKind::UnexpectedEof => damaged(format!("{file} is too short")),
            io::ErrorKind::FileTooLarge => damaged(format!("{file} is far too large")),
            _ if source.raw_os_error() == Some(BROKEN_SECTOR) => {
                damaged(format!("{file} cannot be read: {source}"))
            }
            _ => CheckpointError::Read { place: place.to_owned(), source },
        }
    }
}

/// Whether trying again without changing anything must fail the same way.
pub fn is_permanent(source: &io::Error) -> bool {
    use io::ErrorKind::*;
    matches!(
        source.kind(),
        NotADirectory
            | IsADirectory
            | AlreadyExists
            | PermissionDenied
            | ReadOnlyFilesystem
            | InvalidFilename
            | InvalidInput
    )
}

pages! { pub PAGES "checkpoint":
    DAMAGED "damaged" User
        "A checkpoint's manifest lists its files with their sizes and the checksum of every chunk. A file is missing, was cut off or has changed since it was written, so a run would go on from wrong numbers. `--resume` without a name uses the newest good checkpoint; this message means that the named one, or every one, is damaged."
        "resume from another checkpoint with `--resume PATH`, or copy this one again from where it is whole"
    OLD "old-format" User
        "The checkpoint was written by an earlier release, in one file and without regions."
        "rewrite it with `bedplate checkpoint convert OLD NEW`, then resume from NEW"
    FOREIGN "other-run" User
        "The tensors in the checkpoint belong to another model or to other adapters: their names or sizes differ."
        "use the configuration that the checkpoint was made with, or start from its weights with `model.weights`"
    NOTHING "nothing-there" User
        "The folder or the prefix of the bucket has no finished checkpoint."
        "check the path; `bedplate checkpoint show FOLDER` lists what is there"
    READ "cannot-read" Transient
        "A file or folder of checkpoints could not be read, or the object store did not answer."
        "check that the file system or the object store is there, then try again"
    UNREADABLE "unreadable" User
        "A file, folder or bucket of checkpoints exists, but this user may not read it, or it is not what it should be."
        "check the owner and the permissions, or the credentials in the AWS_… variables"
    WRITE "cannot-write" Transient
        "A checkpoint could not be written. Its files were removed; checkpoints that were finished before are whole."
        "free space or fix the connection, then go on with `--resume`"
    UNWRITABLE "unwritable" User
        "Checkpoints cannot be written there at all: something that is not a folder is in the way, or this user may not write."
        "give another place for checkpoints, or change what is there"
    INCOMPLETE "incomplete" Bug
        "The parts that the ranks wrote leave out some of the state, or hold some of it twice. The checkpoint was not published."
        "report this with the layout of the run"
    ADDRESS "bad-address" User
        "Checkpoints are in a folder or under an address such as `s3://bucket/prefix`."
        "give a path or `s3://bucket/prefix`; the endpoint and credentials come from the AWS_… variables"
    UNCONVERTIBLE "cannot-convert" User
        "Weights are written for other tools under the names and shapes of the model's configuration, which the checkpoint carries; adapters alone are not a model."
        "for adapters use the `adapter` folder of the finished run"
}

impl Diagnostic for CheckpointError {
    fn page(&self) -> &'static Page {
        match self {
            CheckpointError::Damaged { .. } => &DAMAGED,
            CheckpointError::Old { .. } => &OLD,
            CheckpointError::Foreign { .. } => &FOREIGN,
            CheckpointError::Nothing { .. } => &NOTHING,
            CheckpointError::Read { source, .. } if is_permanent(source) => &UNREADABLE,
            CheckpointError::Read { .. } => &READ,
            CheckpointError::Write { source, .. } if is_permanent(source) => &UNWRITABLE,
            CheckpointError::Write { .. } => &WRITE,
            CheckpointError::Incomplete { .. } => &INCOMPLETE,
            CheckpointError::Address { .. } => &ADDRESS,
            CheckpointError::Unconvertible { .. } => &UNCONVERTIBLE,
            CheckpointError::Network(error) => error.page(),
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            CheckpointError::Network(error) => error.help(),
            _ => None,
        }
    }
}
