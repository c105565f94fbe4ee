//! Traces run through the schedulers in virtual time: what would have happened under other rules.
//!
//! [`jobs`] replays jobs through the scheduler of gangs, [`requests`] plays requests over serving replicas. Nothing here reads a file or a clock, and equal
//! inputs with equal seeds give equal results.

pub mod jobs;
pub mod requests;
