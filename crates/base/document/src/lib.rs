//! TOML documents read with places, and JSON with the same keys; and the other notations that several crates read or write:
//! CSV, YAML, quantities and names of Kubernetes, times of Slurm, quotes of TOML, YAML and shells.
//!
//! The catalog, clusters, jobs and configurations are written by people, so every complaint about them
//! names file, line, key and remedy. A [`Table`] hands out typed values by key, remembers which keys were
//! read, and at the end [`Table::finish`] refuses unknown keys. Tables can be overlaid
//! ([`Table::overlay`]); each value keeps the place it came from.
//!
//! ```
//! use bedplate_diag::{Diagnostic, Source};
//! use bedplate_document::Table;
//! use bedplate_units::Bytes;
//!
//! let table = Table::parse(Source::new("gpu.toml", "memory = \"80 GB\"\nmemroy_kind = \"HBM3\"\n"))?;
//! assert_eq!(table.required::<Bytes>("memory")?, Bytes::gb(80.0));
//! let _kind: Option<String> = table.optional("memory_kind")?;
//! let error = table.finish().unwrap_err();
//! assert_eq!(error.help().unwrap(), "did you mean `memory_kind`?");
//! assert_eq!(error.place().unwrap().line, Some(2));
//! # Ok::<(), bedplate_document::DocumentError>(())
//! ```

pub mod csv;
mod error;
pub mod kubernetes;
pub mod quote;
mod readable;
pub mod slurm;
mod table;
mod value;
mod yaml;

pub use error::{DocumentError, PAGES};
pub use readable::{Misfit, Readable};
pub use table::Table;
pub use value::{Entry, Located, Value};
pub use yaml::to_yaml;
