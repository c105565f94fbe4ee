//! Metrics of one node, under the names that existing dashboards know.

pub mod metrics;
