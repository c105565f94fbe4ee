//! Traces run through the schedulers in virtual time: what would happen under other rules.
//!
//! [`jobs`] runs jobs through the gang scheduler, [`requests`] runs requests over serving replicas. Nothing here
//! reads a file or a clock, and equal inputs with equal seeds give equal results.

pub mod jobs;
pub mod requests;
mod timestamp;
