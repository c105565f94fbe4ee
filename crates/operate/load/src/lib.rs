//! Load for servers of models, and what their clients measure.
//!
//! [`measure`] sends the requests of a trace or of generated load to a server with OpenAI's API, at their times or with a number of users,
//! and notes when each token comes. It measures any such server: ours, vLLM, SGLang. Its own share of the figures is what it measures
//! at a [`NullServer`], which answers at once. What is sent comes from `replay`, so a server and its simulation get the same requests.
//!
//! ```
//! use bedplate_load::{NullServer, Plan, LoadTarget, measure};
//! use bedplate_replay::requests::{GeneratedLoad, Lengths};
//!
//! let server = NullServer::start()?;
//! let load = GeneratedLoad { requests: 20, prompt: Lengths::Fixed(8), output: Lengths::Fixed(4), ..GeneratedLoad::default() };
//! let plan = Plan::closed(load.planned(), 4);
//! let summary = measure(&LoadTarget::parse(&server.url())?, &plan)?;
//! assert_eq!((summary.finished, summary.output_tokens), (20, 80));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod asking;
mod content;
mod error;
mod events;
mod measuring;
mod null_server;
mod plan;
mod summary;
mod target;

pub use error::{LoadError, PAGES};
pub use measuring::measure;
pub use null_server::NullServer;
pub use plan::{Api, LoadPace, Plan};
pub use summary::{LoadSummary, Quantiles};
pub use target::LoadTarget;
