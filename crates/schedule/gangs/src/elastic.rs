//! Gangs that change their size: smaller at the start, larger while nodes idle, smaller again for others.
//!
//! Sizes are compared by predicted throughput. A gang grows only into nodes that are reserved for no other before
//! it ends, and only while another node still brings a fair part of what a node should bring.

use std::collections::BTreeMap;
use std::ops::Range;

use bedplate_topology::NodeId;

use crate::admission::rounded;
use crate::calendar::Alarm;
use crate::find::Horizon;
use crate::jobs::GangRun;
use crate::scheduler::Scheduler;
use crate::view::{NodeSetRule, RequestClass};
use crate::views::Fit;
use crate::{Decision, GangOutcome, JobId, NodeShare, Span, StartReason, Time};

impl Scheduler {
    /// Starts an elastic gang with fewer nodes than it asked for where that ends before waiting would.
    pub(crate) fn start_smaller(&mut self, job: JobId, waiting: Option<&Fit>, now: Time) -> bool {
        let request = &self.jobs[job].request;
        let Some(elastic) = self.elastic_range(request) else {
            return false;
        };
        let asked = request.nodes();
        let done_waiting = waiting.map(|fit| fit.at + request.time_limit);
        let sizes: Vec<u32> = elastic.sizes().take_while(|size| *size < asked).collect();
        for size in sizes.into_iter().rev() {
            let length = self.planned_length(job, size);
            if done_waiting.is_some_and(|done| now + length >= done) {
                return false;
            }
            let gpus = u64::from(size) * u64::from(self.jobs[job].request.roles[0].per_node.gpus);
            if self.limited_by(job, gpus).is_some() {
                continue;
            }
            let length = rounded(length, self.settings.backfill.resolution);
            let class = RequestClass { nodes: size, length, ..self.jobs[job].classes[0] };
            if let Some(fit) = self.find_class(&class, Horizon::Now, now) {
                self.start(job, &fit.nodes, now, StartReason::Smaller { nodes: size, asked });
                return true;
            }
        }
        false
    }

    /// Gives idle nodes to the elastic gangs that make most of them, one step each.
    pub(crate) fn grow(&mut self, now: Time) {
        self.calendar.set(Alarm::Growth, None);
        if self.sizes_by_goodput() {
            return self.grow_as_planned(now);
        }
        if self.jobs.elastic().is_empty()
            || !self.settings.elastic.is_allowed
            || self.fleet.free_gpus(now) == 0
        {
            return;
        }
        let gains = self.jobs.elastic().iter().filter_map(|job| Some((self.gain(*job, now)?, *job)));
        let mut keenest: Vec<(f64, JobId)> = gains.collect();
        keenest.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let mut too_long: BTreeMap<RequestClass, Span> = BTreeMap::new();
        for (_, job) in keenest {
            // Asked again: a gang before it may have taken the last of what limits and quotas leave.
            if self.is_allowed_a_step(job) {
                self.grow_by_a_step(job, &mut too_long, now);
            }
        }
        self.note_next_growth(now);
    }

    /// When a gang has kept its size for long enough to grow again.
    fn note_next_growth(&mut self, now: Time) {
        let settle = self.settings.elastic.settle;
        let runs = self.jobs.elastic().iter().filter_map(|job| {
            let entry = &self.jobs[*job];
            let run = entry.run()?;
            let can =
                entry.request.elastic().is_some_and(|elastic| run.nodes() + elastic.step <= elastic.max);
            can.then_some(run.resized + settle)
        });
        let earliest = runs.filter(|time| *time > now).min();
        // Where there are many, those that settled meanwhile are considered together.
        let together = if self.jobs.elastic().len() > 16 { settle } else { Span::ZERO };
        self.calendar.set(Alarm::Growth, earliest.map(|time| time.max(now + together)));
    }

    /// What each node of another step brings, over what a node brings at the size asked for.
    fn gain(&self, job: JobId, now: Time) -> Option<f64> {
        let rules = &self.settings.elastic;
        let request = &self.jobs[job].request;
        let run = self.jobs[job].run()?;
        let elastic = request.elastic()?;
        let (size, step) = (run.nodes(), elastic.step.max(1));
        let is_settled =
            now.since(run.resized) >= rules.settle || run.nodes() < request.nodes() && run.resized < now;
        let can = !run.is_leaving() && elastic.max.saturating_sub(size) >= step;
        if !is_settled || !can || !self.is_allowed_a_step(job) {
            return None;
        }
        let brings =
            (request.speed(size + step) - request.speed(size)) * f64::from(request.nodes()) / f64::from(step);
        (brings >= rules.least_gain).then_some(brings)
    }

