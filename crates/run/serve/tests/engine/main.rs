//! The engine against the slow and obvious: the whole text computed anew for each token, as training computes it.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod disaggregated;
mod ends;
mod faults;
mod fixture;
mod prompt;
mod ranks;
mod same;
mod samples;
mod shared;
