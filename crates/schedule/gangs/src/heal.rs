//! Time that passes and nodes that come and go.
//!
//! A lost node is replaced inside the gang where another of the same neighbourhood is free for as long as
//! the gang runs; only otherwise does the gang stop and come back through the queue.

use std::collections::BTreeSet;

use bedplate_topology::NodeId;

use crate::calendar::Alarm;
use crate::jobs::EntryState;
use crate::scheduler::{SHORTEST_GRACE, Scheduler};
use crate::view::{NodeSetRule, RequestClass};
use crate::{
    Closeness, Decision, GangOutcome, JobId, Maintenance, NodeOrder, NodeShare, StopReason, Then, Time,
};

impl Scheduler {
    /// Brings time-bound things up to `now`.
    pub(crate) fn advance(&mut self, now: Time) {
        self.save_from_lost_nodes(now);
        self.admit_some(now);
        while let Some((_, job)) = self.jobs.ends().first().copied().filter(|(time, _)| *time <= now) {
            self.time_is_up(job, now);
        }
        while let Some(job) = self.calendar.departures.take_due(now) {
            self.await_departure(job, now);
        }
        while let Some(job) = self.calendar.begins.take_due(now) {
            self.admit(job, now);
        }
        if self.calendar.is_due(Alarm::Closure, now) {
            self.fleet.forget_closures(now);
            self.views.forget_now();
            self.closures_changed(now);
        }
        if self.calendar.is_due(Alarm::Preemption, now) {
            self.calendar.set(Alarm::Preemption, None);
            self.news.plan_is_wrong();
        }
        while let Some((job, node)) = self.calendar.evictions.take_due(now) {
            self.leave_closing_node(job, node, now);
        }
    }

    fn closures_changed(&mut self, now: Time) {
        self.calendar.set(Alarm::Closure, self.fleet.next_closure_change(now));
        self.news.plan_is_wrong();
    }

    /// The limit is reached, or a stopping gang has not gone: it gets its grace, again and again.
    fn time_is_up(&mut self, job: JobId, now: Time) {
        let is_stopping = self.jobs.run(job).is_some_and(|run| run.stopping.is_some());
        if is_stopping {
            let grace = self.jobs[job].request.grace.max(SHORTEST_GRACE);
            self.rebook(job, now + grace, now);
        } else {
            self.stop(job, StopReason::TimeLimit, Then::End(GangOutcome::TimedOut), now);
        }
    }

    /// Nodes that an elastic gang has not left count as taken a little longer, again and again.
    pub(crate) fn await_departure(&mut self, job: JobId, now: Time) {
        let leaving = self.jobs.run(job).map(|run| run.leaving.clone());
        let Some(leaving) = leaving.filter(|nodes| !nodes.is_empty()) else {
            return;
        };
        let until = now + self.settings.elastic.leave_within.max(SHORTEST_GRACE);
        for node in leaving {
            self.fleet.rebook_until(node.0, job, until, now);
        }
        self.calendar.departures.add(until, job);
    }

    pub(crate) fn node_ordered(&mut self, node: NodeId, order: NodeOrder, now: Time) {
        if node.0 >= self.fleet.count() {
            return;
        }
        match order {
            NodeOrder::Resume => self.fleet.resume(node.0, now),
            NodeOrder::Drain => self.fleet.drain(node.0, now),
            NodeOrder::JoinsAt(at) => self.fleet.joins_at(node.0, at, now),
            NodeOrder::Fail => {
                self.fleet.fail(node.0, now);
                self.gangs_to_save(node).into_iter().for_each(|job| self.save(job, node, now));
            }
            NodeOrder::LeavesAt(at) => {
                self.fleet.leaves_at(node.0, at, now);
                self.gangs_to_save(node).into_iter().for_each(|job| self.watch_closures(job));
            }
        }
        self.closures_changed(now);
        self.news.node_freed(node);
    }

    pub(crate) fn maintain(&mut self, maintenance: &Maintenance, now: Time) {
        let count = self.fleet.count();
        for node in maintenance.nodes.iter().filter(|node| node.0 < count) {
            self.fleet.close(node.0, &maintenance.name, maintenance.from.max(now), maintenance.until);
            self.gangs_to_save(*node).into_iter().for_each(|job| self.watch_closures(job));
        }
        self.closures_changed(now);
    }

    pub(crate) fn end_maintenance(&mut self, name: &str, now: Time) {
        for node in 0..self.fleet.count() {
            self.fleet.reopen(node, name, now);
        }
        self.closures_changed(now);
    }

    /// The gangs on a node, each once although two roles of one may stand there.
    fn gangs_to_save(&self, node: NodeId) -> BTreeSet<JobId> {
        self.gangs_on(node).collect()
    }

