//! What waits for the thread that decides: what agents say, and what users ask, user by user in turn.
//!
//! Whose work something is follows from the request that is being handled ([`on_behalf_of`]), so that no handler has to say it.
//! Agents have places of their own, and half of each batch at least.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bedplate_host::FairQueue;
use tokio::sync::{Notify, Semaphore};

use crate::control_thread::Work;

/// What agents have said and the thread has not heard; further messages wait on their links.
const OF_AGENTS: usize = 4_096;

tokio::task_local! {
    static OWNER: Arc<str>;
}

/// Handles a request of a user: what it asks of the thread is that user's.
pub(crate) async fn on_behalf_of<T>(user: &str, handle: impl Future<Output = T>) -> T {
    OWNER.scope(user.into(), handle).await
}

/// Whose request is being handled here.
pub(crate) fn owner() -> Option<Arc<str>> {
    OWNER.try_with(Arc::clone).ok()
}

/// The thread has ended.
#[derive(Debug)]
pub(crate) struct Closed;

pub(crate) struct WorkQueue {
    waiting: Mutex<Waiting>,
    agents: Semaphore,
    len: AtomicUsize,
    has_more: Notify,
}

#[derive(Default)]
struct Waiting {
    /// Of agents, and of the daemon itself.
    own: FairQueue<(), Work>,
    of_users: FairQueue<Arc<str>, Work>,
    is_closed: bool,
}

impl Default for WorkQueue {
    fn default() -> Self {
        let agents = Semaphore::new(OF_AGENTS);
        Self { waiting: Mutex::default(), agents, len: AtomicUsize::new(0), has_more: Notify::new() }
    }
}

impl WorkQueue {
    pub(crate) async fn push(&self, work: Work) -> Result<(), Closed> {
        let owner = owner();
        if owner.is_none() {
            // Given back when the work is taken.
            self.agents.acquire().await.map_err(|_| Closed)?.forget();
        }
        let mut waiting = self.waiting();
        if waiting.is_closed {
            return Err(Closed);
        }
        match owner {
            Some(user) => waiting.of_users.push(user, work),
            None => waiting.own.push((), work),
        }
        self.len.store(waiting.own.len() + waiting.of_users.len(), Ordering::Relaxed);
        drop(waiting);
        self.has_more.notify_one();
        Ok(())
    }

    /// Waits for work and takes some of it.
    pub(crate) async fn take(&self, batch: &mut Vec<Work>, most: usize) {
        loop {
            self.take_now(batch, most);
            if !batch.is_empty() {
                return;
            }
            self.has_more.notified().await;
        }
    }

    pub(crate) fn take_now(&self, batch: &mut Vec<Work>, most: usize) {
        let mut waiting = self.waiting();
        let Waiting { own, of_users, .. } = &mut *waiting;
        let of_agents = own.len().min(most.saturating_sub(of_users.len().min(most / 2)));
        batch.extend((0..of_agents).map_while(|_| own.pop()));
        self.agents.add_permits(batch.len());
        while batch.len() < most
            && let Some(work) = of_users.pop()
        {
            batch.push(work);
        }
        self.len.store(waiting.own.len() + waiting.of_users.len(), Ordering::Relaxed);
    }

    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Nothing will be taken any more: whoever waits for an answer hears that there is none.
    pub(crate) fn close(&self) {
        self.agents.close();
        let mut waiting = self.waiting();
        *waiting = Waiting { is_closed: true, ..Waiting::default() };
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn tells(said: &mpsc::Sender<&'static str>, who: &'static str) -> Work {
        let said = said.clone();
        Work::Question(Box::new(move |_, _| said.send(who).unwrap_or_default()))
    }

    #[tokio::test]
    async fn a_flood_of_one_user_delays_neither_agents_nor_another_user() {
        let queue = WorkQueue::default();
        let (said, _heard) = mpsc::channel();
        for _ in 0..10_000 {
            on_behalf_of("mallory", queue.push(tells(&said, "mallory"))).await.expect("it is open");
        }
        on_behalf_of("ada", queue.push(tells(&said, "ada"))).await.expect("it is open");
        queue.push(tells(&said, "agent")).await.expect("it is open");
        assert_eq!(queue.len(), 10_002);
        let mut batch = Vec::new();
        queue.take(&mut batch, 3).await;
        assert_eq!((batch.len(), queue.len()), (3, 9_999));
        assert!(queue.waiting().own.is_empty(), "the agent's was among the first");
        assert_eq!(queue.waiting().of_users.of(&"ada".into()).count(), 0, "and so was ada's");
        queue.close();
        assert!(queue.push(tells(&said, "agent")).await.is_err());
    }
}
