//! What becomes of decisions: gangs end early, late or not at all until they are stopped, and leave nodes
//! when it suits them.

use std::collections::BTreeMap;

use bedplate_topology::NodeId;

use super::random::Random;
use super::recount::recount;
use super::starts::{check_shrink, check_start};
use crate::{Decision, Event, GangOutcome, JobId, Scheduler, Span, Then, Time};

pub(super) struct World {
    pub(super) scheduler: Scheduler,
    pub(super) now: Time,
    pub(super) random: Random,
    /// Every event and every decision, in order.
    pub(super) log: Vec<String>,
    ends: BTreeMap<JobId, (Time, GangOutcome)>,
    departures: Vec<Departure>,
}

/// When an elastic gang will have left the nodes that it was told to leave.
struct Departure {
    at: Time,
    job: JobId,
    nodes: Vec<NodeId>,
}

impl World {
    pub(super) fn new(scheduler: Scheduler, random: Random) -> Self {
        Self {
            scheduler,
            now: Time::ZERO,
            random,
            log: Vec::new(),
            ends: BTreeMap::new(),
            departures: Vec::new(),
        }
    }

    /// Lets events happen, carries out what is decided and counts everything again.
    pub(super) fn happen(&mut self, events: Vec<Event>) {
        self.log.extend(events.iter().map(|event| format!("{:>8} {event:?}", self.now.0)));
        for event in &events {
            if let Event::Ended { job, .. } = event {
                self.ends.remove(job);
            }
        }
        let decisions = self.scheduler.apply_all(events, self.now);
        self.log.extend(decisions.iter().map(|decision| format!("         {decision:?}")));
        decisions.into_iter().for_each(|decision| self.carry_out(decision));
        recount(self);
    }

    /// Plays what is due up to a time: ends, departures and the scheduler's own wakeups.
    pub(super) fn pass_until(&mut self, until: Time, most_events: u32) {
        for _ in 0..most_events {
            let Some(next) = self.next_due().filter(|next| *next <= until) else {
                return;
            };
            self.now = self.now.max(next);
            let events = self.due_events();
            self.happen(events);
        }
        let waits: Vec<_> = self.scheduler.jobs.iter().map(|(job, entry)| (job, &entry.wait)).collect();
        panic!("it does not come to rest before {until:?}: next is {:?}, jobs {waits:?}", self.next_due());
    }

    fn next_due(&self) -> Option<Time> {
        let ends = self.ends.values().map(|(at, _)| *at);
        let departures = self.departures.iter().map(|departure| departure.at);
        let wakeup = self.scheduler.wakeup().filter(|at| *at < Time::NEVER);
        ends.chain(departures).chain(wakeup).min()
    }

    fn due_events(&mut self) -> Vec<Event> {
        let now = self.now;
        let ended = self.ends.iter().filter(|(_, (at, _))| *at <= now);
        let mut events: Vec<Event> =
            ended.map(|(job, (_, outcome))| Event::Ended { job: *job, outcome: *outcome }).collect();
        let left = self.departures.extract_if(.., |departure| departure.at <= now);
        events.extend(left.map(|Departure { job, nodes, .. }| Event::Left { job, nodes }));
        if events.is_empty() {
            events.push(Event::Tick);
        }
        events
    }

    fn carry_out(&mut self, decision: Decision) {
        match decision {
            Decision::Start { job, shares, .. } => {
                check_start(&self.scheduler, job, &shares, self.now);
                self.expect_end(job);
            }
            Decision::Resume { job } => {
                let left = Span(1 + self.random.below(2_000_000));
                self.ends.insert(job, (self.now + left, GangOutcome::Succeeded));
            }
            Decision::Stop { job, then: Then::Suspend, .. } => {
                self.ends.remove(&job);
            }
            Decision::Stop { job, grace, .. } => {
                let late = if self.random.chance(10) { 20_000 } else { 0 };
                let left = Span(self.random.below(grace.0 + 1) + late);
                self.ends.insert(job, (self.now + left, GangOutcome::Cancelled));
            }
            Decision::Shrink { job, nodes, .. } => {
                check_shrink(&self.scheduler, job, &nodes);
                let at = self.now + Span(self.random.pick(&[0, 1000, 30_000, 45_000]));
                self.departures.push(Departure { at, job, nodes });
            }
            Decision::Grow { .. }
            | Decision::GoOnWithout { .. }
            | Decision::Swap { .. }
            | Decision::Reject { .. }
            | Decision::Disown { .. }
            | Decision::Drop { .. } => {}
        }
    }

    /// A gang that started ends within its limit, or somewhat after it if nobody stops it.
    fn expect_end(&mut self, job: JobId) {
        let limit = self.scheduler.jobs[job].request.time_limit;
        let longest = limit.0.min(4_000_000) * 5 / 4;
        let end = self.now + Span(1 + self.random.below(longest));
        let outcome =
            self.random.pick(&[GangOutcome::Succeeded, GangOutcome::Succeeded, GangOutcome::Failed]);
        self.ends.insert(job, (end, outcome));
    }
}
