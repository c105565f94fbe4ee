//! What happened since the last pass and since the last full cycle, and so which of them is due.

use std::collections::BTreeSet;

use bedplate_topology::NodeId;

use crate::{Backfill, JobId, Time};

#[derive(Debug, Clone, Default)]
pub(crate) struct News {
    /// Events since all reservations were made anew, which was at `last`.
    events: u64,
    last: Time,
    /// Something happened since.
    is_stale: bool,
    /// It cannot wait.
    is_urgent: bool,
    /// The caller says that there is time for what is under way.
    has_time: bool,
    /// Jobs that entered the queue since the last pass.
    arrivals: Vec<JobId>,
    /// Nodes on which something was freed since the last pass.
    freed: BTreeSet<NodeId>,
    /// Lost nodes on which adopted gangs are said to run.
    lost: BTreeSet<(JobId, NodeId)>,
}

impl News {
    pub(crate) fn count_event(&mut self) {
        self.events += 1;
    }

    /// What was planned may no longer be the best.
    pub(crate) fn plan_is_stale(&mut self) {
        self.is_stale = true;
    }

    /// The next decision is a full cycle.
    pub(crate) fn plan_is_wrong(&mut self) {
        self.is_urgent = true;
    }

    pub(crate) fn job_came(&mut self, job: JobId) {
        self.arrivals.push(job);
        self.is_stale = true;
    }

    pub(crate) fn node_freed(&mut self, node: NodeId) {
        self.freed.insert(node);
        self.is_stale = true;
    }

    pub(crate) fn node_lost(&mut self, job: JobId, node: NodeId) {
        self.lost.insert((job, node));
    }

    pub(crate) fn next_lost(&mut self) -> Option<(JobId, NodeId)> {
        self.lost.pop_first()
    }

    pub(crate) fn freed(&self) -> &BTreeSet<NodeId> {
        &self.freed
    }

    pub(crate) fn take_arrivals(&mut self) -> Vec<JobId> {
        std::mem::take(&mut self.arrivals)
    }

    /// Whether enough events came since the last cycle.
    pub(crate) fn has_events(&self, enough: u64) -> bool {
        self.events >= enough
    }

    pub(crate) fn forget_events(&mut self) {
        self.events = 0;
    }

    pub(crate) fn is_cycle_due(&self, enough_events: u64, rules: &Backfill, now: Time) -> bool {
        let is_late = now.since(self.last) >= rules.replan_after;
        self.is_urgent || self.is_stale && (self.has_events(enough_events) || is_late)
    }

    pub(crate) fn there_is_time(&mut self) {
        self.has_time = true;
    }

    pub(crate) fn has_time(&self) -> bool {
        self.has_time
    }

    /// Whether the next decision must be a full cycle, whatever is under way.
    pub(crate) fn is_urgent(&self) -> bool {
        self.is_urgent
    }

    /// When a plan that is stale is made anew although nothing else happens.
    pub(crate) fn next_cycle(&self, rules: &Backfill) -> Option<Time> {
        self.is_stale.then(|| self.last + rules.replan_after)
    }

    /// Everything is planned anew; what a pass would do with arrivals and freed nodes is still to come.
    pub(crate) fn end_cycle(&mut self, now: Time) {
        (self.events, self.last, self.is_stale, self.is_urgent) = (0, now, false, false);
    }

    pub(crate) fn end_pass(&mut self) {
        self.arrivals.clear();
        self.freed.clear();
        self.has_time = false;
    }
}
