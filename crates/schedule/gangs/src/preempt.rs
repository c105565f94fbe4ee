//! Making room: which running gangs stop or shrink for one that waits.
//!
//! Whole gangs stop, those that lose least first: the work since the last checkpoint, times their GPUs,
//! plus a restart. Nodes that an elastic gang grew into beyond what it asked for cost nothing and are given
//! up for any gang; everything else only for a higher tier or a QOS that may preempt. Free nodes are used
//! first, so no gang stops without need.

use std::sync::Arc;

use bedplate_topology::NodeId;

use crate::calendar::Alarm;
use crate::jobs::GangRun;
use crate::scheduler::Scheduler;
use crate::victims::{Runner, VictimCandidate};
use crate::view::RequestClass;
use crate::views::Fit;
use crate::{Decision, JobId, Preemption, Span, StopReason, Then, Time, Wait};

impl Scheduler {
    /// Stops or shrinks others so that a gang can start soon, and says where it then stands. Where there is no room to make for the planned
    /// size, there may be for a smaller one that was asked for.
    pub(crate) fn make_room(&mut self, job: JobId, now: Time) -> Option<Fit> {
        if self.jobs[job].classes.len() != 1 {
            return None;
        }
        let (wanted, asked) = (self.wanted_class(job), self.jobs[job].classes[0]);
        let fit = self.make_room_for(job, &wanted, now);
        if fit.is_none() && asked.nodes < wanted.nodes {
            return self.make_room_for(job, &asked, now);
        }
        fit
    }

    fn make_room_for(&mut self, job: JobId, class: &RequestClass, now: Time) -> Option<Fit> {
        let entry = &self.jobs[job];
        let gpus = u64::from(class.nodes) * u64::from(entry.request.roles[0].per_node.gpus);
        let is_limited = self.limited_by(job, gpus).is_some();
        if is_limited || self.is_waiting_for_victims(job) {
            return None;
        }
        // Where one gang found no victims, its equals behind it find none either.
        let equals = (self.settings.partition(&entry.request).tier, entry.request.qos, *class);
        if self.eviction.is_hopeless(&equals) {
            return None;
        }
        self.note_next_preemption(job, now);
        let fit = self.move_others(job, class, now);
        if fit.is_none() && self.damped_until(job) <= now {
            self.eviction.give_up(equals);
        }
        fit
    }

    fn move_others(&mut self, job: JobId, class: &RequestClass, now: Time) -> Option<Fit> {
        let candidates = self.candidates(job, now);
        let longest = candidates.iter().map(|each| each.leaves_within).max()?;
        let (fit, victims) = self.cheapest_victims(class, &candidates, now + longest, now)?;
        if !self.is_worth_it(job, &victims) {
            return None;
        }
        let count = victims.len();
        // A suspended gang is gone at once and reports no end: nothing else would wake this one.
        let is_sudden = victims.iter().any(|victim| victim.is_suspended());
        let wakes = if is_sudden { fit.at } else { fit.at.max(now + self.pause_for_nodes()) };
        let jobs = victims.iter().map(|victim| victim.job).collect();
        victims.into_iter().for_each(|victim| self.evict(victim, job, &fit.nodes[0], now));
        self.jobs.set_victims(job, jobs);
        self.jobs.set_wait(job, Wait::Preempting { victims: count });
        let next = self.calendar.get(Alarm::Preemption).map_or(wakes, |next| next.min(wakes));
        self.calendar.set(Alarm::Preemption, Some(next));
        Some(fit)
    }

    fn is_waiting_for_victims(&self, job: JobId) -> bool {
        let is_leaving = |victim: &JobId| self.jobs.run(*victim).is_some_and(GangRun::is_leaving);
        self.jobs[job].victims.iter().any(is_leaving)
    }

