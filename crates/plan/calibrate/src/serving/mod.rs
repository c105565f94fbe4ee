//! The serving side: measured latencies of engines, errors of the model on them, and its constants.
//!
//! [`ServingCases`] reads a table of measurements, fills in what its sources leave out and skips what
//! cannot be predicted, with a reason. [`validate_serving`] scores constants on the rest, [`fit_serving`] finds
//! better ones, [`fit_without_each`] gives the constants with each group held out, and [`fit_site`] adjusts
//! deployments to a site's own rows.

mod case;
mod fill;
mod fit;
mod report;
mod site;
mod skip;
mod suspicion;

pub use case::{LogErrors, Measured, PoolSizes, ServingCase, ServingCases, ServingSkipped};
pub use fill::Campaign;
pub use fit::{fit_serving, fit_without_each};
pub use report::{Scores, ServingOutcome, ServingReport, serving_report, validate_serving};
pub use site::fit_site;
pub use skip::ServingSkip;
