//! What is read about a node, and by which rules it is judged: the options of `export` and of a node's agent.

use std::path::PathBuf;
use std::time::Duration;

use bedplate_exporter::{ExporterOptions, HostnameLabel, Root};
use bedplate_terminal::{CliError, ProgramError};
use bedplate_units::Seconds;

use crate::health_rules::{ProfileName, rules};

/// What is read about a node, and by which rules it is judged.
#[derive(clap::Args, Clone, Default)]
#[command(next_help_heading = "What is read, and how it is judged")]
pub(crate) struct Watching {
    /// The node's name [default: the host's]
    #[arg(long = "node-name", value_name = "NAME")]
    name: Option<String>,
    /// Time between two readings
    #[arg(long, value_name = "TIME", default_value = "1s")]
    interval: Option<Seconds>,
    /// How labels spell the host; newer versions of dcgm-exporter use lower case
    #[arg(long, value_name = "SPELLING", default_value = "Hostname")]
    hostname_label: Option<Spelling>,
    /// Whose advice about XIDs to follow
    #[arg(long, value_name = "PROFILE")]
    profile: Option<ProfileName>,
    /// Rules of your own, added to the built-in ones
    #[arg(long, value_name = "FILE")]
    health_rules: Option<PathBuf>,
    /// The NVML library [default: the driver's]
    #[arg(long, value_name = "LIBRARY")]
    nvml: Option<PathBuf>,
    /// Read a tree of files instead of this machine
    #[arg(long, value_name = "FOLDER", hide = true)]
    pub(crate) observe_root: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Spelling {
    #[value(name = "Hostname")]
    Capital,
    #[value(name = "hostname")]
    Small,
    #[value(name = "both")]
    Both,
}

impl Watching {
    pub(crate) fn options(&self, node: &str) -> Result<ExporterOptions, CliError> {
        let mut options = ExporterOptions::new(self.name.as_deref().unwrap_or(node));
        let interval = self.interval.map_or(1.0, Seconds::get);
        if !(0.05..=3600.0).contains(&interval) {
            let message = "--interval is between 50ms and 1h".to_owned();
            return Err(ProgramError::Usage { message }.into());
        }
        options.interval = Duration::from_secs_f64(interval);
        options.hostname_label = match self.hostname_label {
            Some(Spelling::Small) => HostnameLabel::Small,
            Some(Spelling::Both) => HostnameLabel::Both,
            Some(Spelling::Capital) | None => HostnameLabel::Capital,
        };
        options.rules = rules(self.profile, self.health_rules.as_deref())?;
        options.nvml.clone_from(&self.nvml);
        if let Some(root) = &self.observe_root {
            options.root = Root::at(root);
        }
        Ok(options)
    }
}
