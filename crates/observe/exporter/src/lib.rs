//! Metrics of one node, under the names that existing dashboards know.
//!
//! Collectors read GPUs (NVML), network cards, Lustre, the host, Neuron devices, the kernel log and the endpoints of ranks; an
//! [`Exporter`] runs them, keeps the newest readings for Prometheus and hands them to the rules of `health`. Hardware that
//! is not there is simply absent. [`metrics::all`] lists every metric as data. This crate does not know clusters, and not what
//! is done about a finding.
//!
//! ```
//! use bedplate_exporter::{Exporter, ExporterOptions};
//!
//! let exporter = Exporter::start(ExporterOptions::new("n1"))?;
//! let text = exporter.text();
//! assert!(text.contains("bedplate_collector_up"));
//! # Ok::<(), bedplate_exporter::ExportError>(())
//! ```

mod board;
pub mod collectors;
mod error;
mod exporter;
pub mod foreign;
mod kernel_log;
pub mod metrics;
mod nvml;
mod root;
mod series;
mod targets;
mod watch;

pub use collectors::gpu::JobOnGpu;
pub use error::{ExportError, PAGES};
pub use exporter::{Exporter, ExporterOptions, watchable};
pub use root::Root;
pub use series::HostnameLabel;
pub use targets::ScrapeTarget;
pub use watch::{OnCounters, OnFindings};
