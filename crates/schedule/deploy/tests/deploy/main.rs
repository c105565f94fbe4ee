//! Deployments by behaviour: what is found, what is refused, and agreement of estimate, closed loop and replay.

mod adapted;
mod agreement;
mod apart;
mod engines;
mod exhaustive;
mod expecting;
mod launching;
mod pictured;
mod post_training;
mod recorded;
mod refusals;
mod searching;
mod support;
#[path = "../training/table.rs"]
mod table;