    /// The gangs that may be moved for this one, the cheapest first.
    fn candidates(&mut self, job: JobId, now: Time) -> Vec<VictimCandidate> {
        let mut candidates: Vec<VictimCandidate> = if self.may_preempt(job, now) {
            let runners = self.runners(now);
            runners.iter().filter_map(|runner| self.candidate(runner, job, now)).collect()
        } else {
            self.jobs.elastic().iter().filter_map(|other| self.left_for_any(*other, job, now)).collect()
        };
        let per_node = |each: &VictimCandidate| each.cost / (each.nodes.len() as u128).max(1);
        candidates.sort_by_cached_key(|each| (per_node(each), each.job));
        candidates
    }

    /// What a running gang leaves for another.
    fn candidate(&self, runner: &Runner, for_job: JobId, now: Time) -> Option<VictimCandidate> {
        let may_go = runner.settled <= now && self.is_outranked(runner, for_job);
        match may_go {
            true => runner.for_higher.clone(),
            false if self.sizes_by_goodput() => self.excess_for(runner.job, for_job, now),
            false => runner.for_any.clone(),
        }
    }

    /// What an elastic gang leaves for a gang that may not preempt it.
    fn left_for_any(&self, job: JobId, for_job: JobId, now: Time) -> Option<VictimCandidate> {
        if self.sizes_by_goodput() { self.excess_for(job, for_job, now) } else { self.surplus(job) }
    }

    /// Until when a gang may not move others. Every failure doubles the time.
    fn damped_until(&self, job: JobId) -> Time {
        let entry = &self.jobs[job];
        let damping = Span(self.settings.preemption.damping.0.saturating_mul(1 << entry.restarts.min(20)));
        if entry.restarts > 0 { entry.returned + damping.min(Span::FOREVER) } else { Time::ZERO }
    }

    /// Remembers when the gang could move others, or others could be moved for it, if not yet.
    fn note_next_preemption(&mut self, job: JobId, now: Time) {
        if !self.ranks_above_others(job) {
            return;
        }
        let runners = self.runners(now);
        let unsettled = runners.iter().filter(|runner| runner.settled > now);
        let settled = unsettled.filter(|runner| self.is_outranked(runner, job)).map(|runner| runner.settled);
        let times = settled.chain([self.damped_until(job)]).chain(self.calendar.get(Alarm::Preemption));
        let next = times.filter(|time| *time > now && *time < Time::NEVER).min();
        let next = next.map(|time| time.max(now + self.pause_for_nodes()));
        self.calendar.set(Alarm::Preemption, next);
    }

    fn ranks_above_others(&self, job: JobId) -> bool {
        let request = &self.jobs[job].request;
        let tier = self.settings.partition(request).tier;
        let has_lower_tier = self.settings.partitions.iter().any(|partition| partition.tier < tier);
        let preempts = !self.settings.qos(request).preempts.is_empty();
        self.settings.preemption.is_allowed && (has_lower_tier || preempts)
    }

    fn may_preempt(&self, job: JobId, now: Time) -> bool {
        self.ranks_above_others(job) && self.damped_until(job) <= now
    }

    /// Whether a running gang may be moved for another. A gang that would come before that one in the queue
    /// would only take the nodes again.
    fn is_outranked(&self, runner: &Runner, by: JobId) -> bool {
        let high = &self.jobs[by];
        if runner.tier < self.settings.partition(&high.request).tier {
            return true;
        }
        self.settings.qos(&high.request).preempts.contains(&runner.qos)
            && runner.rank > high.rank
            && self.accounting.borrows_less(&high.request, &self.jobs[runner.job].request)
    }

    /// No cascade for one small gang: few victims, and not many more GPUs than are needed.
    fn is_worth_it(&self, job: JobId, victims: &[VictimCandidate]) -> bool {
        let rules = &self.settings.preemption;
        let stopped: Vec<&VictimCandidate> = victims.iter().filter(|victim| !victim.shrinks).collect();
        let gpus: u64 =
            stopped.iter().filter_map(|victim| self.jobs[victim.job].run()).map(GangRun::gpus).sum();
        let needed = self.jobs[job].request.gpus().max(1);
        stopped.len() <= rules.most_victims && gpus as f64 <= needed as f64 * rules.most_waste
    }

