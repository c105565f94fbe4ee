//! Answers from a model: the request scheduler over a network with paged keys and values.
//!
//! A [`Replica`] takes an [`Ask`] and gives an [`Answer`], which tells tokens as they are drawn. The engine behind it is one thread that
//! runs `schedule/batching`, the scheduler that `replay` simulates, over the operators of a device: it plans a step, computes its rows, draws
//! tokens and tells them. Text is the callers': prompts come as tokens and answers go as tokens.

mod answer;
mod ask;
mod replica;
mod sampling;

pub use answer::{Answer, EndReason, Event, Logprobs, Teller};
pub use ask::{Ask, Continuation, Grammar, Parser, Wants};
pub use replica::{About, Refusal, Replica, State};
pub use sampling::Sampling;
