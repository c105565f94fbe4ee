//! A concrete cluster: GPU → NVLink domain → node → leaf → spine.
//!
//! A [`Cluster`] is read from one line (`p5.48xlarge:64`), from `cluster.toml`, from Slurm's files, from
//! EC2's instance topology, from Kubernetes node lists or from `nvidia-smi topo -m`, and written back as
//! `cluster.toml` or Slurm's files. It answers where GPUs meet, how far apart they are and what bandwidth
//! they can count on. It does not know jobs; `gangs` decides what runs where.
//!
//! ```
//! use bedplate_catalog::Catalog;
//! use bedplate_topology::{Cluster, Level};
//! use bedplate_units::Bandwidth;
//!
//! let cluster = Cluster::from_spec("p5.48xlarge:2", &Catalog::builtin())?;
//! assert_eq!(cluster.gpu_count(), 16);
//!
//! let first = cluster.node(cluster.find_node("n1").unwrap());
//! assert_eq!(cluster.level_of(first.gpus()), Some(Level::Domain));
//! assert_eq!(cluster.scale_up_bandwidth(first.gpus()), Some(Bandwidth::gb_per_s(450.0)));
//!
//! assert_eq!(cluster.level_of(cluster.gpus()), Some(Level::Cluster));
//! let network = cluster.scale_out_bandwidth(cluster.gpus()).unwrap();
//! assert_eq!(network.per_gpu, Bandwidth::gb_per_s(50.0));
//! # Ok::<(), bedplate_topology::TopologyError>(())
//! ```

mod bandwidth;
mod cluster;
mod document;
mod draft;
mod ec2;
mod error;
mod features;
mod format;
mod health;
mod hostlist;
mod id;
mod json;
mod kind;
mod kubernetes;
mod level;
mod names;
mod nvidia_smi;
mod options;
mod paths;
mod query;
mod slurm;
mod spec;
mod summary;
mod yaml;

pub use bandwidth::{PathStage, ScaleOut};
pub use cluster::{AttachedStorage, Cluster, Node, Switch};
pub use error::{PAGES, TopologyError};
pub use format::{ExportFormat, Format, detect, export, import, import_detected};
pub use health::Health;
pub use hostlist::{compress_hostlist, expand_hostlist};
pub use id::{GpuId, GpuRange, Id, IdRange, Ids, NodeId, NodeRange, SwitchId};
pub use kind::NodeKind;
pub use level::Level;
pub use options::{Blocks, ImportOptions};
pub use query::{Set, Sets};
pub use summary::{HealthCount, KindCount, LevelCount, Summary};
