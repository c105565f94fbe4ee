//! What a diagnosis needs, gathered from files.
//!
//! People bring what they have: the log of one rank, a folder with the logs of a thousand, kernel logs, dumps of
//! PyTorch's flight recorder, compressed or not, with files in between that are none of these. [`gather`] reads all of it in
//! bounded memory and says what it left out. Nothing in such a folder is trusted: only regular files are opened, links
//! are not followed out of it, and no file is unpacked without end. What it means is decided by `diagnose`.

mod error;
mod file;
mod folder;
mod live;

pub use error::{EvidenceError, PAGES};
pub use folder::{Gathered, gather};
pub use live::{RAS_ADDRESS, ask_ras, stack_of};
