//! Checkpoints: the state of a job, written in parts while training goes on, checked, and read by any layout.
//!
//! The **state** of a job is a set of tensors by name, in f32: `weights/NAME` for every trained tensor, and its moments
//! `first/NAME` and `second/NAME`. Each is a whole, whatever the layout; a rank *holds* [`Region`]s of them. Every region of the state
//! is given by exactly one rank, which is the caller's business; publishing refuses parts that do not cover the state, or cover
//! some of it twice.
//!
//! **Saving.** One rank [begins](Checkpoints::begin) an [`Attempt`] and tells the others its text. Each rank starts a [`Saving`] of what it
//! [holds](Held). [`Saving::advance`] copies as much of the live state as fits into a small pool of buffers and never waits; the trainer calls
//! it between blocks of the forward and backward passes. Before the optimizer changes anything it calls [`Saving::complete`], which waits
//! until all has been copied: the snapshot is exact, and there is no second copy of the state. Threads empty the pool meanwhile and
//! afterwards, past the page cache, and compute a CRC32C of every chunk. [`Saving::finished`] gives the [`PartEntry`], a small text. The
//! caller gathers those of all ranks, and one rank [publishes](Checkpoints::publish) them: the manifest is written last, so a
//! checkpoint exists whole or not at all.
//!
//! **Loading.** [`Checkpoint::load`] intersects the regions that a rank [wants](Wanted) with those that are stored, reads the chunks that hold
//! them and checks each. Which layout wrote the checkpoint does not matter.
//!
//! A [`Store`] is a directory or a prefix of a bucket (`s3://bucket/prefix`). In a directory the parts are written to `unfinished-…`,
//! which is renamed; in a bucket each attempt has keys of its own and nothing depends on conditional requests.
//!
//! This crate does not know collectives, devices, optimizers or steps.

mod buffer;
mod checkpoint;
mod chunks;
mod convert;
mod error;
mod facts;
mod history;
mod loading;
mod look;
mod manifest;
mod part;
mod saving;
mod storage;

pub use bedplate_network::Region;
pub use checkpoint::Checkpoint;
pub use convert::{FolderKind, Shards, from_hugging_face, from_old, to_hugging_face};
pub use error::{CheckpointError, PAGES, is_permanent};
pub use facts::RunFacts;
pub use history::{Checkpoints, Keep, Listed, Published};
pub use loading::WantedPart;
pub use look::Look;
pub use manifest::Manifest;
pub use part::PartEntry;
pub use saving::{HeldPart, Saving, SavingOptions};
pub use storage::{Attempt, Store};
