//! The OpenAI-compatible API over running models.
//!
//! [`start`] serves [`ServedModel`]s, each a tokenizer with one or more replicas that answer in tokens (`bedplate_serve::Replica`). This crate
//! turns requests into prompts and tokens into answers: chat templates, stop strings, calls of tools, structured output, streams,
//! log-probabilities, usage. It counts under vLLM's names and writes a trace that `bedplate replay requests` reads. How tokens are
//! computed and scheduled is not known here. [`route`] puts a router in front of many such servers, and a
//! [`ReplicaFleet`] keeps such servers running as processes. `docs/serving.md` is the contract.
//!
//! ```no_run
//! # fn example(replica: std::sync::Arc<dyn bedplate_serve::Replica>) -> Result<(), Box<dyn std::error::Error>> {
//! use bedplate_data::Tokenizer;
//! use bedplate_gateway::{ServedModel, GatewayOptions, start};
//!
//! let tokenizer = Tokenizer::load("model/tokenizer.json".as_ref())?;
//! let model = ServedModel::new("tiny", vec![replica], tokenizer.into())?;
//! let running = start(vec![model], GatewayOptions::default())?;
//! println!("http://{}", running.address());
//! running.wait();
//! # Ok(())
//! # }
//! ```

mod account;
mod admission;
mod answering;
mod calls;
mod choice;
mod cross_origin;
mod error;
mod fields;
mod fleet;
mod gateway;
mod generation;
mod guide;
mod keys;
mod metrics;
mod model;
mod options;
mod presence;
mod refusal;
mod responding;
mod router;
mod routes;
mod running;
mod sampling;
mod serving;
mod stops;
mod trace;
mod wire;

pub use error::{GatewayError, PAGES};
pub use fleet::{Fleet, FleetOptions, FleetState, JobFleet, JobFleetOptions, JobFleetState, ReplicaFleet};
pub use model::ServedModel;
pub use options::{Bounds, DEFAULT_PORT, GatewayOptions};
pub use router::{
    Checks, Departure, Members, ReplicaHealth, ReplicaUrl, RouteOptions, RunningRouter, UrlFlaw, route,
};
pub use serving::{Ender, Running, RunningGateway, Traced, start};
