//! Group commit: one thread that writes all that has queued up with one wait for the disk.
//!
//! While the disk refuses, nothing is acknowledged and the same records are tried again, so that what was put out in
//! one order is on disk in that order. A batch that can never be written breaks the writer for good: whatever came
//! after it may rest on it.

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use bedplate_control::record::Record;

use crate::{CommitHistogram, Journal, JournalError};

/// A transaction takes no more records than this, so that it stays small in memory.
const MOST_RECORDS: usize = 20_000;
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Called on the writer's thread once the batch is on disk, or never will be. It should be quick.
pub type OnDurable = Box<dyn FnOnce(Result<(), Arc<JournalError>>) + Send>;

/// The thread and its queue. Dropping it writes what has queued up, then ends the thread.
#[derive(Debug)]
pub struct Writer {
    queue: Option<Sender<Work>>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// Whether the disk takes what it is given.
#[derive(Debug, Clone)]
pub enum DiskHealth {
    Healthy,
    /// It is tried again. New submissions should be refused meanwhile.
    Failing {
        since: SystemTime,
        attempts: u64,
        error: Arc<JournalError>,
    },
    /// Nothing will be written any more; only a restart helps.
    Broken {
        error: Arc<JournalError>,
    },
}

/// Since the writer was started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Statistics {
    pub commits: u64,
    pub batches: u64,
    pub records: u64,
    /// Commits that failed, each attempt counted.
    pub failures: u64,
    /// How long commits took that succeeded, the wait for the disk included.
    pub commit_time: CommitHistogram,
}

enum Work {
    Commit(Batch),
    Perform(Box<dyn FnOnce(&mut Journal) + Send>),
}

struct Batch {
    records: Vec<Record>,
    on_durable: OnDurable,
}

impl Writer {
    pub fn start(journal: Journal) -> std::io::Result<Self> {
        let (queue, received) = mpsc::channel();
        let shared = Arc::new(Shared::default());
        let worker = Worker { journal, received, ahead: None, shared: shared.clone() };
        let thread = thread::Builder::new().name("journal".into()).spawn(move || worker.run())?;
        Ok(Self { queue: Some(queue), shared, thread: Some(thread) })
    }

    /// Queues a batch. Batches become durable, and their callbacks are called, in the order of these calls.
    pub fn commit(&self, records: Vec<Record>, on_durable: OnDurable) {
        let queue = self.queue.as_ref().expect("the queue is there until the writer is dropped");
        if let Err(refused) = queue.send(Work::Commit(Batch { records, on_durable }))
            && let Work::Commit(batch) = refused.0
        {
            (batch.on_durable)(Err(Arc::new(JournalError::Stopped)));
        }
    }

    /// Does something else with the journal, after all that was queued before, and waits for it. Not to be called from a
    /// callback, which would wait for itself.
    pub fn perform<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Journal) -> T + Send + 'static,
    ) -> Result<T, JournalError> {
        let (answer, answered) = mpsc::channel();
        let work = move |journal: &mut Journal| {
            // The caller may no longer be waiting.
            let _ = answer.send(work(journal));
        };
        let queue = self.queue.as_ref().expect("the queue is there until the writer is dropped");
        queue.send(Work::Perform(Box::new(work))).map_err(|_| JournalError::Stopped)?;
        answered.recv().map_err(|_| JournalError::Stopped)
    }

    pub fn health(&self) -> DiskHealth {
        self.shared.state().health.clone()
    }

    pub fn is_healthy(&self) -> bool {
        matches!(self.shared.state().health, DiskHealth::Healthy)
    }

    pub fn statistics(&self) -> Statistics {
        self.shared.state().statistics.clone()
    }

    /// Writes what has queued up and ends. What a failing disk does not take now is given up.
    pub fn stop(self) {}
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.state().is_stopping = true;
        self.shared.changed.notify_all();
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            // A panic of a callback has been printed where it happened.
            let _ = thread.join();
        }
    }
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    health: DiskHealth,
    statistics: Statistics,
    is_stopping: bool,
}

impl Default for State {
    fn default() -> Self {
        Self { health: DiskHealth::Healthy, statistics: Statistics::default(), is_stopping: false }
    }
}

impl Shared {
    /// Figures stay usable whatever panicked while it held them.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits before another attempt; false when the writer shall stop instead.
    fn pause(&self, pause: Duration) -> bool {
        let waited = self.changed.wait_timeout_while(self.state(), pause, |state| !state.is_stopping);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        !state.is_stopping
    }

    fn succeeded(&self, batches: usize, records: usize, took: Duration) {
        let mut state = self.state();
        state.health = DiskHealth::Healthy;
        let statistics = &mut state.statistics;
        statistics.commits += 1;
        statistics.batches += batches as u64;
        statistics.records += records as u64;
        statistics.commit_time.add(took);
    }

    fn failed(&self, error: &Arc<JournalError>) {
        let mut state = self.state();
        state.statistics.failures += 1;
        let error = error.clone();
        state.health = match &state.health {
            DiskHealth::Failing { since, attempts, .. } => {
                DiskHealth::Failing { since: *since, attempts: attempts + 1, error }
            }
            _ => DiskHealth::Failing { since: SystemTime::now(), attempts: 1, error },
        };
    }

    fn broke(&self, error: &Arc<JournalError>) {
        self.state().health = DiskHealth::Broken { error: error.clone() };
    }

    fn is_broken(&self) -> bool {
        matches!(self.state().health, DiskHealth::Broken { .. })
    }
}

struct Worker {
    journal: Journal,
    received: Receiver<Work>,
    /// Received, but not yet begun.
    ahead: Option<Work>,
    shared: Arc<Shared>,
}

impl Worker {
    fn run(mut self) {
        while let Some(work) = self.next() {
            match work {
                Work::Commit(first) => self.commit_group(first),
                Work::Perform(work) => work(&mut self.journal),
            }
        }
    }

    fn next(&mut self) -> Option<Work> {
        self.ahead.take().or_else(|| self.received.recv().ok())
    }

    /// Commits the first batch together with all batches that have queued up behind it.
    fn commit_group(&mut self, first: Batch) {
        let mut records = first.records;
        let mut callbacks = vec![first.on_durable];
        while records.len() < MOST_RECORDS
            && let Ok(work) = self.received.try_recv()
        {
            match work {
                Work::Commit(batch) => {
                    records.extend(batch.records);
                    callbacks.push(batch.on_durable);
                }
                other => {
                    self.ahead = Some(other);
                    break;
                }
            }
        }
        let result = self.commit(&records, callbacks.len());
        for callback in callbacks {
            callback(result.clone());
        }
    }

    /// Tries until it succeeds, can never succeed, or the writer shall stop.
    fn commit(&mut self, records: &[Record], batches: usize) -> Result<(), Arc<JournalError>> {
        if self.shared.is_broken() {
            return Err(Arc::new(JournalError::Stopped));
        }
        let mut pause = FIRST_PAUSE;
        loop {
            let begin = Instant::now();
            let Err(error) = self.journal.commit(records) else {
                self.shared.succeeded(batches, records.len(), begin.elapsed());
                return Ok(());
            };
            let error = Arc::new(error);
            self.shared.failed(&error);
            if error.is_full() && self.journal.give_up_reserve() {
                continue;
            }
            if let Some(replaced) = self.journal.find_replacement() {
                let replaced = Arc::new(replaced);
                self.shared.broke(&replaced);
                return Err(replaced);
            }
            if !error.is_passing() || !self.shared.pause(pause) {
                self.shared.broke(&error);
                return Err(error);
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}
