//! Where a job stands, in the words of every cluster, of the journal and of the command line.

use serde::{Deserialize, Serialize};

/// Where a job stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    #[default]
    Waiting,
    /// Its nodes are being made ready.
    Starting,
    Running,
    /// Its ranks have been told to end.
    Stopping,
    Suspended,
    Succeeded,
    Failed,
    Cancelled,
    TimedOut,
    /// Its node was lost and it may not come back.
    NodeLost,
    /// It could never run here.
    Rejected,
}

impl JobState {
    /// Every state by its name, in their order.
    pub const ALL: [(&'static str, JobState); 11] = [
        ("waiting", JobState::Waiting),
        ("starting", JobState::Starting),
        ("running", JobState::Running),
        ("stopping", JobState::Stopping),
        ("suspended", JobState::Suspended),
        ("succeeded", JobState::Succeeded),
        ("failed", JobState::Failed),
        ("cancelled", JobState::Cancelled),
        ("timed_out", JobState::TimedOut),
        ("node_lost", JobState::NodeLost),
        ("rejected", JobState::Rejected),
    ];

    /// Nothing will happen to the job any more.
    pub fn is_final(self) -> bool {
        self >= JobState::Succeeded
    }

    /// As it is written in the API, the journal, in JSON and on the command line.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].0
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(known, _)| *known == name).map(|(_, state)| state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_written_by_their_names() {
        for (name, state) in JobState::ALL {
            assert_eq!((state.name(), JobState::named(name)), (name, Some(state)));
            assert_eq!(serde_json::to_value(state).unwrap(), name);
        }
        assert!(!JobState::Suspended.is_final() && JobState::Succeeded.is_final());
    }
}
