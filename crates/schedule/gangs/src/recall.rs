//! All that a scheduler knows, as events for the one that takes its place.
//!
//! A control plane that is started again makes a scheduler of the same cluster and settings and applies, all
//! at once: the state of nodes, how jobs ended, the usage, the gangs that run and the jobs that wait. Only
//! reservations are not carried over; they are made anew in order of priority, as in any cycle, and may be on
//! other nodes than before.

use std::collections::BTreeMap;

use bedplate_topology::NodeId;

use crate::adopt::{Adopted, AdoptedState, Leaving};
use crate::jobs::{EntryState, GangRun, JobEntry};
use crate::scheduler::Scheduler;
use crate::{Event, GangRequest, History, Maintenance, Time};

impl Scheduler {
    /// What a new scheduler must be told to go on where this one stands, in this order and in one
    /// [`apply_all`](Scheduler::apply_all).
    pub fn recall(&self) -> Vec<Event> {
        let mut events = self.recall_nodes();
        let ended = self.dependencies.outcomes();
        events.extend(ended.map(|(job, outcome)| Event::Known { job, outcome }));
        events.extend(self.accounting.usage().records().map(Event::Used));
        events.extend(self.accounting.learned().map(Event::Learned));
        events.extend(self.jobs.iter().map(|(_, entry)| match &entry.state {
            EntryState::Running(run) => {
                Event::Adopt(Box::new(self.recall_run(entry, run, adopted_state(run))))
            }
            EntryState::Suspended(run) => {
                Event::Adopt(Box::new(self.recall_run(entry, run, AdoptedState::Suspended)))
            }
            EntryState::Blocked | EntryState::Queued => Event::Submit(Box::new(self.recall_request(entry))),
        }));
        events.push(Event::Guarded(self.recall_guard()));
        events
    }

    fn recall_nodes(&self) -> Vec<Event> {
        let mut events = Vec::new();
        let mut windows: BTreeMap<(&str, Time, Time), Vec<NodeId>> = BTreeMap::new();
        for node in self.fleet.cluster().nodes() {
            let orders = self.fleet.orders(node.0);
            events.extend(orders.into_iter().map(|order| Event::Node { node, order }));
            for window in self.fleet.windows(node.0) {
                windows.entry((&window.name, window.from, window.until)).or_default().push(node);
            }
        }
        events.extend(windows.into_iter().map(|((name, from, until), nodes)| {
            Event::Reserve(Maintenance { name: name.to_string(), nodes, from, until })
        }));
        events
    }

    fn recall_run(&self, entry: &JobEntry, run: &GangRun, state: AdoptedState) -> Adopted {
        let until = |node: NodeId| {
            let bookings = self.fleet.bookings(node.0).iter();
            bookings.filter(|booking| booking.job == entry.request.id).map(|booking| booking.until).max()
        };
        let leaving = run.leaving.iter().filter_map(|node| until(*node)).max();
        Adopted {
            request: self.recall_request(entry),
            shares: run.shares.clone(),
            started: run.started,
            state,
            checkpointed: Some(run.safe_at),
            ends: Some(run.ends()),
            resized: Some(run.resized),
            charged: Some(run.charged),
            leaving: leaving.map(|until| Leaving { nodes: run.leaving.clone(), until }),
        }
    }

    fn recall_request(&self, entry: &JobEntry) -> GangRequest {
        let history = History {
            submitted: entry.submitted,
            returned: entry.returned,
            restarts: entry.restarts,
            victims: entry.victims.clone(),
            has_claim: self.accounting.has_claim(entry.request.id),
        };
        GangRequest { history: Some(history), ..entry.request.clone() }
    }
}

fn adopted_state(run: &GangRun) -> AdoptedState {
    run.stopping.map_or(AdoptedState::Runs, AdoptedState::Stops)
}