    fn evict(&mut self, victim: VictimCandidate, for_job: JobId, wanted: &[u32], now: Time) {
        if victim.shrinks {
            let wanted = self.wanted_and_planned(&victim, wanted);
            return self.shrink(victim.job, &victim.nodes, &wanted, for_job, now);
        }
        match self.jobs[victim.job].request.preemption {
            Preemption::Suspend => self.suspend(victim.job, for_job, now),
            _ => self.stop(victim.job, StopReason::PreemptedBy(for_job), Then::Requeue, now),
        }
    }

    /// Asks an elastic gang to leave the wanted nodes, and as many more as its step demands.
    pub(crate) fn shrink(
        &mut self,
        job: JobId,
        removable: &[u32],
        wanted: &[u32],
        for_job: JobId,
        now: Time,
    ) {
        let grace = self.settings.elastic.leave_within;
        let step = self.jobs[job].request.elastic().map_or(1, |elastic| elastic.step.max(1)) as usize;
        let (mut nodes, others): (Vec<u32>, Vec<u32>) =
            removable.iter().partition(|node| wanted.contains(node));
        let count = nodes.len().next_multiple_of(step).min(removable.len());
        nodes.extend(others.into_iter().take(count - nodes.len()));
        let nodes: Vec<NodeId> = nodes.into_iter().map(NodeId).collect();
        self.jobs.run_mut(job).expect("it runs").leaving.clone_from(&nodes);
        self.await_departure(job, now);
        self.decisions.push(Decision::Shrink { job, nodes, grace, for_job: Some(for_job) });
    }

    /// A queue that is within its own quota takes back what others borrowed. The gang starts once they are gone.
    pub(crate) fn reclaim(&mut self, job: JobId, now: Time) {
        if !self.settings.preemption.is_allowed || self.is_waiting_for_victims(job) {
            return;
        }
        let reclaimable = self.accounting.reclaimable(&self.jobs[job].request, &self.settings);
        let Some((asked, mut missing)) = reclaimable else {
            return;
        };
        let mut victims = Vec::new();
        for borrower in self.borrowers(&asked.kind, now).iter().copied() {
            if missing == 0 {
                break;
            }
            missing = missing.saturating_sub(self.jobs.run(borrower).map_or(0, GangRun::gpus));
            victims.push(borrower);
        }
        if missing == 0 {
            for victim in &victims {
                self.stop(*victim, StopReason::PreemptedBy(job), Then::Requeue, now);
            }
            self.jobs.set_victims(job, victims);
            self.accounting.claim(job, asked);
        }
    }

    /// Gangs of queues that use more than their own, from the queue with the largest share down.
    fn borrowers(&mut self, kind: &str, now: Time) -> Arc<[JobId]> {
        let changes = self.jobs.changes();
        if let Some(known) = self.eviction.borrowers(kind, changes) {
            return known;
        }
        let mut borrowers: Vec<(f64, u128, JobId)> = Vec::new();
        for (_, job) in self.jobs.ends() {
            let (job, entry) = (*job, &self.jobs[*job]);
            let Some(run) = entry.run() else {
                continue;
            };
            let may_go = run.stopping.is_none()
                && entry.request.preemption != Preemption::Never
                && now.since(run.started) >= entry.request.minimum_run_time;
            let borrowed =
                self.accounting.borrowed(&entry.request).filter(|(held, _)| may_go && held == kind);
            borrowers.extend(borrowed.map(|(_, share)| (share, self.cost(run, now), job)));
        }
        borrowers.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2)));
        let borrowers: Arc<[JobId]> = borrowers.into_iter().map(|(_, _, job)| job).collect();
        self.eviction.note_borrowers(kind, changes, Arc::clone(&borrowers));
        borrowers
    }
}
