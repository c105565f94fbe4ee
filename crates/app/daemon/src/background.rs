//! Work that takes a while – searches of the journal and of the plan, large job files – on a few threads of its own, users in turn.
//!
//! No user has more than half of the threads, so a short question finds one whatever others ask for. The threads step back: what decides and
//! what serves connections has its turn of the processor first.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use bedplate_host::{FairQueue, panics};
use bedplate_supervise::step_back;
use tokio::sync::oneshot;

use crate::error::DaemonError;
use crate::work_queue::owner;

const THREADS: usize = 4;
const OF_A_USER: usize = THREADS / 2;

type Piece = Box<dyn FnOnce() + Send>;

/// The threads end with the last of these.
#[derive(Clone)]
pub(crate) struct Background(Arc<Handle>);

struct Handle(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    has_changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: FairQueue<Arc<str>, Piece>,
    /// Threads that work for each user.
    busy: BTreeMap<Arc<str>, usize>,
    is_closed: bool,
}

/// The work panicked, or the daemon goes down.
#[derive(Debug)]
pub(crate) struct NotDone;

impl Background {
    pub(crate) fn start() -> Result<Self, DaemonError> {
        let shared = Arc::new(Shared::default());
        for _ in 0..THREADS {
            let of_thread = shared.clone();
            let thread = thread::Builder::new().name("background".into());
            thread.spawn(move || of_thread.work()).map_err(|source| DaemonError::Thread { source })?;
        }
        Ok(Self(Arc::new(Handle(shared))))
    }

    /// Has this done when the user whose request is handled has a turn.
    pub(crate) async fn work<T: Send + 'static>(
        &self,
        piece: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, NotDone> {
        let (answer, answered) = oneshot::channel();
        // Who asked may have gone.
        let piece = move || drop(answer.send(piece()));
        let user = owner().unwrap_or_else(|| "".into());
        self.0.0.state().waiting.push(user, Box::new(piece));
        self.0.0.has_changed.notify_one();
        answered.await.map_err(|_| NotDone)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.state().is_closed = true;
        self.0.has_changed.notify_all();
    }
}

impl Shared {
    fn work(&self) {
        step_back();
        while let Some((user, piece)) = self.next() {
            // A panic has been printed; who asked hears that there is no answer.
            let _ = panics::caught(piece);
            let mut state = self.state();
            if let Some(busy) = state.busy.get_mut(&user) {
                *busy -= 1;
            }
            state.busy.retain(|_, busy| *busy > 0);
            drop(state);
            // What waits may have waited for its user's turn.
            self.has_changed.notify_one();
        }
    }

    fn next(&self) -> Option<(Arc<str>, Piece)> {
        let mut state = self.state();
        loop {
            if state.is_closed {
                return None;
            }
            let State { waiting, busy, .. } = &mut *state;
            let may = |user: &Arc<str>, _: &Piece| busy.get(user).is_none_or(|busy| *busy < OF_A_USER);
            if let Some((user, piece)) = waiting.take(may) {
                *state.busy.entry(user.clone()).or_default() += 1;
                return Some((user, piece));
            }
            state = self.has_changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::work_queue::on_behalf_of;

    #[tokio::test]
    async fn whoever_asks_for_much_leaves_a_thread_for_others() {
        let background = Background::start().expect("there is room for a few threads");
        let (release, released) = mpsc::channel::<()>();
        let released = Arc::new(Mutex::new(released));
        let slow = || {
            let (background, released) = (background.clone(), released.clone());
            tokio::spawn(on_behalf_of("mallory", async move {
                let wait = move || {
                    let _ = released.lock().expect("nothing panics with it").recv();
                };
                background.work(wait).await
            }))
        };
        let asked: Vec<_> = (0..20).map(|_| slow()).collect();
        let ada = on_behalf_of("ada", background.work(|| 7)).await;
        assert!(matches!(ada, Ok(7)));
        assert!(matches!(background.work(|| 8).await, Ok(8)), "so does the daemon itself");
        drop(release);
        for each in asked {
            assert!(each.await.is_ok_and(|done| done.is_ok()));
        }
        let panicked = background.work(|| panic!("on purpose")).await;
        assert!(matches!(panicked, Err(NotDone)));
        assert!(matches!(background.work(|| 9).await, Ok(9)), "the thread lives on");
    }
}
