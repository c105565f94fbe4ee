//! Deployments by behaviour: what is found, what is refused, and that estimate, closed loop and replay agree.

mod agreement;
mod exhaustive;
mod launching;
mod post_training;
mod refusals;
mod searching;
mod support;
