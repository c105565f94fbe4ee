//! The daemon over real sockets: its contract, those who misbehave, agents, watchers and failing disks.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod agents;
mod contract;
mod disk;
mod drivers;
mod encryption;
mod fuzz;
mod hostile;
mod metrics;
mod past;
mod security;
mod support;
mod watching;
