//! The API: a table of routes, and a handler for each.

mod answer;
mod call;
mod cluster;
mod dispatch;
pub(crate) mod error;
mod events;
mod history;
mod jobs;
mod logs;
mod nodes;
pub(crate) mod openapi;
mod orders;
mod query;
mod routes;
mod status;
mod submit;
mod tokens;
mod usage;

pub(crate) use dispatch::{App, Shutdown, answer};
pub(crate) use logs::MOST_READS;
