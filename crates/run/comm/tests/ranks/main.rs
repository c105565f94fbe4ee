//! What ranks do together, on every transport: shared memory, TCP, and hosts with several ranks.

#![expect(clippy::unwrap_used, reason = "a rank that gets an error fails the test")]

mod calls;
mod fixture;
mod reference;
