//! Clusters behind one trait.
//!
//! A [`Driver`] does to a cluster what every orchestrator can do: take a job in, list, watch, show output, cancel,
//! hold, explain, drain. [`Local`] drives a cluster of our own through its daemon's HTTP API, whether that is on this
//! machine or elsewhere. All calls block. Which job should run where is the business of whoever is driven.

mod driver;
mod error;
mod local;
mod place;
mod views;

pub use driver::{Driver, JobOrder, JobQuery, LogQuery, Stream, Watched};
pub use error::{DriverError, PAGES};
pub use local::{Body, JobFormat, Local};
pub use place::{Beacon, Place, StateDirectory};
pub use views::{
    ClusterView, Explained, JobDetail, NodeDetail, RankPlace, Seen, Submitted, TokenMade, TokenView, UsageBy,
    UsageRow,
};
