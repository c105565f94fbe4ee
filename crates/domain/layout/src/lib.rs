//! Parallel layouts: how one model is cut over many accelerators.
//!
//! A layout is written in one grammar, `dp8.tp4.pp2.ep8`: parts in any order on input, one canonical
//! spelling on output, defaults left out. [`Layout::refusals`] says why a layout cannot be used, as data;
//! [`RankMap`] says which rank does what. What a layout costs is up to `perf`.
//!
//! ```
//! use bedplate_layout::{Dimension, Layout, RankMap};
//!
//! let layout: Layout = "pp2.tp4.dp8.ep8".parse()?;
//! assert_eq!(layout.to_string(), "dp8.tp4.pp2.ep8");
//! assert_eq!(layout.world(), 64);
//!
//! let map = RankMap::new(&layout).expect("the parts fit each other");
//! let group: Vec<u32> = map.group(Dimension::Tensor, 5).ranks().collect();
//! assert_eq!(group, [4, 5, 6, 7]);
//! # Ok::<(), bedplate_layout::ParseLayoutError>(())
//! ```

mod grammar;
mod layout;
mod pipeline;
mod ranks;
mod rules;
mod stages;

pub use grammar::{PAGES, ParseLayoutError};
pub use layout::{ComputePrecision, Layout, Recompute, Schedule, Sharding};
pub use pipeline::{Direction, Pass, PipelineStage, in_flight};
pub use ranks::{Coordinates, Dimension, Group, RankMap};
pub use rules::{Batch, LayoutRefusal};
pub use stages::{Ends, StageLayers};
