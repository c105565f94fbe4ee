//! Making room: which running gangs stop or shrink for one that waits.
//!
//! Whole gangs stop, those that lose least first: the work since the last checkpoint, times their GPUs,
//! plus a restart. Nodes that an elastic gang grew into beyond what it asked for cost nothing and are given
//! up for anybody; everything else only for a higher tier or a QOS that may preempt. Free nodes count
//! first, so nobody stops who need not.

use bedplate_topology::NodeId;

use crate::cycle::{Asked, Fit};
use crate::entry::Run;
use crate::scheduler::{Claim, Scheduler};
use crate::victims::{Candidate, Runner};
use crate::{Decision, JobId, Preemption, Request, Span, StopReason, Then, Time, Wait};

impl Scheduler {
    /// Stops or shrinks others so that a gang can start soon, and says where it then stands.
    pub(crate) fn make_room(&mut self, job: JobId, now: Time) -> Option<Fit> {
        let entry = &self.jobs[&job];
        let is_limited = self.limited_by(job, entry.request.gpus()).is_some();
        if entry.classes.len() != 1 || is_limited || self.is_waiting_for_victims(job) {
            return None;
        }
        // Where one gang found nobody to move, its equals behind it find nobody either.
        let equals = (self.tier(&entry.request), entry.request.qos, entry.classes[0]);
        if self.no_room.contains(&equals) {
            return None;
        }
        self.note_next_preemption(job, now);
        let fit = self.move_others(job, now);
        if fit.is_none() && self.damped_until(job) <= now {
            self.no_room.insert(equals);
        }
        fit
    }

    fn move_others(&mut self, job: JobId, now: Time) -> Option<Fit> {
        let candidates = self.candidates(job, now);
        let longest = candidates.iter().map(|each| each.leaves_within).max()?;
        let (fit, victims) = self.cheapest_victims(job, &candidates, now + longest, now)?;
        if !self.is_worth_it(job, &victims) {
            return None;
        }
        let count = victims.len();
        // Who was suspended is gone at once and reports no end: nothing else would wake the gang.
        let is_sudden = victims.iter().any(|victim| victim.is_suspended());
        let wakes = if is_sudden { fit.at } else { fit.at.max(now + self.pause_for_nodes()) };
        let jobs = victims.iter().map(|victim| victim.job).collect();
        victims.into_iter().for_each(|victim| self.evict(victim, job, &fit.nodes[0], now));
        let entry = self.entry_mut(job);
        entry.victims = jobs;
        entry.wait = Wait::Preempting { victims: count };
        self.next_preemption = Some(self.next_preemption.map_or(wakes, |next| next.min(wakes)));
        Some(fit)
    }

    fn is_waiting_for_victims(&self, job: JobId) -> bool {
        let is_leaving = |victim: &JobId| {
            let run = self.jobs.get(victim).and_then(|entry| entry.run());
            run.is_some_and(|run| run.stopping.is_some() || !run.leaving.is_empty())
        };
        self.jobs[&job].victims.iter().any(is_leaving)
    }

    /// Those who may be moved for this gang, the cheapest first.
    fn candidates(&mut self, job: JobId, now: Time) -> Vec<Candidate> {
        let mut candidates: Vec<Candidate> = if self.may_preempt(job, now) {
            let runners = self.take_runners(now);
            let found = runners.iter().filter_map(|runner| self.candidate(runner, job, now)).collect();
            self.runners = Some(runners);
            found
        } else {
            self.elastic_running.iter().filter_map(|other| self.surplus(*other)).collect()
        };
        let per_node = |each: &Candidate| each.cost / (each.nodes.len() as u128).max(1);
        candidates.sort_by_cached_key(|each| (per_node(each), each.job));
        candidates
    }

    /// What a running gang leaves for another.
    fn candidate(&self, runner: &Runner, for_job: JobId, now: Time) -> Option<Candidate> {
        let may_go = runner.settled <= now && self.is_outranked(runner, for_job);
        if may_go { runner.for_higher.clone() } else { runner.for_anybody.clone() }
    }

    /// Until when a gang may not move others: the longer the more often it failed.
    fn damped_until(&self, job: JobId) -> Time {
        let entry = &self.jobs[&job];
        let damping = Span(self.settings.preemption.damping.0.saturating_mul(1 << entry.restarts.min(20)));
        if entry.restarts > 0 { entry.returned + damping.min(Span::FOREVER) } else { Time::ZERO }
    }

    /// Remembers when the gang could move others, or others could be moved for it, if not yet.
    fn note_next_preemption(&mut self, job: JobId, now: Time) {
        if !self.ranks_above_others(job) {
            return;
        }
        let runners = self.take_runners(now);
        let unsettled = runners.iter().filter(|runner| runner.settled > now);
        let settled = unsettled.filter(|runner| self.is_outranked(runner, job)).map(|runner| runner.settled);
        let times = settled.chain([self.damped_until(job)]).chain(self.next_preemption);
        let next = times.filter(|time| *time > now && *time < Time::NEVER).min();
        self.next_preemption = next.map(|time| time.max(now + self.pause_for_nodes()));
        self.runners = Some(runners);
    }

    fn ranks_above_others(&self, job: JobId) -> bool {
        let request = &self.jobs[&job].request;
        let has_lower_tier =
            self.settings.partitions.iter().any(|partition| partition.tier < self.tier(request));
        let preempts = !self.settings.qos[usize::from(request.qos.0)].preempts.is_empty();
        self.settings.preemption.is_allowed && (has_lower_tier || preempts)
    }

    fn may_preempt(&self, job: JobId, now: Time) -> bool {
        self.ranks_above_others(job) && self.damped_until(job) <= now
    }

