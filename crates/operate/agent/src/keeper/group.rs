//! What the keeper knows of a run.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bedplate_job::rank_environment::MARK;

use super::start::Reaped;
use crate::cgroup::Limited;
use crate::processes;

#[derive(Default)]
pub(super) struct Group {
    limited: Option<Limited>,
    /// Files through which its processes enter their cgroup.
    pub(super) entrances: Arc<Vec<OwnedFd>>,
    /// Sessions of the processes that the keeper started, which have the numbers of those processes.
    pub(super) sessions: BTreeSet<i32>,
    pub(super) cpu_us: u64,
    peak_memory_kib: u64,
    pub(super) is_stopped: bool,
    /// Its processes are killed until none is left.
    pub(super) is_dying: bool,
    /// And then the agent is told.
    pub(super) is_finishing: bool,
}

impl Group {
    pub(super) fn is_limited(&self) -> bool {
        self.limited.is_some()
    }

    /// Processes that start from now on are in this cgroup.
    pub(super) fn limit(&mut self, limited: Limited) {
        self.entrances = Arc::new(limited.entrance().into_iter().collect());
        self.limited = Some(limited);
    }

    pub(super) fn add(&mut self, reaped: &Reaped) {
        self.cpu_us += reaped.cpu_us;
        self.peak_memory_kib = self.peak_memory_kib.max(reaped.peak_memory_kib);
    }

    /// Of the whole run where a cgroup counts it, otherwise of its largest process.
    pub(super) fn peak_memory_mib(&self) -> u64 {
        let counted = self.limited.as_ref().map_or(0, Limited::peak_memory_mib);
        counted.max(self.peak_memory_kib / 1024)
    }

    pub(super) fn processes(&self) -> Vec<i32> {
        self.limited.as_ref().map_or_else(Vec::new, Limited::processes)
    }

    pub(super) fn kill(&self) {
        if let Some(limited) = &self.limited {
            limited.kill();
        }
    }

    pub(super) fn remove(&self) {
        if let Some(limited) = &self.limited {
            limited.remove();
        }
    }
}

/// Whether a process carries the mark of a group in the environment it was started with.
pub(super) fn is_marked(group: &str, pid: i32) -> bool {
    processes::has_variable(pid, &format!("{MARK}={group}"))
}
