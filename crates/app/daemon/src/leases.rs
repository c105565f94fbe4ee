//! Leases of agents, renewed where heartbeats arrive: no decision of the control plane can hold them up.
//!
//! An answered heartbeat promises that the control plane will not give the node up for a while. So what was heard here
//! counts there: before it looks for silent nodes it takes over what each link last said, and a link that has been silent for
//! too long gets no answer from that moment on.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bedplate_control::LinkId;
use bedplate_gangs::{Span, Time};

use crate::clock::Clock;

#[derive(Debug)]
pub(crate) struct Leases {
    clock: Arc<Clock>,
    silence: Span,
    links: Mutex<BTreeMap<LinkId, Lease>>,
}

#[derive(Debug)]
struct Lease {
    heard: Time,
    /// Its heartbeats are answered.
    is_renewed: bool,
    /// A heartbeat waits for the control plane: what the next one says would be the same, or newer.
    is_queued: bool,
}

impl Leases {
    pub(crate) fn new(clock: Arc<Clock>, silence: Span) -> Self {
        Self { clock, silence, links: Mutex::default() }
    }

    pub(crate) fn open(&self, link: LinkId) {
        let lease = Lease { heard: self.clock.now(), is_renewed: true, is_queued: false };
        self.links().insert(link, lease);
    }

    pub(crate) fn close(&self, link: LinkId) {
        self.links().remove(&link);
    }

    /// The agent said something. True when a heartbeat may be answered.
    pub(crate) fn hear(&self, link: LinkId) -> bool {
        let now = self.clock.now();
        let mut links = self.links();
        let Some(lease) = links.get_mut(&link).filter(|lease| lease.is_renewed) else {
            return false;
        };
        lease.heard = now;
        true
    }

    /// Whether a heartbeat is to be passed on; until it [was](Self::dequeue) no further one is.
    pub(crate) fn enqueue(&self, link: LinkId) -> bool {
        let mut links = self.links();
        links.get_mut(&link).is_some_and(|lease| !std::mem::replace(&mut lease.is_queued, true))
    }

    pub(crate) fn dequeue(&self, link: LinkId) {
        if let Some(lease) = self.links().get_mut(&link) {
            lease.is_queued = false;
        }
    }

    /// How long ago each link was heard. Those for whom that is too long are about to be given up.
    pub(crate) fn ages(&self, now: Time) -> Vec<(LinkId, Span)> {
        let mut links = self.links();
        let mut ages = Vec::with_capacity(links.len());
        for (link, lease) in links.iter_mut() {
            let age = now.since(lease.heard);
            lease.is_renewed &= age < self.silence;
            ages.push((*link, age));
        }
        ages
    }

    fn links(&self) -> MutexGuard<'_, BTreeMap<LinkId, Lease>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: LinkId = LinkId(1);

    #[test]
    fn a_link_that_was_silent_for_too_long_is_not_answered_any_more() {
        let clock = Arc::new(Clock::start());
        let leases = Leases::new(clock.clone(), Span::hours(1));
        assert!(!leases.hear(LINK), "it is not open");
        leases.open(LINK);
        assert!(leases.hear(LINK));
        let soon = clock.now() + Span::minutes(59);
        assert!(leases.ages(soon)[0].1 < Span::hours(1) && leases.hear(LINK));
        let late = clock.now() + Span::hours(2);
        assert!(leases.ages(late)[0].1 >= Span::hours(1));
        assert!(!leases.hear(LINK), "the control plane gives it up");
    }

    #[test]
    fn one_heartbeat_of_a_link_waits_at_a_time() {
        let leases = Leases::new(Arc::new(Clock::start()), Span::seconds(3));
        leases.open(LINK);
        assert_eq!([leases.enqueue(LINK), leases.enqueue(LINK)], [true, false]);
        leases.dequeue(LINK);
        assert!(leases.enqueue(LINK));
        leases.close(LINK);
        assert!(!leases.enqueue(LINK));
    }
}
