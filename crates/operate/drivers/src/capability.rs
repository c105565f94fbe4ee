//! What some clusters can do and others cannot.

use serde::Serialize;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Capability {
    /// Tell of changes as they happen.
    Watch,
    /// Show what ranks write.
    Logs,
    /// Say why a job waits.
    Explain,
    /// Say where each rank stands.
    Ranks,
    /// Hold jobs and release them.
    Hold,
    /// Stop a job and let it wait again.
    Requeue,
    /// Take nodes out of service and put them back.
    Drain,
}

impl Capability {
    pub const ALL: [Capability; 7] = [
        Capability::Watch,
        Capability::Logs,
        Capability::Explain,
        Capability::Ranks,
        Capability::Hold,
        Capability::Requeue,
        Capability::Drain,
    ];

    /// As in "it cannot …".
    pub fn text(self) -> &'static str {
        match self {
            Capability::Watch => "tell of changes as they happen",
            Capability::Logs => "show what ranks write",
            Capability::Explain => "say why a job waits",
            Capability::Ranks => "say where the ranks of a job stand",
            Capability::Hold => "hold jobs or release them",
            Capability::Requeue => "put a running job back into its queue",
            Capability::Drain => "take nodes out of service or put them back",
        }
    }

    /// What to do on a cluster that cannot.
    pub fn instead(self) -> &'static str {
        match self {
            Capability::Watch => "ask again from time to time with `bedplate job show`",
            Capability::Logs => "read the files that the job's `stdout` and `stderr` name",
            Capability::Explain | Capability::Ranks => "`bedplate job show` has what the cluster tells",
            Capability::Hold => "cancel the job and submit it again when it may start",
            Capability::Requeue => "cancel the job and submit it again",
            Capability::Drain => "ask an administrator of the cluster",
        }
    }
}
