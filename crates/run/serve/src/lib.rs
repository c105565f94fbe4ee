//! Answers from a model: the request scheduler over a network with paged keys and values.
//!
//! A [`Replica`] takes an [`Ask`] and gives an [`Answer`], which tells tokens as they are sampled. The engine behind it is one thread that
//! runs `schedule/batching`, the scheduler that `replay` simulates, over the operators of a device: it plans a step, computes its rows, samples
//! tokens and tells them. Text is the callers': prompts come as tokens and answers go as tokens.

mod answer;
mod ask;
mod compose;
mod core;
mod draft;
mod engine;
mod error;
mod events;
mod free_memory;
mod keys;
mod live;
mod model;
mod options;
mod replica;
mod sampler;
mod sampling;
mod speculate;
mod spill;
mod transfer;
mod worker_group;

pub use self::core::StepRecord;
pub use answer::{Answer, EndReason, Ender, Logprobs, SampleEvent, Teller};
pub use ask::{Ask, Continuation, Grammar, Parser, Wants};
pub use engine::{AdapterFolder, Engine, EngineMemory, check_memory, follow};
pub use error::{PAGES, ServeError};
pub use free_memory::{FreeMemory, free_memory};
pub use model::Model;
pub use options::{Activations, EngineOptions};
pub use replica::{About, EngineState, Refusal, Replica};
pub use sampling::Sampling;
pub use transfer::{Disaggregated, KvKind, KvServer, Secret, WorkerFlaw};
pub use worker_group::WorkerGroup;
