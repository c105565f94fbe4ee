//! The thread that owns the control plane.
//!
//! It works through what has queued up, hands the records to the journal with all that must wait for them (commands,
//! notices, answers), and goes on without waiting: while one batch is on its way to the disk the next is worked out.
//! The journal keeps the order. What promises nothing leaves at once.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bedplate_control::record::{Record, RunPhase};
use bedplate_control::{Control, Output};
use bedplate_gangs::Time;
use bedplate_journal::Writer;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::clock::Clock;
use crate::error::DaemonError;
use crate::hub::Hub;
use crate::links::Links;
use crate::metrics::Metrics;

/// Requests that may wait for the thread.
const QUEUE: usize = 4096;
/// Requests that share a batch.
const MOST_AT_ONCE: usize = 256;
/// Changes that may wait for the disk.
const MOST_PENDING: usize = 8192;
const TICK: Duration = Duration::from_millis(50);
/// A turn that took longer means that the process was held up; what agents said meanwhile is heard first.
const HELD_UP: Duration = Duration::from_secs(1);
const CATCH_UP: Duration = Duration::from_millis(250);

type Reply = Box<dyn FnOnce() + Send>;
type Change = Box<dyn FnOnce(&mut Control, Time) -> Option<Reply> + Send>;
type Question = Box<dyn FnOnce(&Control, Time) + Send>;

enum Work {
    Change(Change),
    Question(Question),
    Stop,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unavailable {
    /// The journal cannot write at present.
    Journal,
    /// More is waiting for the disk than may wait.
    Busy,
    /// The daemon is going down.
    Stopping,
}

/// The way to the thread.
#[derive(Clone)]
pub(crate) struct Engine {
    queue: mpsc::Sender<Work>,
    writer: Arc<Writer>,
    pending: Arc<AtomicUsize>,
    patience: Duration,
}

/// What the thread needs besides the control plane.
pub(crate) struct Surroundings {
    pub(crate) clock: Arc<Clock>,
    pub(crate) links: Arc<Links>,
    pub(crate) hub: Arc<Hub>,
    pub(crate) metrics: Arc<Metrics>,
    /// Told when the daemon cannot go on.
    pub(crate) failure: mpsc::UnboundedSender<DaemonError>,
}

impl Engine {
    pub(crate) fn start(
        control: Control,
        writer: Arc<Writer>,
        surroundings: Surroundings,
        patience: Duration,
    ) -> Result<(Self, JoinHandle<()>), DaemonError> {
        let (sender, queue) = mpsc::channel(QUEUE);
        let failure = surroundings.failure.clone();
        let runtime = Handle::current();
        let worker = Worker {
            control,
            queue,
            writer: writer.clone(),
            surroundings,
            ticked: Instant::now(),
            turned: Instant::now(),
            no_tick_before: Instant::now(),
        };
        let run = move || {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| worker.run(&runtime))) {
                let why = panic_text(&*panic);
                // The daemon may be going down already.
                let _ = failure.send(DaemonError::Panicked { what: "the control plane", why });
            }
        };
        let thread = thread::Builder::new().name("control".into()).spawn(run);
        let thread = thread.map_err(|source| DaemonError::Thread { source })?;
        Ok((Self { queue: sender, writer, pending: Arc::default(), patience }, thread))
    }

    /// Changes something. The answer comes once all that follows from it is on disk.
    pub(crate) async fn change<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut Control, Time) -> T + Send + 'static,
    ) -> Result<T, Unavailable> {
        if !self.writer.is_healthy() {
            return Err(Unavailable::Journal);
        }
        let pending = Pending::count(&self.pending).ok_or(Unavailable::Busy)?;
        let (answer, answered) = oneshot::channel();
        let change: Change = Box::new(move |control, now| {
            let value = change(control, now);
            // Who asked may have gone.
            Some(Box::new(move || drop((answer.send(value), pending))))
        });
        self.queue.send(Work::Change(change)).await.map_err(|_| Unavailable::Stopping)?;
        match timeout(self.patience, answered).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(_)) | Err(_) => Err(Unavailable::Journal),
        }
    }

    /// Tells something that nobody waits for.
    pub(crate) async fn tell(&self, change: impl FnOnce(&mut Control, Time) + Send + 'static) {
        let change: Change = Box::new(move |control, now| {
            change(control, now);
            None
        });
        // Nothing is to be told to a daemon that goes down.
        let _ = self.queue.send(Work::Change(change)).await;
    }

    /// Asks something. The question must be short: everybody else waits for it.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Control, Time) -> T + Send + 'static,
    ) -> Result<T, Unavailable> {
        let (answer, answered) = oneshot::channel();
        let question: Question = Box::new(move |control, now| drop(answer.send(question(control, now))));
        self.queue.send(Work::Question(question)).await.map_err(|_| Unavailable::Stopping)?;
        answered.await.map_err(|_| Unavailable::Stopping)
    }

    /// Ends the thread after all that is queued.
    pub(crate) async fn stop(&self) {
        let _ = self.queue.send(Work::Stop).await;
    }

    pub(crate) fn queued(&self) -> usize {
        self.queue.max_capacity() - self.queue.capacity()
    }
}

