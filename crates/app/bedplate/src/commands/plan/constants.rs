//! Which constants a prediction uses: the built-in ones, or those fitted to a user's own runs.

use bedplate_diag::Source;
use bedplate_perf::Constants;
use bedplate_perf::serving::ServingConstants;
use bedplate_terminal::{CliError, files};

#[derive(clap::Args, Default)]
pub(super) struct Choice {
    /// Constants fitted to your own runs by `bedplate plan calibrate`
    #[arg(long, value_name = "FILE", env = "BEDPLATE_CONSTANTS", hide_env_values = true)]
    constants: Option<String>,
}

impl Choice {
    pub(super) fn load(&self) -> Result<Constants, CliError> {
        let builtin = Constants::builtin();
        match &self.constants {
            None => Ok(builtin),
            Some(path) => Ok(Constants::read(Source::new(path, &files::read_text(path)?), builtin)?),
        }
    }

    /// The constants of the serving side, which have their own file.
    pub(super) fn load_serving(&self) -> Result<ServingConstants, CliError> {
        let builtin = ServingConstants::builtin();
        match &self.constants {
            None => Ok(builtin),
            Some(path) => Ok(ServingConstants::read(Source::new(path, &files::read_text(path)?), builtin)?),
        }
    }
}
