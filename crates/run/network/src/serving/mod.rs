//! A network that answers: rows of many sequences in one step, over keys and values in blocks.
//!
//! Training computes whole sequences and keeps what the way back needs. A step of serving computes a few new tokens of each of many
//! sequences, whose earlier keys and values lie in the blocks of a [`KvPool`]; weights never change, so they are [packed](PackedWeights) for
//! products once. The tables, the constants and the operators are those of training; a row's result does not depend on the rows beside it.

mod adapters;
mod latent;
mod mixture;
mod packed;
mod pass;
mod pool;
mod room;

pub use adapters::{Adapter, RowAdapters};
pub use packed::PackedWeights;
pub use pool::KvPool;
pub use room::{ServingRoom, ServingShape, StepRows};
