//! The request scheduler of one serving replica, and the router over replicas.
//!
//! A [`Scheduler`] decides what each engine step holds: continuous batching under a token budget, prompts in
//! chunks, KV in blocks, prefixes shared through a radix tree, preemption, tenants, priorities and deadlines. A
//! [`Router`] decides which replica a request goes to: to the one that has its prefix, unless that one has too much
//! to do. Both are pure: the caller says what time it is and runs the step, on a GPU or in virtual time. Every
//! decision carries its reason as data.
//!
//! ```
//! use bedplate_batching::{Request, Scheduler, SchedulerOptions};
//!
//! let mut replica = Scheduler::new(SchedulerOptions::default()).expect("the default settings are sound");
//! replica.submit(Request::new(1, 1000, 3), 0).expect("it fits");
//! let step = replica.step(0, 1);
//! assert_eq!(step.shape.prefill_tokens, 1000);
//! assert_eq!(step.admitted[0].reason.to_string(), "its turn, 0 tokens cached");
//! assert_eq!(replica.complete(1).started.len(), 1);
//! // Two tokens are left; nothing else happens, so both steps are planned as one.
//! let step = replica.step(0, 100);
//! assert_eq!((step.shape.decodes, step.repeats), (1, 2));
//! assert_eq!(replica.complete(2).finished.len(), 1);
//! ```

mod admit;
mod blocks;
mod cache;
mod complete;
mod growth;
mod index;
mod keys;
mod mirror;
mod options;
mod plan;
mod preempt;
mod prefix;
mod prefix_index;
mod queue;
mod reason;
mod request;
mod router;
mod runs;
mod scheduler;
mod sequence;
mod step;

#[cfg(test)]
mod audit;

pub use bedplate_breakdown::StepShape;
pub use blocks::{BlockId, BlockList, CountedBlocks};
pub use cache::Occupancy;
pub use keys::{BlockKey, BlockKeys};
pub use mirror::PrefixMirror;
pub use options::{Fairness, LatePolicy, OptionsFlaw, PreemptionMode, PrefillMode, SchedulerOptions};
pub use prefix::Evicted;
pub use prefix_index::PrefixIndex;
pub use reason::{Admission, AdmitReason, Drop, PreemptReason, Preemption, RequestRefusal, Wait, WaitReason};
pub use request::{Request, RequestId, SequenceId, SequenceStart, TenantId};
pub use router::{ReplicaCandidate, Route, RouteReason, Router, RouterOptions, RoutingPolicy};
pub use scheduler::{Load, Scheduler};
pub use step::{Completion, PromptChunk, SequenceProgress, Step, SwapOut};