    /// Notes when a running gang must leave a node that closes before its end: every such time, as the first
    /// may be called off.
    pub(crate) fn watch_closures(&mut self, job: JobId) {
        let entry = &self.jobs[job];
        let Some(run) = entry.run() else {
            return;
        };
        for share in &run.shares {
            let closings = self.fleet.closings(share.node.0, run.started);
            for closes in closings.filter(|closes| *closes < run.ends()) {
                self.calendar.evictions.add(closes - entry.request.grace, (job, share.node));
            }
        }
    }

    fn leave_closing_node(&mut self, job: JobId, node: NodeId, now: Time) {
        let still_there = self.jobs.run(job).is_some_and(|run| {
            let grace = self.jobs[job].request.grace;
            let closes = self.fleet.closes_after(node.0, run.started);
            run.stopping.is_none()
                && run.shares.iter().any(|share| share.node == node)
                && closes.is_some_and(|closes| closes <= now + grace && closes < run.ends())
        });
        if still_there {
            self.stop(job, StopReason::NodeLeaves(node), Then::Requeue, now);
        }
    }

    /// Replaces a lost node inside the gang, or stops the gang.
    pub(crate) fn save(&mut self, job: JobId, node: NodeId, now: Time) {
        if matches!(self.jobs[job].state, EntryState::Suspended(_)) {
            return self.lose_suspended(job, now);
        }
        let run = self.jobs.run(job).expect("a gang on a node runs or is suspended");
        if run.leaving.contains(&node) {
            return self.left(job, &[node], now);
        }
        if run.stopping.is_none() && (self.swap(job, node, now) || self.go_on_without(job, node, now)) {
            return;
        }
        let then =
            if self.jobs[job].request.is_requeued { Then::Requeue } else { Then::End(GangOutcome::NodeLost) };
        self.stop(job, StopReason::NodeLost(node), then, now);
    }

    /// A suspended gang lost a node, and with it what it had in memory.
    fn lose_suspended(&mut self, job: JobId, now: Time) {
        self.forget_suspended(job, now);
        self.come_back_or_end(job, now);
    }

    /// What becomes of a gang that has lost what it cannot go on without.
    pub(crate) fn come_back_or_end(&mut self, job: JobId, now: Time) {
        if self.jobs[job].request.is_requeued {
            self.jobs.count_restart(job);
            self.come_back(job, now);
        } else {
            self.decisions.push(Decision::Drop { job, outcome: GangOutcome::NodeLost });
            self.finish(job, GangOutcome::NodeLost, now);
        }
    }

    fn swap(&mut self, job: JobId, lost: NodeId, now: Time) -> bool {
        let entry = &self.jobs[job];
        let run = entry.run().expect("it runs");
        // Two roles of a gang may share a node: those are not replaced one by one.
        let mut on_lost = run.shares.iter().filter(|share| share.node == lost);
        let (Some(share), None) = (on_lost.next().cloned(), on_lost.next()) else {
            return false;
        };
        if !entry.request.is_requeued || entry.request.roles[usize::from(share.role)].gpu_share.is_some() {
            return false;
        }
        let ends = run.ends();
        let Some(replacement) = self.spare_for(job, &share, ends, now) else {
            return false;
        };
        self.fleet.release(lost.0, job, now);
        let devices =
            self.fleet.book(replacement, self.booking(job, usize::from(share.role), replacement, now, ends));
        let new = NodeShare { node: NodeId(replacement), role: share.role, devices };
        self.jobs.count_restart(job);
        let run = self.jobs.run_mut(job).expect("it runs");
        run.shares.iter_mut().filter(|share| share.node == lost).for_each(|share| *share = new.clone());
        self.decisions.push(Decision::Swap { job, lost: vec![lost], shares: vec![new] });
        true
    }

    /// An elastic gang whose ranks survive a loss gets smaller where nobody can take the place.
    fn go_on_without(&mut self, job: JobId, lost: NodeId, now: Time) -> bool {
        let entry = &self.jobs[job];
        let smaller = entry.run().expect("it runs").nodes() - 1;
        let may = entry.request.survives
            && self.elastic_range(&entry.request).is_some_and(|elastic| elastic.allows(smaller));
        if may {
            self.left(job, &[lost], now);
            self.decisions.push(Decision::GoOnWithout { job, lost });
        }
        may
    }

    /// A node in the same neighbourhood that is free for as long as the gang still has.
    fn spare_for(&self, job: JobId, share: &NodeShare, ends: Time, now: Time) -> Option<u32> {
        let entry = &self.jobs[job];
        let run = entry.run()?;
        let nodes = run.node_ids();
        let home = match entry.request.closeness {
            Closeness::Required(level) => self.fleet.sets(level),
            _ => self.fleet.level_of(&nodes),
        };
        let set = home.set_of(share.node.0);
        let class = entry.classes[usize::from(share.role)];
        let class = RequestClass { nodes: 1, length: ends.since(now), rule: NodeSetRule::Anywhere, ..class };
        let may_use = |node: u32| set.contains(&node) && !nodes.contains(&node);
        self.views.choose_now(&class, &self.fleet, may_use, now)?.first().copied()
    }
}
