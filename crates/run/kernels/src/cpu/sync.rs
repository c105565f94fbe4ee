//! What the thread pool synchronises by; its test of interleavings puts a scheduler of its own in this place.

pub(super) use std::hint::spin_loop;
pub(super) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
pub(super) use std::sync::{Arc, Mutex};
pub(super) use std::thread::{self, JoinHandle, Thread};

/// How often an idle worker looks before it sleeps: some 20 microseconds.
pub(super) const LOOKS: u32 = 4_000;
