//! The host's plain facts and small tools, each written once: files replaced durably, files of strangers read with bounds, locks on folders, clocks, memory of
//! processes, shared libraries, threads that log for their callers, work taken in turns, and what a panic says.
//!
//! Everything above that touches a machine uses these, so that a file is never half written, a clock never jumps and a panic
//! never vanishes in one crate while another gets it right. This crate knows nothing of jobs, models or clusters.
//!
//! ```
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("state.json");
//! bedplate_host::replace_file(&path, b"{}")?;
//! assert_eq!(std::fs::read(&path)?, b"{}");
//! # Ok::<(), std::io::Error>(())
//! ```

pub mod clock;
mod library;
mod lock;
pub mod memory;
mod name;
mod own_folder;
pub mod panics;
mod regular;
mod replace;
mod systemd;
mod threads;
mod turns;

pub use library::Library;
pub use lock::{FolderLock, LockError};
pub use name::host_name;
pub use own_folder::OwnFolder;
pub use regular::{
    LinkPolicy, Opening, open_regular, open_regular_for, read_beginning, read_regular, read_regular_text,
    read_whole,
};
pub use replace::{Replacement, replace_file, replace_private_file, sync_folder};
pub use systemd::tell_systemd;
pub use threads::spawn_within;
pub use turns::FairQueue;
