//! Predicts one training step: time by part and memory by part.
//!
//! [`predict`] prices a model on a machine under a layout. A search builds a [`Problem`] once, prices each
//! way to cut a layer once ([`Problem::layer_costs`]) and combines it with stages and data ranks
//! ([`Problem::combine`]) at about a hundred flops per layout; both give the same numbers, bit for
//! bit. The model is analytic: kernels by roofline with losses, collectives by topology, overlap with
//! mutual slowdown. What it does not derive is in [`Constants`], fitted by `calibrate`. Searching and
//! ranking layouts is left to `search`.
//!
//! A host that trains by itself with this program's runtime is priced differently: by rates measured on it, operator by
//! operator ([`predict_on_host`]).
//!
//! ```
//! use bedplate_catalog::Catalog;
//! use bedplate_perf::{Constants, Hardware, Workload, predict};
//! use bedplate_topology::Cluster;
//! use bedplate_transformer::builtin;
//!
//! let catalog = Catalog::builtin();
//! let cluster = Cluster::from_spec("p5.48xlarge:8", &catalog)?;
//! let hardware = Hardware::from_cluster(&cluster, &catalog)?;
//! let workload = Workload { sequence: 8192, global_batch: 128, ..Workload::default() };
//! let layout = "dp2.tp4.sp.pp4.cp2.vpp5.zero1".parse()?;
//! let step = predict(&builtin("llama-3-70b")?, &hardware, &layout, &workload, &Constants::builtin())?;
//! assert_eq!(step.gpus, 64);
//! assert!(step.fit.is_possible());
//! assert!((10.0..20.0).contains(&step.seconds().get()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod block;
mod collective;
mod collective_call;
mod constants;
mod error;
mod exchange;
mod hardware;
mod host;
mod kernel;
mod layer;
mod memory;
mod overlap;
mod problem;
mod profile;
pub mod serving;
mod step;
mod workload;

pub use collective_call::{CollectiveCall, Initiator, collective_seconds};
pub use constants::{Constants, Field, Origin};
pub use error::{PAGES, PerfError};
pub use hardware::{Generation, Hardware, Network};
pub use host::{
    Collective, HostFormats, HostRun, HostStep, LocalCollectives, memory_on_host, predict_on_host,
    serve_on_host,
};
pub use layer::{LayerCosts, LayerKey};
pub use memory::{Fit, MemoryUse};
pub use overlap::Contention;
pub use problem::{Grid, Problem, predict};
pub use step::PredictedStep;
pub use workload::{
    Dispatcher, ExpertOverlap, ExpertRouting, Fp8Scaling, Offload, PeerCopies, Stack, Task, Workload,
};
