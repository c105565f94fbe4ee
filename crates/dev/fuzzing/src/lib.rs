//! A fuzz target for every parser.
//!
//! A target takes any bytes and must not panic; where something was read, it is written and read again and
//! must be the same. `fuzz/` runs the targets under libFuzzer, which searches by coverage; the test of this
//! crate runs them on mutated seeds with an ordinary toolchain, so that CI does too.

mod diagnosis;
mod observe;
mod targets;

pub use targets::{TARGETS, Target};
