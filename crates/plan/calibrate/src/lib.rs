//! Fits the performance model to measured training runs, and says how wrong it is.
//!
//! A CSV file of measurements becomes [`Cases`]: rows that can be predicted, and rows that cannot, each with
//! its reason. [`validate`] scores constants on them, [`fit()`] finds better ones, and
//! [`leave_one_source_out`] scores each publication by a fit that has not seen it, which is what error bars
//! need. [`fit_host`] moves the measured rates of a host to what training runs reached on it, and [`own_runs`] reads such
//! runs and writes the host's file again. Nothing here reads files, and the publisher of a row is used only to group scores.
//!
//! ```
//! use bedplate_calibrate::validate;
//! use bedplate_catalog::Catalog;
//! use bedplate_perf::Constants;
//!
//! let rows = "id,model,gpus,accelerator,tp,pp,micro_batch,seq_len,global_batch,step_time_s,software\n\
//!     mine-1,Llama 3 8B,8,H100,1,1,1,8192,128,14.4,megatron\n\
//!     mine-2,Llama 3 8B,8,H100,3,1,1,8192,128,14.4,megatron\n";
//! let report = validate(rows, &Constants::builtin(), &Catalog::builtin())?;
//! assert_eq!(report.rows_used(), 1);
//! assert_eq!(report.rows_skipped[0].reason.to_string(), "tp3 x pp1 x cp1 does not divide 8 GPUs");
//! # Ok::<(), bedplate_calibrate::CalibrateError>(())
//! ```

mod architecture;
mod case;
mod collectives;
mod efa_tcp;
mod error;
mod fill;
mod fit;
mod holdout;
mod host;
mod interval;
mod kendall;
mod least_squares;
pub mod own_runs;
mod record;
mod report;
pub mod serving;
mod skip;

pub use case::{Case, Cases, Skipped};
pub use collectives::{CollectiveReport, CollectiveRow, CollectiveRows, fit_collectives};
pub use efa_tcp::{EFA_TCP_FIGURES, EfaTcpFigure, fit_efa_tcp};
pub use error::{CalibrateError, PAGES};
pub use fit::{FitOptions, Prior, fit, fit_memory};
pub use holdout::{holdout_report, leave_one_source_out};
pub use host::{HostCase, HostFactor, HostFit, fit_host};
pub use interval::{ErrorBars, Interval, Similar};
pub use report::{RowOutcome, Score, ValidationReport, report, validate};
pub use skip::Skip;
