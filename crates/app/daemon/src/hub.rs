//! Those who watch: every notice goes to all of them, and the latest are kept for those who come back.
//!
//! A watcher that falls too far behind loses its place and is told so; nobody waits for it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bedplate_control::Notice;
use tokio::sync::broadcast;

/// A notice with its place in the stream.
#[derive(Debug)]
pub(crate) struct NumberedNotice {
    pub(crate) id: EventId,
    pub(crate) notice: Notice,
    /// The notice in JSON.
    pub(crate) data: String,
}

/// `1763200000000.12`: the stream, which begins anew when the daemon does, and the number in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EventId {
    pub(crate) stream: u64,
    pub(crate) number: u64,
}

impl std::fmt::Display for EventId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.stream, self.number)
    }
}

impl std::str::FromStr for EventId {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (stream, number) = text.split_once('.').ok_or(())?;
        Ok(Self { stream: stream.parse().map_err(|_| ())?, number: number.parse().map_err(|_| ())? })
    }
}

#[derive(Debug)]
pub(crate) struct Hub {
    stream: u64,
    kept: usize,
    ring: Mutex<Ring>,
    sender: broadcast::Sender<Arc<NumberedNotice>>,
}

#[derive(Debug, Default)]
struct Ring {
    next: u64,
    latest: VecDeque<Arc<NumberedNotice>>,
}

/// What a watcher gets: first what it missed, then what comes.
#[derive(Debug)]
pub(crate) struct Subscription {
    pub(crate) missed: Vec<Arc<NumberedNotice>>,
    /// Some of what it missed is not kept any more.
    pub(crate) has_gap: bool,
    pub(crate) coming: broadcast::Receiver<Arc<NumberedNotice>>,
}

impl Hub {
    pub(crate) fn new(stream: u64, kept: usize) -> Self {
        let (sender, _) = broadcast::channel(kept.max(1));
        Self { stream, kept, ring: Mutex::default(), sender }
    }

    pub(crate) fn publish(&self, notices: Vec<Notice>) {
        let mut ring = self.ring();
        for notice in notices {
            let data = serde_json::to_string(&notice).expect("a notice is plain data");
            let id = EventId { stream: self.stream, number: ring.next };
            let event = Arc::new(NumberedNotice { id, notice, data });
            ring.next += 1;
            if ring.latest.len() == self.kept {
                ring.latest.pop_front();
            }
            ring.latest.push_back(event.clone());
            // Nobody may be watching.
            let _ = self.sender.send(event);
        }
    }

    /// From after the event that a watcher saw last, or from now on.
    pub(crate) fn subscribe(&self, last: Option<EventId>) -> Subscription {
        let ring = self.ring();
        let coming = self.sender.subscribe();
        let Some(last) = last else {
            return Subscription { missed: Vec::new(), has_gap: false, coming };
        };
        if last.stream != self.stream {
            return Subscription { missed: ring.latest.iter().cloned().collect(), has_gap: true, coming };
        }
        let missed: Vec<Arc<NumberedNotice>> =
            ring.latest.iter().filter(|event| event.id.number > last.number).cloned().collect();
        let oldest = ring.latest.front().map_or(ring.next, |event| event.id.number);
        Subscription { missed, has_gap: oldest > last.number + 1, coming }
    }

    pub(crate) fn watchers(&self) -> usize {
        self.sender.receiver_count()
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use bedplate_control::record::JobState;

    use super::*;

    fn publish(hub: &Hub, jobs: std::ops::Range<u64>) {
        let notice = |job| Notice::Job { job, state: JobState::Waiting, at_ms: 0 };
        hub.publish(jobs.map(notice).collect());
    }

    #[test]
    fn who_comes_back_gets_what_was_missed_or_hears_of_a_gap() {
        let hub = Hub::new(7, 3);
        publish(&hub, 0..5);
        for (stream, number, missed, has_gap) in
            [(7, 4, vec![], false), (7, 2, vec![3, 4], false), (7, 1, vec![2, 3, 4], false)]
                .into_iter()
                .chain([(7, 0, vec![2, 3, 4], true), (6, 4, vec![2, 3, 4], true)])
        {
            let subscription = hub.subscribe(Some(EventId { stream, number }));
            let numbers: Vec<u64> = subscription.missed.iter().map(|event| event.id.number).collect();
            assert_eq!((numbers, subscription.has_gap), (missed, has_gap), "{stream}.{number}");
        }
        assert!(hub.subscribe(None).missed.is_empty());
    }

    #[test]
    fn event_ids_are_read_as_they_are_written() {
        let id = EventId { stream: 1_763_200_000_000, number: 12 };
        assert_eq!(id.to_string().parse(), Ok(id));
        for wrong in ["", "1", "1.", ".1", "1.x", "-1.2"] {
            assert_eq!(wrong.parse::<EventId>(), Err(()), "{wrong}");
        }
    }
}
