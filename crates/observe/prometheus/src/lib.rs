//! What Prometheus, Alertmanager and Grafana are given: rules with their unit tests, dashboards, scrape configuration.
//!
//! Alerts on nodes are the health rules of `health`, translated; queries use only metrics that exist, which tests check
//! against the exporter's table. Everything here is text made from data; nothing is read or sent.
//!
//! ```
//! use bedplate_prometheus::{RuleOptions, dashboards, rules_file};
//!
//! let rules = rules_file(&RuleOptions::default());
//! assert!(rules.contains("alert: GpuXid79"));
//! let (file, board) = &dashboards::all()[0];
//! assert_eq!((*file, board.title), ("gpu-health-cluster", "GPU Health - Cluster"));
//! ```

mod alert;
mod alerts;
pub mod dashboards;
pub mod grafana;
pub mod names;
mod rules;
mod scrape;
mod yaml;

pub use alert::{Alert, Example};
pub use alerts::{AlertGroup, groups};
pub use rules::{RECORDINGS, Recording, RuleOptions, rules_file, tests_file};
pub use scrape::{NodeDiscovery, PORT, Scrape, targets_file, with_port};
