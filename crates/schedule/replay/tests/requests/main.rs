//! Replays of requests: compared with a step-by-step reference, and their laws.

mod deployments;
mod exact;
mod laws;
mod reference;
mod traced;
mod traces;
