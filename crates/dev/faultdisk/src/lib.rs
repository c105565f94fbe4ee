//! A disk for SQLite that remembers, fails on demand, and can lose power.
//!
//! A [`Disk`] is a SQLite file layer on top of the system's. Whatever the database does to its files is done, and
//! written down. From that log, [`Disk::after_power_cut`] makes the files as a real disk could have left them at any
//! instant: all that was synced is there; each later write is there, or not, or in part, sector by sector; files that
//! were created or deleted since their folder was synced are there or not. Which of all this happens is drawn from a
//! seed.
//!
//! As SQLite does, this assumes that a torn write leaves bytes outside of its range alone. A sync that fails is
//! taken for the worst: what it should have brought to the disk is not made durable by a later one.
//!
//! The shared-memory file of the write-ahead log is not logged: SQLite makes it anew after a crash, whatever it holds.

mod disk;
mod draw;
mod layer;
mod log;

pub use disk::{Disk, Fault, Files};
pub use draw::Draw;
