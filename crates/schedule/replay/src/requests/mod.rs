//! Replay of requests: traces or generated load over serving replicas in virtual time.
//!
//! The replicas run the scheduler and the router of `batching`, the same ones that an engine runs. How long a step
//! takes comes from a [`StepTime`]; everything else is decided here in whole picoseconds, so a seed gives the
//! same result everywhere. A stretch of decode-only steps is one event, exactly: see `stretch`.
//!
//! ```
//! use bedplate_replay::requests::{
//!     Arrivals, Fleet, GeneratedLoad, LinearEngine, Pool, Traffic, seconds, simulate,
//! };
//!
//! let engine = LinearEngine::default();
//! let load = GeneratedLoad {
//!     requests: 1000,
//!     arrivals: Arrivals::Poisson { per_second: 20.0 },
//!     ..GeneratedLoad::default()
//! };
//! let outcome = simulate(Traffic::Generated(load), &Fleet::aggregated(Pool::new(2, &engine)))?;
//! assert_eq!(outcome.finished, 1000);
//! assert!(seconds(outcome.ttft.p50) < 0.1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod engine;
mod error;
mod fleet;
pub mod grammar;
mod histogram;
mod load;
mod next;
mod outcome;
mod planned;
mod replica;
mod scaling;
mod series;
mod simulate;
mod source;
mod stretch;
mod trace;
mod traced;

pub use engine::{DecodeTime, LinearEngine, Picoseconds, StepTime, picoseconds, seconds};
pub use error::{PAGES, TraceError};
pub use fleet::{Arrangement, Disaggregated, Fleet, Objectives, Pool, Scaling, Transfer};
pub use load::{Arrivals, GeneratedLoad, Lengths, SharedPrefix, Thinking, Turns};
pub use outcome::{Fate, Outcome, RequestRecord, Spread};
pub use planned::{Planned, Prefix};
pub use scaling::replica_to_close;
pub use series::{SeriesWindow, WindowSeries};
pub use simulate::simulate;
pub use source::Traffic;
pub use trace::{TOKENS_PER_HASH, read_trace};
pub use traced::{SharedPrefixes, TokenLengths, TracedLoad};
