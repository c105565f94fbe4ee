//! The rules of health that several commands take: built-in ones of a profile, and a site's own over them.

use std::path::Path;

use bedplate_exporter::watchable;
use bedplate_health::{Profile, Rules};
use bedplate_terminal::{CliError, files};

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(crate) enum ProfileName {
    /// As NVIDIA's catalog says
    Nvidia,
    /// As EKS does: replace the instance on more codes
    AwsEc2,
    /// Replace the node on 63, 64, 79, 94 and 95
    Strict,
}

impl ProfileName {
    pub(crate) fn profile(self) -> Profile {
        match self {
            ProfileName::Nvidia => Profile::Nvidia,
            ProfileName::AwsEc2 => Profile::AwsEc2,
            ProfileName::Strict => Profile::Strict,
        }
    }
}

/// The built-in rules with a site's own; the command line's profile counts more than the file's.
pub(crate) fn rules(profile: Option<ProfileName>, own: Option<&Path>) -> Result<Rules, CliError> {
    let mut rules = Rules::built_in(Profile::default());
    if let Some(path) = own {
        let path = path.display().to_string();
        rules = rules.with_own(&files::read_text(&path)?, &path, &watchable())?;
    }
    if let Some(profile) = profile {
        rules.profile = profile.profile();
    }
    Ok(rules)
}
