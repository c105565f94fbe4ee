//! Making room: which running gangs stop or shrink for one that waits.
//!
//! Whole gangs stop, those that lose least first: the work since the last checkpoint, times their GPUs,
//! plus a restart. Nodes that an elastic gang grew into beyond what it asked for cost nothing and are given
//! up for anybody; everything else only for a higher tier or a QOS that may preempt. Free nodes count
//! first, so nobody stops who need not.

use std::collections::BTreeSet;

use bedplate_topology::NodeId;

use crate::cycle::{Asked, Fit};
use crate::entry::Run;
use crate::place::choose;
use crate::scheduler::{Claim, SHORTEST_GRACE, Scheduler};
use crate::view::View;
use crate::{Amount, Decision, JobId, Preemption, Request, Span, StopReason, Then, Time, Wait};

/// A running gang that could make room.
#[derive(Debug, Clone)]
struct Candidate {
    job: JobId,
    /// What it would leave: all its nodes, or those it can do without.
    nodes: Vec<u32>,
    shrinks: bool,
    /// GPU milliseconds lost.
    cost: u128,
}

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
        if candidates.is_empty() {
            return None;
        }
        let longest = candidates.iter().map(|each| self.leaving_time(each)).max()?;
        let at = now + longest;
        let (fit, victims) = self.cheapest_victims(job, &candidates, at)?;
        if !self.is_worth_it(job, &victims) {
            return None;
        }
        let count = victims.len();
        let jobs = victims.iter().map(|victim| victim.job).collect();
        victims.into_iter().for_each(|victim| self.evict(victim, job, &fit.nodes[0], now));
        let entry = self.entry_mut(job);
        entry.victims = jobs;
        entry.wait = Wait::Preempting { victims: count };
        // Who was suspended is gone at once and reports no end: nothing else would wake the gang.
        self.next_preemption = Some(self.next_preemption.map_or(fit.at, |next| next.min(fit.at)));
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
    fn candidates(&self, job: JobId, now: Time) -> Vec<Candidate> {
        let may_preempt = self.may_preempt(job, now);
        let mut candidates: Vec<Candidate> = if may_preempt {
            self.ends.iter().filter_map(|(_, other)| self.candidate(*other, job, now)).collect()
        } else {
            self.elastic_running.iter().filter_map(|other| self.surplus(*other)).collect()
        };
        let per_gpu = |each: &Candidate| each.cost / (each.nodes.len() as u128).max(1);
        candidates.sort_by_key(|each| (per_gpu(each), each.job));
        candidates
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
        let may_go = |other: &JobId| {
            let entry = &self.jobs[other];
            let time = entry.run()?.started + entry.request.minimum_run_time;
            (time > now && self.is_outranked(*other, job, now)).then_some(time)
        };
        let others = self.ends.iter().map(|(_, other)| other).filter_map(may_go);
        let times = others.chain([self.damped_until(job)]).chain(self.next_preemption);
        self.next_preemption = times.filter(|time| *time > now && *time < Time::NEVER).min();
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

    fn candidate(&self, other: JobId, for_job: JobId, now: Time) -> Option<Candidate> {
        let entry = &self.jobs[&other];
        let run = entry.run().filter(|run| run.stopping.is_none() && run.leaving.is_empty())?;
        // One of those who share a GPU frees nothing by going.
        if entry.request.roles.iter().any(|role| role.gpu_share.is_some()) {
            return None;
        }
        let has_run = now.since(run.started) >= entry.request.minimum_run_time;
        if !self.is_outranked(other, for_job, now)
            || !has_run
            || entry.request.preemption == Preemption::Never
        {
            return self.surplus(other);
        }
        if entry.request.preemption == Preemption::Shrink {
            return self.removable(other, entry.request.elastic().map_or(u32::MAX, |elastic| elastic.min));
        }
        Some(self.whole(other, run, now))
    }

    /// Whether a running gang may be moved for another. Whoever would stand before that one in the queue would
    /// only come back and take the nodes again.
    fn is_outranked(&self, other: JobId, by: JobId, now: Time) -> bool {
        let (low, high) = (&self.jobs[&other].request, &self.jobs[&by].request);
        if self.tier(low) < self.tier(high) {
            return true;
        }
        let preempts = &self.settings.qos[usize::from(high.qos.0)].preempts;
        preempts.contains(&low.qos)
            && self.rank_at(other, now) > self.jobs[&by].rank
            && self.borrows_less(by, other)
    }

    /// Whether a waiting gang stands before a running one as far as quotas go.
    fn borrows_less(&self, waiting: JobId, running: JobId) -> bool {
        let queues = &self.settings.queues;
        // By the share that put it behind: gangs before it count there that have not started yet.
        let placed = self.borrowers.get(&waiting).copied();
        let asked = self.quota_asked(waiting).filter(|asked| asked.borrows(queues));
        let Some(share) = placed.or_else(|| Some(asked?.share(queues))) else {
            return true;
        };
        let holds = self.quota_asked(running).map(|asked| Asked { gpus: 0, ..asked });
        holds.is_some_and(|holds| holds.borrows(queues) && share < holds.share(queues))
    }

    fn whole(&self, job: JobId, run: &Run, now: Time) -> Candidate {
        let lost = now.since(run.safe_at) + self.settings.preemption.restart_cost;
        let cost = u128::from(lost.0) * u128::from(run.gpus());
        let mut nodes = run.node_ids();
        nodes.sort_unstable();
        nodes.dedup();
        Candidate { job, nodes, shrinks: false, cost }
    }

    /// Nodes beyond what an elastic gang asked for.
    fn surplus(&self, job: JobId) -> Option<Candidate> {
        self.removable(job, self.jobs[&job].request.nodes())
    }

    /// The last nodes of an elastic gang, down to `keep`, in whole steps.
    fn removable(&self, job: JobId, keep: u32) -> Option<Candidate> {
        let entry = &self.jobs[&job];
        let run = entry.run().filter(|run| run.stopping.is_none() && run.leaving.is_empty())?;
        let step = entry.request.elastic()?.step.max(1);
        let steps = run.nodes().checked_sub(keep)? / step;
        let first = run.shares.len() - (steps * step) as usize;
        let nodes: Vec<u32> = run.shares[first..].iter().map(|share| share.node.0).collect();
        (!nodes.is_empty()).then_some(Candidate { job, nodes, shrinks: true, cost: 0 })
    }

    fn leaving_time(&self, candidate: &Candidate) -> Span {
        let grace = if candidate.shrinks {
            self.settings.elastic.leave_within
        } else {
            self.jobs[&candidate.job].request.grace
        };
        grace.max(SHORTEST_GRACE)
    }

    /// The fewest of the cheapest candidates with which the gang fits, and of those only the ones in its way.
    fn cheapest_victims(
        &mut self,
        job: JobId,
        candidates: &[Candidate],
        at: Time,
    ) -> Option<(Fit, Vec<Candidate>)> {
        let all = self.fits_without(job, candidates, at)?;
        let (mut low, mut high, mut best) = (0, candidates.len(), all);
        while low < high {
            let middle = (low + high) / 2;
            match self.fits_without(job, &candidates[..middle], at) {
                Some(nodes) => (high, best) = (middle, nodes),
                None => low = middle + 1,
            }
        }
        let chosen: BTreeSet<u32> = best.iter().copied().collect();
        let in_the_way = |each: &&Candidate| each.nodes.iter().any(|node| chosen.contains(node));
        let victims: Vec<Candidate> = candidates[..high].iter().filter(in_the_way).cloned().collect();
        (!victims.is_empty()).then_some((Fit { at, nodes: vec![best] }, victims))
    }

    /// Where the gang would stand if these were gone.
    fn fits_without(&mut self, job: JobId, candidates: &[Candidate], at: Time) -> Option<Vec<u32>> {
        let lent = self.held_by(candidates);
        for (node, until, amount) in &lent {
            self.fleet.plan[*node as usize].give(at, *until, *amount);
        }
        let class = self.jobs[&job].classes[0];
        let mut view = View::new(class, &self.fleet, self.eligible.get(class.eligible), at);
        let fits = view.fits_at(&self.fleet, at);
        let nodes =
            fits.then(|| choose(&self.fleet, &class, &view.openings(), self.settings.packing)).flatten();
        for (node, until, amount) in &lent {
            self.fleet.plan[*node as usize].take(at, *until, *amount);
        }
        nodes
    }

    /// What these would free, and until when they would have held it. Who is suspended keeps its memory.
    fn held_by(&self, candidates: &[Candidate]) -> Vec<(u32, Time, Amount)> {
        let mut held = Vec::new();
        for candidate in candidates {
            let is_suspended =
                !candidate.shrinks && self.jobs[&candidate.job].request.preemption == Preemption::Suspend;
            let freed = |amount: Amount| Amount {
                memory_mib: if is_suspended { 0 } else { amount.memory_mib },
                ..amount
            };
            for node in &candidate.nodes {
                let bookings = self.fleet.bookings(*node).iter();
                let own = bookings.filter(|booking| booking.job == candidate.job);
                held.extend(own.map(|booking| (*node, booking.until, freed(booking.amount))));
            }
        }
        held
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
                borrowers.push((share, self.whole(*job, run, now).cost, *job));
            }
        }
        borrowers.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2)));
        borrowers.into_iter().map(|(_, _, job)| job).collect()
    }
}
