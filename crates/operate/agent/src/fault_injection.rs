//! Trouble on the network on request: cuts and delays, for tests and demonstrations.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Shared by the agent, which is told, and its link, which suffers.
#[derive(Debug, Clone)]
pub(crate) struct FaultInjection(Arc<Mutex<Now>>);

#[derive(Debug, Clone, Copy)]
struct Now {
    cut_until: Instant,
    delay: Duration,
    delay_until: Instant,
}

impl FaultInjection {
    pub(crate) fn none() -> Self {
        let now = Instant::now();
        Self(Arc::new(Mutex::new(Now { cut_until: now, delay: Duration::ZERO, delay_until: now })))
    }

    /// Nothing passes either way for so long. As on a real network, the connection does not notice and
    /// hands over later what it was given meanwhile.
    pub(crate) fn cut(&self, length: Duration) {
        self.change(|now| now.cut_until = Instant::now() + length);
    }

    pub(crate) fn delay(&self, by: Duration, length: Duration) {
        self.change(|now| (now.delay, now.delay_until) = (by, Instant::now() + length));
    }

    pub(crate) fn cut_until(&self) -> Instant {
        self.look().cut_until
    }

    pub(crate) async fn end_of_cut(&self) {
        let until = self.cut_until();
        if until > Instant::now() {
            sleep_until(until).await;
        }
    }

    /// When something that is sent at `instant` arrives.
    pub(crate) fn delayed(&self, instant: Instant) -> Instant {
        let now = self.look();
        if instant < now.delay_until { instant + now.delay } else { instant }
    }

    fn look(&self) -> Now {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Now)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
