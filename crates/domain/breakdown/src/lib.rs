//! Where the time of a step or a request goes, under one list of parts.
//!
//! A prediction travels with every job from the plan to the diagnosis, so there is one definition of its
//! parts: `plan` fills a [`Breakdown<Predicted>`], `run` a [`Breakdown<Measured>`], and only a
//! [`Comparison`] brings the two together. Each part has exposed seconds, which add up to the whole, and
//! hidden seconds, which other work covered. This crate does not know who made a breakdown. [`StepShape`] is the work of
//! one step of serving, which scheduler, engine and performance model share.
//!
//! ```
//! use bedplate_breakdown::{Breakdown, Comparison, Measured, Part, Predicted, Span};
//! use bedplate_units::Seconds;
//!
//! let exposed = |ms| Span::exposed(Seconds::ms(ms));
//! let plan = Breakdown::<Predicted>::default()
//!     .with(Part::Compute, exposed(90.0))
//!     .with(Part::ScaleOut, exposed(10.0));
//! let run = Breakdown::<Measured>::default()
//!     .with(Part::Compute, exposed(92.0))
//!     .with(Part::ScaleOut, exposed(58.0));
//!
//! let comparison = Comparison::new(&plan, &run);
//! assert_eq!(comparison.slowdown(), Some(1.5));
//! assert_eq!(comparison.ranked()[0].part, Part::ScaleOut);
//! ```

mod breakdown;
mod comparison;
mod format;
mod part;
mod shape;

pub use breakdown::{Breakdown, Measured, Predicted, Span};
pub use comparison::{Comparison, Difference};
pub use part::Part;
pub use shape::StepShape;
