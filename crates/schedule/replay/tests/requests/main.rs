//! Replays of requests: held against a step-by-step reference, and by what they must keep true.

mod deployments;
mod exact;
mod laws;
mod reference;
mod traces;
