//! What every program of ours shares with its user: a console, tables and pages, files that the user names, arguments
//! in the user's words, and how a command ends.
//!
//! ```
//! use bedplate_terminal::Console;
//! use bedplate_terminal::present::{Column, Table};
//!
//! let mut table = Table::new(vec![Column::left("NAME", 0), Column::right("GPUS", 1)]);
//! table.row(vec!["p5.48xlarge".into(), "8".into()]);
//! Console::for_process(false).table(&table)?;
//! # Ok::<(), bedplate_terminal::CliError>(())
//! ```

pub mod benchmarks;
mod choice;
mod cli_error;
mod companion;
mod console;
mod context;
pub mod files;
pub mod formats;
mod global;
pub mod html;
mod length;
mod logging;
pub mod present;
pub mod verdicts;

pub use choice::choice;
pub use cli_error::{CliError, PAGES, ProgramError, catching_bugs, report};
pub use companion::find_companion;
pub use console::Console;
pub use context::Context;
pub use global::GlobalArguments;
pub use length::length;
pub use logging::{LogArguments, rank_span};
