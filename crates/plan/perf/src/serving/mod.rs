//! Predicts serving: the time of an engine step for any mix of prompts and decodes, the room for a cache,
//! and the latencies of one replica under a constant number of users.
//!
//! A [`Deployment`] says what is served on what. A [`Replica`] made from it answers questions: [`Replica::step`] gives a
//! step by part, [`Replica::timer`] its seconds only, fast enough for a simulator, and [`Replica::memory`]
//! what fits. [`closed_loop`] simulates a replica under users who send a new request as soon as the last is answered.
//! Shared prefixes, routing and autoscaling belong to `schedule`.

mod adapters;
mod arrival;
mod closed_loop;
mod constants;
mod deployment;
mod engine;
mod experts;
mod formats;
mod images;
mod loading;
mod memory;
mod model;
mod pass;
mod pools;
mod replica;
mod site;
mod transfer;
mod wires;

pub use adapters::LoadedAdapters;
pub use arrival::{Arrival, PrefillDelay};
pub use bedplate_breakdown::StepShape;
pub use closed_loop::{ClosedLoop, Latency, LengthSpread, Prefixes, closed_loop};
pub use constants::ServingConstants;
pub use deployment::{Deployment, HostWork, Parallel, Speculation};
pub use engine::{Engine, EngineSettings, KvReserve, PrefillStyle};
pub use formats::{WeightFormat, WeightFormats};
pub use images::Images;
pub use loading::ColdStart;
pub use memory::{BLOCK_TOKENS, KvRoom, ServingMemory};
pub use model::{LinearAttention, ServedModel};
pub use pass::DecodeLine;
pub use pools::{Pools, disaggregated};
pub use replica::{Replica, StepTimer};
pub use site::{Adjustment, Site};
pub use transfer::KvLink;
