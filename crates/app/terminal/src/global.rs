//! The options that every command of every program takes.

use clap::Args;

use crate::{CliError, Context, LogArguments};

#[derive(Debug, Args)]
pub struct GlobalArguments {
    /// Print one JSON document instead of text
    #[arg(long, global = true, help_heading = "Global options")]
    pub json: bool,

    /// Lay your own catalog file over the built-in one; may be repeated
    #[arg(
        long,
        global = true,
        help_heading = "Global options",
        value_name = "FILE",
        env = "BEDPLATE_CATALOG",
        hide_env_values = true,
        value_delimiter = ':'
    )]
    catalog: Vec<String>,

    #[command(flatten)]
    log: LogArguments,
}

impl GlobalArguments {
    /// Begins to log; returns what commands need.
    pub fn start(self) -> Result<Context, CliError> {
        self.log.start()?;
        Ok(Context { overlays: self.catalog })
    }
}
