//! What the control plane has decided, on disk.
//!
//! [`Journal`] keeps the records of `bedplate_control` in one SQLite file: a commit has reached the disk when it
//! returns, and [`restore`](Journal::restore) gives back what all records amount to.
//! [`Writer`] is the thread that commits for a daemon, many batches with one wait for the disk. [`Reader`] answers
//! questions about history and usage without ever blocking the writer.
//!
//! What the records mean is not known here. `tests/power_cut.rs` shows what survives a power cut at any instant.
//!
//! ```
//! use bedplate_control::record::{Note, Record};
//! use bedplate_journal::{Journal, Reader, NoteSubject};
//!
//! let folder = std::env::temp_dir().join(format!("journal-example-{}", std::process::id()));
//! std::fs::create_dir_all(&folder)?;
//! let path = folder.join("journal.sqlite");
//!
//! let mut journal = Journal::open(&path)?;
//! let text = "the fan is loud".to_owned();
//! journal.commit(&[Record::Note(Note { at_ms: 1, job: None, node: Some("n1".into()), text })])?;
//!
//! let notes = Reader::open(&path)?.notes(NoteSubject::Node("n1"), 10)?;
//! assert_eq!(notes[0].text, "the fan is loud");
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod backup;
mod chain;
mod check;
mod commit;
mod error;
mod histogram;
mod history;
mod journal;
mod lock;
mod mark;
mod prune;
mod repair;
mod reserve;
mod restore;
mod rows;
mod schema;
mod tokens;
mod usage;
mod writer;

pub use backup::{BackupRules, back_up, backups, keep_backups, restore_from};
pub use check::{Damage, JournalCheck, age_of, check};
pub use error::{JournalError, PAGES};
pub use histogram::CommitHistogram;
pub use history::{JobFilter, NoteSubject, Reader};
pub use journal::{Journal, JournalOptions, Synchronous, suspect};
pub use prune::Pruned;
pub use repair::{Repaired, repair};
pub use reserve::make_room;
pub use schema::FORMAT;
pub use tokens::{NewToken, Token, TokenHash};
pub use usage::{UsageBy, UsageFilter, UsageRow};
pub use writer::{DiskHealth, OnDurable, Statistics, Writer};
