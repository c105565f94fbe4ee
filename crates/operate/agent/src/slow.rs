//! Work that may never end: reading and checking files that a job names, on mounts that may be dead.
//!
//! Each piece has a thread of its own that is lost when it hangs. So a run may have a few at a time and all runs together
//! some dozens; one that has to wait longer than the limit is answered with an error, and its thread counts until it ends.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bedplate_control::wire::RunId;
use tokio::sync::oneshot;

use crate::identity::Identity;

const MOST: usize = 64;
const MOST_OF_A_RUN: usize = 4;
const STACK: usize = 256 << 10;

/// Counts the threads that are under way.
#[derive(Debug, Clone, Default)]
pub(crate) struct SlowWork(Arc<Mutex<BTreeMap<RunId, usize>>>);

impl SlowWork {
    /// Has `work` done on a thread with the rights of `identity`, and hands its outcome to `done`, or why there is none.
    pub(crate) fn begin<T: Send + 'static>(
        &self,
        run: RunId,
        identity: Option<Identity>,
        limit: Duration,
        work: impl FnOnce() -> T + Send + 'static,
        done: impl FnOnce(Result<T, String>) + Send + 'static,
    ) {
        let Some(place) = self.take_place(run) else {
            return done(Err("too many of the job's files do not answer".to_owned()));
        };
        let (tell, told) = oneshot::channel();
        let thread = std::thread::Builder::new().stack_size(STACK).spawn(move || {
            let _place = place;
            let assumed = identity.map_or(Ok(()), |identity| identity.assume_for_files());
            let outcome =
                assumed.map(|()| work()).map_err(|error| format!("cannot become the job's user: {error}"));
            let _ = tell.send(outcome);
        });
        if let Err(error) = thread {
            return done(Err(format!("no thread can be started: {error}")));
        }
        tokio::spawn(async move {
            let late = || format!("the file system has not answered for {} s", limit.as_secs());
            done(match tokio::time::timeout(limit, told).await {
                Ok(Ok(outcome)) => outcome,
                Ok(Err(_)) => Err("it failed".to_owned()),
                Err(_) => Err(late()),
            });
        });
    }

    fn take_place(&self, run: RunId) -> Option<Place> {
        let mut counts = self.counts();
        let is_full = counts.values().sum::<usize>() >= MOST;
        let own = counts.entry(run).or_default();
        if is_full || *own >= MOST_OF_A_RUN {
            return None;
        }
        *own += 1;
        drop(counts);
        Some(Place { work: self.clone(), run })
    }

    fn counts(&self) -> MutexGuard<'_, BTreeMap<RunId, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread under way.
struct Place {
    work: SlowWork,
    run: RunId,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.work.counts();
        if let Some(own) = counts.get_mut(&self.run) {
            *own -= 1;
        }
        counts.retain(|_, count| *count > 0);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const RUN: RunId = RunId { job: 1, number: 1 };
    const OTHER: RunId = RunId { job: 2, number: 1 };

    #[tokio::test]
    async fn a_run_whose_files_hang_is_told_so_and_takes_no_thread_of_others() {
        let work = SlowWork::default();
        let (hold, held) = mpsc::channel::<()>();
        let held = Arc::new(Mutex::new(held));
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        for _ in 0..MOST_OF_A_RUN + 1 {
            let (held, tell) = (held.clone(), tell.clone());
            let hang = move || held.lock().unwrap().recv().is_ok();
            work.begin(RUN, None, Duration::from_millis(50), hang, move |outcome| {
                let _ = tell.send(outcome.map(|_| ()));
            });
        }
        let full = told.recv().await.unwrap().unwrap_err();
        assert_eq!(full, "too many of the job's files do not answer");
        for _ in 0..MOST_OF_A_RUN {
            assert!(told.recv().await.unwrap().unwrap_err().starts_with("the file system has not answered"));
        }
        work.begin(
            OTHER,
            None,
            Duration::from_secs(600),
            || (),
            move |outcome| {
                let _ = tell.send(outcome);
            },
        );
        assert_eq!(told.recv().await.unwrap(), Ok(()));
        drop(hold);
        while !work.counts().is_empty() {
            tokio::task::yield_now().await;
        }
    }
}