/// Counts a change for as long as it waits for the disk.
struct Pending(Arc<AtomicUsize>);

impl Pending {
    fn count(all: &Arc<AtomicUsize>) -> Option<Self> {
        let before = all.fetch_add(1, Ordering::Relaxed);
        let pending = Self(all.clone());
        (before < MOST_PENDING).then_some(pending)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Worker {
    control: Control,
    queue: mpsc::Receiver<Work>,
    writer: Arc<Writer>,
    surroundings: Surroundings,
    ticked: Instant,
    turned: Instant,
    no_tick_before: Instant,
}

impl Worker {
    fn run(mut self, runtime: &Handle) {
        // What restoring has led to.
        self.hand_over(Vec::new());
        let mut batch = Vec::with_capacity(MOST_AT_ONCE);
        loop {
            let pause = self.pause();
            let received = runtime
                .block_on(async { timeout(pause, self.queue.recv_many(&mut batch, MOST_AT_ONCE)).await });
            if received == Ok(0) {
                return;
            }
            let began = Instant::now();
            self.notice_hold_up(began);
            let is_last = self.turn(&mut batch);
            self.turned = Instant::now();
            self.surroundings.metrics.control_turn.observe(began.elapsed());
            if is_last {
                return;
            }
        }
    }

    /// Does what has queued up; true when it was the last.
    fn turn(&mut self, batch: &mut Vec<Work>) -> bool {
        if !batch.is_empty() {
            self.surroundings.metrics.batch_size.observe_number(batch.len() as f64);
        }
        let mut replies: Vec<Reply> = Vec::new();
        let mut is_last = false;
        for work in batch.drain(..) {
            let now = self.surroundings.clock.now();
            match work {
                Work::Change(change) => replies.extend(change(&mut self.control, now)),
                Work::Question(question) => self.answer(question, now),
                Work::Stop => is_last = true,
            }
        }
        self.tick_when_due();
        self.hand_over(replies);
        is_last
    }

    /// A question cannot have changed anything, so its flaws concern only who asked.
    fn answer(&self, question: Question, now: Time) {
        if catch_unwind(AssertUnwindSafe(|| question(&self.control, now))).is_err() {
            self.surroundings.metrics.panics.add(1);
        }
    }

    fn pause(&self) -> Duration {
        let now = self.surroundings.clock.now();
        let until = self.control.wakeup().since(now);
        TICK.saturating_sub(self.ticked.elapsed())
            .min(Duration::from_millis(until.0))
            .max(Duration::from_millis(1))
    }

    fn notice_hold_up(&mut self, began: Instant) {
        if began.duration_since(self.turned) > HELD_UP {
            self.no_tick_before = began + CATCH_UP;
        }
    }

    fn tick_when_due(&mut self) {
        let now = self.surroundings.clock.now();
        let is_due = self.ticked.elapsed() >= TICK || self.control.wakeup() <= now;
        if !is_due || Instant::now() < self.no_tick_before {
            return;
        }
        let began = Instant::now();
        self.control.tick(now);
        self.ticked = Instant::now();
        self.surroundings.metrics.tick.observe(began.elapsed());
    }

    /// Urgent commands leave now, everything else when the records are on disk.
    fn hand_over(&mut self, replies: Vec<Reply>) {
        let Output { records, urgent, commands, notices } = self.control.take_output();
        let Surroundings { links, hub, metrics, failure, .. } = &self.surroundings;
        urgent.into_iter().for_each(|command| links.carry_out(command));
        if records.is_empty() && commands.is_empty() && notices.is_empty() && replies.is_empty() {
            return;
        }
        metrics.run_restarts.add(records.iter().filter(|record| begins_again(record)).count() as u64);
        let (links, hub, failure) = (links.clone(), hub.clone(), failure.clone());
        let on_durable = move |result: Result<(), Arc<bedplate_journal::JournalError>>| {
            if let Err(error) = result {
                let why = error.to_string();
                let _ = failure.send(DaemonError::JournalBroken { why });
                return;
            }
            commands.into_iter().for_each(|command| links.carry_out(command));
            hub.publish(notices);
            replies.into_iter().for_each(|reply| reply());
        };
        self.writer.commit(records, Box::new(on_durable));
    }
}

fn begins_again(record: &Record) -> bool {
    matches!(record, Record::Run(row) if row.phase == RunPhase::Preparing && row.run.number > 1)
}

pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}
