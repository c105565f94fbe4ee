//! Deployments by behaviour: what is found, what is refused, and agreement of estimate, closed loop and replay.

mod agreement;
mod engines;
mod exhaustive;
mod expecting;
mod launching;
mod post_training;
mod refusals;
mod searching;
mod support;
#[path = "../training/table.rs"]
mod table;
