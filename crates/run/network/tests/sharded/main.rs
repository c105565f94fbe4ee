//! A network cut into stages, blocks and ranks' parts computes what the whole network does.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod batch;
mod edges;
mod ranks;
mod stages;
mod world;
