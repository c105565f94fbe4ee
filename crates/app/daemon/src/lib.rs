//! The control plane of a cluster on a socket: HTTP for people and programs, links for agents, a journal underneath.
//!
//! [`serve`] runs until it is told to stop. One thread owns the state machine of `bedplate_control`; nobody is told
//! anything before the journal has it on disk. What is decided is not known here, and how ranks run is the agents'
//! business. `docs/api.md` is the contract, `docs/daemon.md` what an operator needs to know.
//!
//! ```no_run
//! use bedplate_catalog::Catalog;
//! use bedplate_daemon::{DaemonOptions, serve};
//! use bedplate_topology::Cluster;
//!
//! let cluster = Cluster::from_spec("p5.48xlarge:4", &Catalog::builtin())?;
//! serve(DaemonOptions::new("/var/lib/bedplate".into(), cluster))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod api;
mod background;
mod backups;
mod clock;
mod control_thread;
mod diagnosing;
mod error;
mod hub;
pub mod intake;
mod leases;
mod limits;
mod links;
mod metrics;
mod options;
mod ranks;
mod readers;
mod retention;
mod run_secrets;
mod server;
mod site;
mod state;
mod submission_keys;
mod tls;
mod tokens;
mod work_queue;

pub use api::error::{ApiError, PAGES as API_PAGES};
pub use api::openapi::document as openapi_document;
pub use error::{DaemonError, PAGES};
pub use options::{ApiLimits, DEFAULT_PORT, DaemonOptions, Hook};
pub use retention::Retention;
pub use server::{RunningDaemon, serve, start};
pub use site::Site;
pub use state::Whereabouts;
