//! The end of a run on this node: kill what is left, run the epilog, free what it held, and remove old folders.

use std::time::{Duration, SystemTime};

use bedplate_control::agent::{Happened, Spent};
use bedplate_control::wire::{RankEnd, RunId};
use bedplate_gangs::{Span, Time};
use tokio::task::JoinHandle;

use super::prepare::shown_output;
use super::{Local, Node, Purpose};
use crate::clock::now;
use crate::folders::{self, FolderLimits};
use crate::fork_server::orders::ToRunShim;

/// How far the end of a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cleaning {
    /// Until no process of the job is left.
    Job,
    Epilog,
    /// Until no process of the epilog is left.
    Rest,
}

impl Cleaning {
    /// Whether no process of the job is left.
    pub(super) fn is_past_job(self) -> bool {
        matches!(self, Cleaning::Epilog | Cleaning::Rest)
    }
}

/// What is kept of runs that are over, and when that was last seen to.
#[derive(Debug, Default)]
pub(super) struct Retained {
    limits: Option<FolderLimits>,
    checked: Option<Time>,
    removing: Option<JoinHandle<()>>,
}

const CHECK_EVERY: Span = Span::minutes(10);

impl Node {
    /// The site says how long folders stay.
    pub(super) fn retain(&mut self, age: Duration, bytes: u64) {
        self.retained.limits = Some(FolderLimits { age, bytes });
        self.remove_old_folders();
    }

    fn remove_old_folders(&mut self) {
        let Some(limits) = self.retained.limits else { return };
        // A disk that does not answer holds up one thread, not one more at every look.
        let is_under_way = self.retained.removing.as_ref().is_some_and(|removing| !removing.is_finished());
        if is_under_way || self.retained.checked.is_some_and(|checked| now().since(checked) < CHECK_EVERY) {
            return;
        }
        self.retained.checked = Some(now());
        let (runs, node) = self.places.runs();
        let alive = self.runs.keys().copied().collect();
        let remove = move || folders::prune(&runs, &node, &alive, limits, SystemTime::now());
        self.retained.removing = Some(tokio::task::spawn_blocking(remove));
    }

    pub(super) fn clean(&mut self, run: RunId) {
        let Some(local) = self.runs.get_mut(&run) else {
            // Not even its directory could be made.
            return self.happened(Happened::Cleaned { run, spent: Spent::default() });
        };
        local.cleaning = Some(Cleaning::Job);
        self.order_for(run, ToRunShim::Finish);
    }

    /// No process of the group is left.
    pub(super) fn finished(&mut self, group: &str, cpu_ms: u64, peak_memory_mib: u64) {
        let Some((run, local)) = self.runs.iter_mut().find(|(_, local)| local.group == group) else { return };
        let run = *run;
        local.spent.cpu_ms += cpu_ms;
        local.spent.peak_memory_mib = local.spent.peak_memory_mib.max(peak_memory_mib);
        match (local.cleaning, local.launch.epilog.clone()) {
            (Some(Cleaning::Job), Some(epilog)) => {
                local.cleaning = Some(Cleaning::Epilog);
                self.start_hook(Purpose::Epilog(run), run, &epilog);
            }
            (Some(Cleaning::Job | Cleaning::Rest), _) => self.cleaned(run),
            (Some(Cleaning::Epilog) | None, _) => {}
        }
    }

    pub(super) fn epilog_ended(&mut self, run: RunId, end: RankEnd) {
        let Some(local) = self.runs.get_mut(&run) else { return };
        if !end.is_success() {
            let output = shown_output(&local.directory.join("epilog.out"));
            local.spent.epilog_failed = Some(format!("{end}: {output}"));
        }
        local.cleaning = Some(Cleaning::Rest);
        self.order_for(run, ToRunShim::Finish);
    }

    fn cleaned(&mut self, run: RunId) {
        self.read_reports(run);
        self.watched.forget(run);
        let Some(mut local) = self.runs.remove(&run) else { return };
        local.spent.energy_joules = self.observe_end(run);
        self.places.tidy(run);
        self.happened(Happened::Cleaned { run, spent: local.spent });
        self.remove_old_folders();
    }

    /// The run shim that was finishing a run died.
    pub(super) fn finish_again(&mut self, group: &str) {
        let is_finishing = |local: &Local| matches!(local.cleaning, Some(Cleaning::Job | Cleaning::Rest));
        if self.runs.values().any(|local| local.group == group && is_finishing(local)) {
            self.finished(group, 0, 0);
        }
    }
}
