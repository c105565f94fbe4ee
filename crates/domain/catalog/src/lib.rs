//! What hardware exists: accelerators, instances, UltraServers, fabrics, storage classes and prices.
//!
//! The figures live as readable TOML in `data/catalog/` and are embedded in the program. Each figure has a
//! source; where sources disagree the vendor's figure is used and the others are kept next to it. Prices
//! have a date and a region, and are absent where they are not known. A user's overlay file adds entries
//! or overrides single fields, and is validated with line-precise errors. Concrete clusters, and how many
//! machines there are, belong to `topology`.
//!
//! ```
//! use bedplate_catalog::Catalog;
//! use bedplate_units::Bytes;
//!
//! let catalog = Catalog::builtin();
//! let instance = catalog.instance("p5.48xlarge")?;
//! let accelerator = catalog.accelerator(&instance.accelerator)?;
//! assert_eq!(accelerator.memory, Bytes::gb(80.0));
//! # Ok::<(), bedplate_catalog::CatalogError>(())
//! ```

mod accelerator;
mod bound;
mod catalog;
mod collective;
mod error;
mod evidence;
mod fabric;
mod format;
mod instance;
mod measured;
mod need;
mod price;
mod storage;

pub use accelerator::{Accelerator, Peaks};
pub use bound::{Bound, BoundError};
pub use catalog::{Catalog, refuse_unknown};
pub use collective::{CollectiveCurve, CollectiveTimes};
pub use error::{CatalogError, PAGES};
pub use evidence::{Disagreement, Evidence, Reference, SourceKind};
pub use fabric::{Fabric, FabricKind};
pub use instance::{Instance, LocalStorage, UltraServer};
pub use measured::{FormatRates, MeasuredRates};
pub use need::Need;
pub use price::{Price, Prices, Purchase};
pub use storage::{StorageClass, StoragePrice, StorageTier};
