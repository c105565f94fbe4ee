//! Quantities that cannot be mixed: bytes, flops, tokens, seconds, dollars, and their rates.
//!
//! Every quantity is an `f64` in its base unit behind its own type, so a bandwidth is never added to a
//! size, while bytes over bandwidth give seconds. Quantities print the way data sheets do and parse what
//! people type; [`UnitError`] says what was expected instead. An `f64` counts integers exactly up to
//! 9 PB, which is why exact parameter counts stay `u64` in `transformer` and only sizes live here.
//!
//! ```
//! use bedplate_units::{Bandwidth, Bytes, Seconds};
//!
//! let memory: Bytes = "80 GB".parse()?;
//! let bandwidth: Bandwidth = "3.35 TB/s".parse()?;
//! let sweep: Seconds = memory / bandwidth;
//! assert_eq!(sweep.to_string(), "23.88 ms");
//! # Ok::<(), bedplate_units::UnitError>(())
//! ```

mod calendar;
mod count;
mod error;
mod format;
mod length;
mod money;
mod parse;
mod quantity;
mod rate;
mod size;
pub mod statistics;
mod time;

pub use calendar::{Date, UtcTime, WrittenTime};
pub use count::{Count, Tokens, grouped};
pub use error::UnitError;
pub use length::sequence_length;
pub use money::{DollarRate, Dollars};
pub use rate::{Bandwidth, FlopRate, TokenRate};
pub use size::{Bytes, Flops, Watts};
pub use time::Seconds;
