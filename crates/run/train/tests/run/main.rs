//! Whole runs on a corpus of our own making.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod place;
mod resume;
mod runs;
