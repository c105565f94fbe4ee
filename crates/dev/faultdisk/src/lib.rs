//! A disk for SQLite that remembers, fails on demand, and can lose power.
//!
//! A [`Disk`] is a SQLite file layer on top of the system's. Everything that the database does to its files is
//! carried out and logged. From that log, [`Disk::after_power_cut`] makes the files as a real disk could have left
//! them at any instant: everything synced is there; each later write is there, missing or partly there, sector by
//! sector; files created or deleted since their folder was synced are there or not. A seed decides which of these
//! happens.
//!
//! Like SQLite, this assumes that a torn write leaves bytes outside its range alone. For a failed sync the worst is
//! assumed: a later sync does not make its data durable.
//!
//! The shared-memory file of the write-ahead log is not logged: SQLite rebuilds it after a crash.

mod disk;
mod draw;
mod layer;
mod log;

pub use disk::{Disk, Fault, Files};
pub use draw::Draw;
