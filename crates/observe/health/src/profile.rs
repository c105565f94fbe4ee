//! Whose advice is followed.

use std::fmt;

/// A policy for what XIDs and rules call for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Profile {
    /// As NVIDIA's catalog says.
    #[default]
    Nvidia,
    /// As EKS's node monitoring agent does: instances are cheap to replace.
    AwsEc2,
    /// Replace the node on 63, 64, 79, 94 and 95.
    Strict,
}

impl Profile {
    pub const ALL: [Profile; 3] = [Profile::Nvidia, Profile::AwsEc2, Profile::Strict];

    pub const fn name(self) -> &'static str {
        match self {
            Profile::Nvidia => "nvidia",
            Profile::AwsEc2 => "aws-ec2",
            Profile::Strict => "strict",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|profile| profile.name() == name)
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
