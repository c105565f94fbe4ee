//! Whether the client of a request is still there: work that it alone waits for ends when it goes.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A client that may go at any time; copies are of the same one.
#[derive(Clone, Default)]
pub(crate) struct Presence(Arc<Client>);

#[derive(Default)]
struct Client {
    has_gone: AtomicBool,
    told: Mutex<Vec<Box<dyn FnOnce() + Send>>>,
}

impl fmt::Debug for Presence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Presence").field("has_gone", &self.has_gone()).finish()
    }
}

impl Presence {
    pub(crate) fn has_gone(&self) -> bool {
        self.0.has_gone.load(Ordering::Acquire)
    }

    /// Does this when the client goes, or now where it has gone.
    pub(crate) fn when_gone(&self, act: impl FnOnce() + Send + 'static) {
        let mut told = self.0.told.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.has_gone() {
            return told.push(Box::new(act));
        }
        drop(told);
        act();
    }

    pub(crate) fn end(&self) {
        let mut told = self.0.told.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.has_gone.store(true, Ordering::Release);
        let acts = std::mem::take(&mut *told);
        drop(told);
        acts.into_iter().for_each(|act| act());
    }

    /// Ends when this is dropped, as the task of a request is when its connection closes.
    pub(crate) fn held(&self) -> PresenceGuard {
        PresenceGuard(self.clone())
    }
}

pub(crate) struct PresenceGuard(Presence);

impl Drop for PresenceGuard {
    fn drop(&mut self) {
        self.0.end();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn who_waits_for_the_end_is_told_once_before_or_after_it() {
        let (presence, count) = (Presence::default(), Arc::new(AtomicUsize::new(0)));
        let tell = || {
            let count = count.clone();
            presence.when_gone(move || {
                count.fetch_add(1, Ordering::Relaxed);
            });
        };
        let held = presence.held();
        tell();
        assert!(!presence.has_gone() && count.load(Ordering::Relaxed) == 0);
        drop(held);
        assert!(presence.has_gone() && count.load(Ordering::Relaxed) == 1);
        tell();
        presence.end();
        assert_eq!(count.load(Ordering::Relaxed), 2);
    }
}