    /// Whether limits and quotas leave room for another step.
    fn is_allowed_a_step(&self, job: JobId) -> bool {
        let request = &self.jobs[job].request;
        let step = request.elastic().map_or(1, |elastic| elastic.step.max(1));
        let more = u64::from(step) * u64::from(request.roles[0].per_node.gpus);
        self.accounting.allows_more(request, more, &self.settings)
    }

    /// `too_long` holds for every shape the shortest time for which no nodes were free.
    fn grow_by_a_step(&mut self, job: JobId, too_long: &mut BTreeMap<RequestClass, Span>, now: Time) {
        let entry = &self.jobs[job];
        let run = entry.run().expect("it runs");
        let step = entry.request.elastic().map_or(1, |elastic| elastic.step.max(1));
        let rule = match entry.classes[0].rule {
            NodeSetRule::Spread { .. } => NodeSetRule::Anywhere,
            other => other,
        };
        let class = RequestClass { nodes: step, length: run.ends().since(now), rule, ..entry.classes[0] };
        let shape = RequestClass { length: Span::ZERO, ..class };
        if too_long.get(&shape).is_some_and(|shortest| class.length >= *shortest) {
            return;
        }
        let ends = run.ends();
        match self.nodes_to_grow_into(&class, &run.node_ids(), now) {
            Some(nodes) => self.add_nodes(job, &nodes, ends, now),
            None if rule == NodeSetRule::Anywhere => drop(too_long.insert(shape, class.length)),
            None => {}
        }
    }

    /// Free nodes besides its own, and in the same set where one is required.
    pub(crate) fn nodes_to_grow_into(
        &self,
        class: &RequestClass,
        own: &[u32],
        now: Time,
    ) -> Option<Vec<u32>> {
        let home = self.home_of(class.rule, own);
        let may_use = |node: u32| home.contains(&node) && !own.contains(&node);
        self.views.choose_now(class, &self.fleet, may_use, now)
    }

    /// Where a gang that runs may have more nodes.
    pub(crate) fn home_of(&self, rule: NodeSetRule, own: &[u32]) -> Range<u32> {
        match rule {
            NodeSetRule::OneSet { level } => self.fleet.levels()[usize::from(level)].set_of(own[0]),
            _ => 0..self.fleet.count(),
        }
    }

    pub(crate) fn add_nodes(&mut self, job: JobId, nodes: &[u32], ends: Time, now: Time) {
        self.charge(job, now);
        let mut shares = Vec::new();
        for node in nodes {
            let devices = self.fleet.book(*node, self.booking(job, 0, *node, now, ends));
            shares.push(NodeShare { node: NodeId(*node), role: 0, devices });
        }
        self.decisions.push(Decision::Grow { job, shares: shares.clone() });
        self.resize(job, now, |run| run.shares.extend(shares));
    }

    /// A gang has left nodes; without any it has ended.
    pub(crate) fn left(&mut self, job: JobId, nodes: &[NodeId], now: Time) {
        let Some(run) = self.jobs.run(job) else {
            return;
        };
        let nodes: Vec<NodeId> =
            run.shares.iter().map(|share| share.node).filter(|node| nodes.contains(node)).collect();
        if nodes.len() == run.shares.len() {
            return self.ended(job, GangOutcome::Failed, now);
        }
        self.charge(job, now);
        for node in &nodes {
            self.fleet.release(node.0, job, now);
            self.news.node_freed(*node);
        }
        self.resize(job, now, |run| {
            run.shares.retain(|share| !nodes.contains(&share.node));
            run.leaving.retain(|node| !nodes.contains(node));
        });
        self.news.plan_is_stale();
    }

    /// Changes what a gang holds; its time runs faster or slower from then on.
    fn resize(&mut self, job: JobId, now: Time, change: impl FnOnce(&mut GangRun)) {
        let Some(run) = self.jobs.run_mut(job) else {
            return;
        };
        let (gpus, nodes) = (run.gpus(), run.nodes());
        change(run);
        run.resized = now;
        let (gpus_now, nodes_now) = (run.gpus(), run.nodes());
        let (left, is_stopping) = (run.ends().since(now), run.stopping.is_some());
        let request = &self.jobs[job].request;
        let (speed, speed_now) = (request.limit_speed(nodes), request.limit_speed(nodes_now));
        let ends = now + left.times(speed / speed_now.max(f64::MIN_POSITIVE));
        self.accounting.resize(request, gpus, gpus_now);
        if !is_stopping {
            self.rebook(job, ends, now);
            self.watch_closures(job);
        }
    }
}
