//! What a finding calls for.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Finding, Subject};

/// Actions from the mildest to the strongest; the order decides between findings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Only record it.
    Record,
    /// Count it; its rate may matter.
    Watch,
    /// Tell a person.
    Alert,
    /// Start the application again from its newest durable step.
    RestartJob,
    /// Reset the device once nothing runs on it.
    ResetDevice,
    /// Let running work finish, place nothing new.
    Drain,
    /// Stop running work, drain, and reboot the node.
    Reboot,
    /// Stop running work, drain, and replace the node.
    Replace,
}

impl Action {
    pub const ALL: [Action; 8] = [
        Action::Record,
        Action::Watch,
        Action::Alert,
        Action::RestartJob,
        Action::ResetDevice,
        Action::Drain,
        Action::Reboot,
        Action::Replace,
    ];

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|action| action.name() == name)
    }

    pub const fn name(self) -> &'static str {
        match self {
            Action::Record => "record",
            Action::Watch => "watch",
            Action::Alert => "alert",
            Action::RestartJob => "restart-job",
            Action::ResetDevice => "reset-device",
            Action::Drain => "drain",
            Action::Reboot => "reboot",
            Action::Replace => "replace",
        }
    }

    /// Whether the node may take new work while the action is open.
    pub const fn takes_node_out_of_service(self) -> bool {
        matches!(self, Action::ResetDevice | Action::Drain | Action::Reboot | Action::Replace)
    }

    /// Whether work on the subject has to stop for it.
    pub const fn interrupts_jobs(self) -> bool {
        matches!(self, Action::RestartJob | Action::Reboot | Action::Replace)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The strongest action that findings require for a subject or anything inside it.
pub fn strongest_action(findings: &[Finding], subject: &Subject) -> Option<Action> {
    findings.iter().filter(|finding| subject.contains(&finding.subject)).map(|finding| finding.action).max()
}
