//! The API over a made-up model.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod answers;
mod browser;
mod conformance;
mod fleet;
mod fuzz;
mod jobs;
mod page;
mod refusals;
mod router;
mod support;
