//! The serving side: measured latencies of engines, errors of the model on them, and its constants.
//!
//! [`ServingCases`] reads a table of measurements, fills in what its sources leave out and skips what
//! cannot be predicted, with a reason. [`serving_report`] scores constants on the rest, [`fit_serving`] finds
//! better ones, [`fit_without_each`] gives the constants with each source held out ([`HeldOut`] keeps them), and [`fit_site`]
//! adjusts deployments to a site's own rows. [`ServingErrors`] are the errors of sources held out, from which predictions get
//! 80 % intervals and limits a confidence; [`held_out_report`] counts how many rows such intervals hold, and [`beside`] scores another
//! program's predictions on the same rows.

mod beside;
mod case;
mod coverage;
mod fill;
mod fit;
mod held_out;
mod interval;
mod report;
mod site;
mod skip;
mod suspicion;

pub use beside::{Beside, BesideReport, PeerLatency, beside};
pub use case::{LogErrors, MeasuredMeans, PoolSizes, ServingCase, ServingCases, ServingSkipped};
pub use coverage::{Coverage, HeldOutReport, held_out_errors, held_out_report};
pub use fill::Campaign;
pub use fit::{fit_serving, fit_without_each};
pub use held_out::HeldOut;
pub use interval::{Chips, Likeness, Measure, ServingErrors, Spread};
pub use report::{Scores, ServingOutcome, ServingReport, serving_report};
pub use site::fit_site;
pub use skip::ServingSkip;
