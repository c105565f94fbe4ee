//! What ranks do together, on every transport: shared memory, TCP, and hosts with several ranks.

#![expect(clippy::unwrap_used, reason = "a rank that gets an error fails the test")]
#![expect(clippy::print_stdout, reason = "ranks speak to the test by their output")]

mod calls;
mod disagreement;
mod fixture;
mod flight;
mod hosts;
mod leaving;
mod loss;
mod meeting;
mod order;
mod process;
mod rebuilding;
mod rebuilding_loss;
mod reference;
mod relay;
mod started;
mod threads;