    pub(crate) fn tier(&self, request: &Request) -> u16 {
        self.settings.partitions[usize::from(request.partition.0)].tier
    }

    /// Whether a running gang may be moved for another. Whoever would stand before that one in the queue would
    /// only come back and take the nodes again.
    fn is_outranked(&self, runner: &Runner, by: JobId) -> bool {
        let high = &self.jobs[&by];
        if runner.tier < self.tier(&high.request) {
            return true;
        }
        let preempts = &self.settings.qos[usize::from(high.request.qos.0)].preempts;
        preempts.contains(&runner.qos) && runner.rank > high.rank && self.borrows_less(by, runner.job)
    }

    /// Whether a waiting gang stands before a running one as far as quotas go.
    fn borrows_less(&self, waiting: JobId, running: JobId) -> bool {
        let queues = &self.settings.queues;
        if queues.is_empty() {
            return true;
        }
        // By the share that put it behind: gangs before it count there that have not started yet.
        let placed = self.borrowers.get(&waiting).copied();
        let asked = self.quota_asked(waiting).filter(|asked| asked.borrows(queues));
        let Some(share) = placed.or_else(|| Some(asked?.share(queues))) else {
            return true;
        };
        let holds = self.quota_asked(running).map(|asked| Asked { gpus: 0, ..asked });
        holds.is_some_and(|holds| holds.borrows(queues) && share < holds.share(queues))
    }

    /// No cascade for one small gang: few victims, and not many more GPUs than are needed.
    fn is_worth_it(&self, job: JobId, victims: &[Candidate]) -> bool {
        let rules = &self.settings.preemption;
        let stopped: Vec<&Candidate> = victims.iter().filter(|victim| !victim.shrinks).collect();
        let gpus: u64 = stopped.iter().filter_map(|victim| self.jobs[&victim.job].run()).map(Run::gpus).sum();
        let needed = self.jobs[&job].request.gpus().max(1);
        stopped.len() <= rules.most_victims && gpus as f64 <= needed as f64 * rules.most_waste
    }

    fn evict(&mut self, victim: Candidate, for_job: JobId, wanted: &[u32], now: Time) {
        if victim.shrinks {
            return self.shrink(victim.job, &victim.nodes, wanted, for_job, now);
        }
        match self.jobs[&victim.job].request.preemption {
            Preemption::Suspend => self.suspend(victim.job, for_job, now),
            _ => self.stop(victim.job, StopReason::PreemptedBy(for_job), Then::Requeue, now),
        }
    }

    /// Asks an elastic gang to leave the wanted nodes, and as many more as its step demands.
    fn shrink(&mut self, job: JobId, removable: &[u32], wanted: &[u32], for_job: JobId, now: Time) {
        let grace = self.settings.elastic.leave_within;
        let step = self.jobs[&job].request.elastic().map_or(1, |elastic| elastic.step.max(1)) as usize;
        let (mut nodes, others): (Vec<u32>, Vec<u32>) =
            removable.iter().partition(|node| wanted.contains(node));
        let count = nodes.len().next_multiple_of(step).min(removable.len());
        nodes.extend(others.into_iter().take(count - nodes.len()));
        let nodes: Vec<NodeId> = nodes.into_iter().map(NodeId).collect();
        self.runners = None;
        self.entry_mut(job).run_mut().expect("it runs").leaving.clone_from(&nodes);
        self.await_departure(job, now);
        self.decisions.push(Decision::Shrink { job, nodes, grace, for_job: Some(for_job) });
    }

    /// A queue that is within its own quota takes back what others borrowed. The gang starts once they are gone.
    pub(crate) fn reclaim(&mut self, job: JobId, now: Time) {
        let request = &self.jobs[&job].request;
        let Some(queue) = request.queue.filter(|_| self.settings.preemption.is_allowed) else {
            return;
        };
        let kind = self.quota_kind(request);
        let asked = request.gpus();
        let is_entitled = !self.settings.queues.borrows(queue, &kind, asked);
        let breaks_other_limit = self.ledger.broken_by(request, asked, &self.settings).is_some();
        if !is_entitled || breaks_other_limit || self.is_waiting_for_victims(job) {
            return;
        }
        let mut missing = asked.saturating_sub(self.settings.queues.available(queue, &kind));
        let mut victims = Vec::new();
        for borrower in self.borrowers(&kind, now) {
            if missing == 0 {
                break;
            }
            missing = missing.saturating_sub(self.jobs[&borrower].run().map_or(0, Run::gpus));
            victims.push(borrower);
        }
        if missing == 0 {
            for victim in &victims {
                self.stop(*victim, StopReason::PreemptedBy(job), Then::Requeue, now);
            }
            self.entry_mut(job).victims = victims;
            self.claims.insert(job, Claim { kind, gpus: asked });
        }
    }

    /// Gangs of queues that use more than their own, from the queue with the largest share down.
    fn borrowers(&self, kind: &str, now: Time) -> Vec<JobId> {
        let queues = &self.settings.queues;
        let mut borrowers: Vec<(f64, u128, JobId)> = Vec::new();
        for (job, entry) in &self.jobs {
            let Some((queue, run)) = entry.request.queue.zip(entry.run()) else {
                continue;
            };
            let may_go = run.stopping.is_none()
                && entry.request.preemption != Preemption::Never
                && now.since(run.started) >= entry.request.minimum_run_time;
            if may_go && self.quota_kind(&entry.request) == kind && queues.borrows(queue, kind, 0) {
                let share = queues.dominant_share(queue, kind, 0);
                borrowers.push((share, self.cost(run, now), *job));
            }
        }
        borrowers.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2)));
        borrowers.into_iter().map(|(_, _, job)| job).collect()
    }
}
