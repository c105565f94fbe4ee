//! What NCCL really did, from logs written with `NCCL_DEBUG=INFO`.
//!
//! [`LogReader`] takes lines one at a time, of any number of ranks and files, and keeps counts: logs of large jobs have
//! gigabytes. [`NcclLog`] tells which transports carried the traffic, over how many channels, by which algorithms;
//! [`judge_log`] names what NCCL fell back from, and why.

mod judge;
mod line;
mod log;

pub use judge::judge_log;
pub use log::{Algorithm, LogReader, NcclLog, NcclTransport, OfiPlugin, Plugin};
