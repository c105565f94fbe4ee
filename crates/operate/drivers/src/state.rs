//! Ids and states of jobs and nodes, as every cluster has them.

use std::fmt;

pub use bedplate_job::JobState;
use serde::{Deserialize, Deserializer, Serialize};

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(transparent)]
        pub struct $name(pub String);

        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.to_owned())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            /// Clusters that count write numbers.
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                #[derive(Deserialize)]
                #[serde(untagged)]
                enum Id {
                    Number(u64),
                    Text(String),
                }
                Ok(Self(match Id::deserialize(deserializer)? {
                    Id::Number(number) => number.to_string(),
                    Id::Text(text) => text,
                }))
            }
        }
    )*};
}

ids! {
    /// A job as its cluster names it: `12`, `12_3`, `default/pretrain`. Only the cluster can tell what is in it.
    JobId
    /// A node as its cluster names it.
    NodeId
}

/// What a node does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    Idle,
    /// Reserved for a job that starts soon.
    Planned,
    Allocated,
    Draining,
    Drained,
    Down,
    Maintenance,
    /// Its cluster has been restarted and has not heard of it yet.
    Rejoining,
    #[serde(other)]
    Unknown,
}

impl NodeState {
    pub fn name(self) -> &'static str {
        match self {
            NodeState::Idle => "idle",
            NodeState::Planned => "planned",
            NodeState::Allocated => "allocated",
            NodeState::Draining => "draining",
            NodeState::Drained => "drained",
            NodeState::Down => "down",
            NodeState::Maintenance => "maintenance",
            NodeState::Rejoining => "rejoining",
            NodeState::Unknown => "unknown",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_written_by_their_names() {
        assert_eq!(serde_json::to_value(NodeState::Planned).unwrap(), NodeState::Planned.name());
        assert_eq!(serde_json::from_str::<NodeState>("\"of_tomorrow\"").unwrap(), NodeState::Unknown);
    }

    #[test]
    fn ids_may_be_numbers_elsewhere() {
        assert_eq!(serde_json::from_str::<JobId>("12").unwrap(), JobId::from("12"));
        assert_eq!(serde_json::from_str::<JobId>("\"a/b\"").unwrap(), JobId::from("a/b"));
        assert!(serde_json::from_str::<JobId>("-1").is_err());
    }
}
