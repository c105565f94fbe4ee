//! The crate as its users see it: one program, because each one costs a link.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod errors;
mod hostile;
mod import;
mod queries;
mod round_trip;
mod support;
