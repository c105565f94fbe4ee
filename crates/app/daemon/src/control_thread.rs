//! The thread that owns the control plane.
//!
//! It works through what has queued up, hands the records to the journal with all that must wait for them (commands,
//! notices, answers), and goes on without waiting: while one batch is on its way to the disk the next is worked out,
//! and goes there as a whole when the disk is free. The journal keeps the order. What promises nothing leaves at once.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bedplate_control::record::{Note, Record, RunPhase};
use bedplate_control::wire::ToAgent;
use bedplate_control::{Command, Control, Output};
use bedplate_gangs::Time;
use bedplate_host::panics;
use bedplate_journal::Writer;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::timeout;
use tracing::{debug, info};

use crate::clock::Clock;
use crate::error::DaemonError;
use crate::hub::Hub;
use crate::leases::Leases;
use crate::links::AgentLinks;
use crate::metrics::DaemonMetrics;
use crate::options::Hook;
use crate::work_queue::{Closed, WorkQueue};

/// Requests that share a batch …
const MOST_AT_ONCE: usize = 256;
/// … and that are taken from the queue at a time: one of an agent and one of a user.
const AT_A_TIME: usize = 2;
/// Jobs that one piece of work touches; more are done in slices, between which others are served.
pub(crate) const SLICE: usize = 256;
/// Records that wait for the disk before no more of a large array are added to them: others' records are behind them.
const MOST_KEPT: usize = 512;
/// Changes that may wait for the disk.
const MOST_PENDING: usize = 8192;
const TICK: Duration = Duration::from_millis(50);
/// A turn takes nothing more once it has taken this long: who was served is answered.
const PART: Duration = Duration::from_millis(10);
/// A turn that took longer means that the process was held up; what agents said meanwhile is heard first.
const HELD_UP: Duration = Duration::from_secs(1);
const CATCH_UP: Duration = Duration::from_millis(250);
/// After a commit, those who were just answered have this share of its time to join the next one.
const GATHER_SHARE: u32 = 8;
const LONGEST_GATHER: Duration = Duration::from_micros(500);

type Reply = Box<dyn FnOnce() + Send>;
type Change = Box<dyn FnOnce(&mut Control, Time) -> Option<Reply> + Send>;
type Question = Box<dyn FnOnce(&Control, Time) + Send>;

pub(crate) enum Work {
    Change(Change),
    Question(Question),
    Stop,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unavailable {
    /// The journal cannot write at present.
    Journal,
    /// The control plane has not looked at it in time: what it decides about takes long.
    Deciding,
    /// More is waiting for the disk than may wait.
    Busy,
    /// The daemon is going down.
    Stopping,
}

/// The way to the thread.
#[derive(Clone)]
pub(crate) struct ControlThread {
    queue: Arc<WorkQueue>,
    writer: Arc<Writer>,
    pending: Arc<AtomicUsize>,
    patience: Duration,
}

/// What the thread needs besides the control plane.
pub(crate) struct ControlSetup {
    pub(crate) clock: Arc<Clock>,
    pub(crate) links: Arc<AgentLinks>,
    pub(crate) leases: Arc<Leases>,
    pub(crate) hub: Arc<Hub>,
    pub(crate) metrics: Arc<DaemonMetrics>,
    /// Called before each turn.
    pub(crate) on_turn: Hook,
    /// Told when the daemon cannot go on.
    pub(crate) failure: mpsc::UnboundedSender<DaemonError>,
}

impl ControlThread {
    pub(crate) fn start(
        control: Control,
        writer: Arc<Writer>,
        surroundings: ControlSetup,
        patience: Duration,
    ) -> Result<(Self, JoinHandle<()>), DaemonError> {
        let queue = Arc::new(WorkQueue::default());
        let failure = surroundings.failure.clone();
        let runtime = Handle::current();
        let worker = Worker {
            control,
            queue: queue.clone(),
            writer: writer.clone(),
            surroundings,
            ticked: Instant::now(),
            turned: Instant::now(),
            no_tick_before: Instant::now(),
            kept: Kept::default(),
            disk: Arc::default(),
        };
        let run = move || {
            let queue = worker.queue.clone();
            let ended = panics::caught(|| worker.run(&runtime));
            queue.close();
            if let Err(why) = ended {
                // The daemon may be going down already.
                let _ = failure.send(DaemonError::Panicked { what: "the control plane", why });
            }
        };
        let thread = thread::Builder::new().name("control".into()).spawn(run);
        let thread = thread.map_err(|source| DaemonError::Thread { source })?;
        Ok((Self { queue, writer, pending: Arc::default(), patience }, thread))
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
        let taken = Arc::new(AtomicBool::new(false));
        let is_taken = taken.clone();
        let change: Change = Box::new(move |control, now| {
            taken.store(true, Ordering::Relaxed);
            let value = change(control, now);
            // Who asked may have gone.
            Some(Box::new(move || drop((answer.send(value), pending))))
        });
        let asked = async {
            self.queue.push(Work::Change(change)).await.map_err(|Closed| Unavailable::Stopping)?;
            // The journal drops what it will never write.
            answered.await.map_err(|_| Unavailable::Journal)
        };
        match timeout(self.patience, asked).await {
            Ok(answer) => answer,
            Err(_) if is_taken.load(Ordering::Relaxed) => Err(Unavailable::Journal),
            Err(_) => Err(Unavailable::Deciding),
        }
    }

    /// Tells something that nobody waits for.
    pub(crate) async fn tell(&self, change: impl FnOnce(&mut Control, Time) + Send + 'static) {
        let change: Change = Box::new(move |control, now| {
            change(control, now);
            None
        });
        // Nothing is to be told to a daemon that goes down.
        let _ = self.queue.push(Work::Change(change)).await;
    }

    /// Asks something. The question must be short: everybody else waits for it.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Control, Time) -> T + Send + 'static,
    ) -> Result<T, Unavailable> {
        let (answer, answered) = oneshot::channel();
        let question: Question = Box::new(move |control, now| drop(answer.send(question(control, now))));
        let asked = async {
            self.queue.push(Work::Question(question)).await.map_err(|Closed| Unavailable::Stopping)?;
            answered.await.map_err(|_| Unavailable::Stopping)
        };
        timeout(self.patience, asked).await.unwrap_or(Err(Unavailable::Deciding))
    }

    /// Ends the thread after all that is queued.
    pub(crate) async fn stop(&self) {
        let _ = self.queue.push(Work::Stop).await;
    }

    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
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

/// What waits for the commit before it, and then goes to the disk as one batch.
#[derive(Default)]
struct Kept {
    output: Output,
    replies: Vec<Reply>,
}

impl Kept {
    fn is_empty(&self) -> bool {
        let Output { records, commands, notices, .. } = &self.output;
        records.is_empty() && commands.is_empty() && notices.is_empty() && self.replies.is_empty()
    }

    fn add(&mut self, output: Output, replies: Vec<Reply>) {
        self.output.records.extend(output.records);
        self.output.commands.extend(output.commands);
        self.output.notices.extend(output.notices);
        self.replies.extend(replies);
    }
}

/// The commit that is under way, as the thread sees it.
#[derive(Default)]
struct Disk {
    state: Mutex<DiskState>,
    is_free: Notify,
}

#[derive(Default)]
struct DiskState {
    since: Option<Instant>,
    /// No batch before this: others may join it.
    next: Option<Instant>,
}

impl Disk {
    fn begin(&self) {
        self.state().since = Some(Instant::now());
    }

    fn end(&self) {
        let mut state = self.state();
        let took = state.since.take().map_or(Duration::ZERO, |since| since.elapsed());
        state.next = Some(Instant::now() + (took / GATHER_SHARE).min(LONGEST_GATHER));
        drop(state);
        self.is_free.notify_one();
    }

    /// How long until the next batch may go; nothing while a commit is under way.
    fn free_in(&self) -> Option<Duration> {
        let state = self.state();
        let left = state.next.map_or(Duration::ZERO, |next| next.saturating_duration_since(Instant::now()));
        state.since.is_none().then_some(left)
    }

    fn state(&self) -> MutexGuard<'_, DiskState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Worker {
    control: Control,
    queue: Arc<WorkQueue>,
    writer: Arc<Writer>,
    surroundings: ControlSetup,
    ticked: Instant,
    turned: Instant,
    no_tick_before: Instant,
    kept: Kept,
    disk: Arc<Disk>,
}

impl Worker {
    fn run(mut self, runtime: &Handle) {
        // What restoring has led to.
        self.hand_over(Vec::new());
        let mut batch = Vec::with_capacity(AT_A_TIME);
        loop {
            let pause = self.pause();
            let (queue, disk) = (&self.queue, &self.disk);
            runtime.block_on(async {
                tokio::select! {
                    // Nothing may come for a while, and time passes.
                    taken = timeout(pause, queue.take(&mut batch, AT_A_TIME)) => drop(taken),
                    // A batch waits for the commit before it.
                    () = disk.is_free.notified() => {}
                }
            });
            let began = Instant::now();
            self.notice_hold_up(began);
            (self.surroundings.on_turn)();
            let is_last = self.turn(&mut batch);
            self.turned = Instant::now();
            self.surroundings.metrics.control_turn.observe(began.elapsed());
            if is_last {
                // All that was queued before is done too.
                self.queue.take_now(&mut batch, usize::MAX);
                self.turn(&mut batch);
                return self.commit();
            }
        }
    }

    /// Does what has queued up, for a while; true when it was the last. What came meanwhile has its turn before what came earlier of a user who
    /// was just served.
    fn turn(&mut self, batch: &mut Vec<Work>) -> bool {
        let began = Instant::now();
        let mut replies: Vec<Reply> = Vec::new();
        let mut is_last = false;
        let mut done = 0;
        while !batch.is_empty() {
            done += batch.len();
            for work in batch.drain(..) {
                let now = self.surroundings.clock.now();
                match work {
                    Work::Change(change) => replies.extend(change(&mut self.control, now)),
                    Work::Question(question) => self.answer(question, now),
                    Work::Stop => is_last = true,
                }
            }
            if done < MOST_AT_ONCE && began.elapsed() < PART {
                self.queue.take_now(batch, AT_A_TIME);
            }
        }
        if done > 0 {
            self.surroundings.metrics.batch_size.observe_number(done as f64);
        }
        // Heartbeats may have queued up behind long work: they are heard before anybody counts as silent.
        if began.elapsed() > HELD_UP {
            self.no_tick_before = Instant::now() + CATCH_UP;
        }
        self.tick_when_due();
        if self.has_room() {
            self.control.take_in(self.surroundings.clock.now());
        }
        self.hand_over(replies);
        is_last
    }

    /// Whether the next slice of a large array may go to the disk.
    fn has_room(&self) -> bool {
        self.control.has_arrivals() && self.kept.output.records.len() < MOST_KEPT
    }

    /// A question cannot have changed anything, so its flaws concern only who asked.
    fn answer(&self, question: Question, now: Time) {
        if panics::caught(|| question(&self.control, now)).is_err() {
            self.surroundings.metrics.panics.add(1);
        }
    }

    fn pause(&self) -> Duration {
        let now = self.surroundings.clock.now();
        let until = self.control.next_decision().since(now);
        if !self.kept.is_empty()
            && let Some(left) = self.disk.free_in()
        {
            // Timers of the runtime are too coarse for this.
            thread::sleep(left);
            return Duration::ZERO;
        }
        if self.has_room() {
            return Duration::from_millis(1);
        }
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
        let is_due = self.ticked.elapsed() >= TICK || self.control.next_decision() <= now;
        if !is_due || Instant::now() < self.no_tick_before {
            return;
        }
        let began = Instant::now();
        self.control.signs_of_life(self.surroundings.leases.ages(now), now);
        self.control.tick(now);
        self.ticked = Instant::now();
        self.surroundings.metrics.tick.observe(began.elapsed());
    }

    /// Urgent commands leave now; everything else is kept for the next commit.
    fn hand_over(&mut self, replies: Vec<Reply>) {
        let mut output = self.control.take_output();
        let urgent = std::mem::take(&mut output.urgent);
        // Heartbeats have been answered where they arrived.
        let is_answer =
            |command: &Command| matches!(command, Command::Send { message: ToAgent::Alive { .. }, .. });
        let urgent = urgent.into_iter().filter(|command| !is_answer(command));
        urgent.for_each(|command| self.surroundings.links.carry_out(command));
        self.kept.add(output, replies);
        if !self.kept.is_empty() && self.disk.free_in() == Some(Duration::ZERO) {
            self.commit();
        }
    }

    /// Sends what was kept to the disk; commands, notices and answers leave once it is there.
    fn commit(&mut self) {
        let Kept { output, replies } = std::mem::take(&mut self.kept);
        let Output { records, commands, notices, .. } = output;
        let ControlSetup { links, hub, metrics, failure, .. } = &self.surroundings;
        records.iter().for_each(log);
        metrics.run_restarts.add(records.iter().filter(|record| begins_again(record)).count() as u64);
        let (links, hub, failure, disk) = (links.clone(), hub.clone(), failure.clone(), self.disk.clone());
        let on_durable = move |result: Result<(), Arc<bedplate_journal::JournalError>>| {
            if let Err(error) = result {
                let why = error.to_string();
                let _ = failure.send(DaemonError::JournalBroken { why });
                return;
            }
            commands.into_iter().for_each(|command| links.carry_out(command));
            hub.publish(notices);
            replies.into_iter().for_each(|reply| reply());
            disk.end();
        };
        self.disk.begin();
        self.writer.commit(records, Box::new(on_durable));
    }
}

/// What the control plane notes about jobs and nodes is its log too: jobs at `debug`, because there may be thousands a second.
fn log(record: &Record) {
    match record {
        Record::Note(Note { job: Some(job), node, text, .. }) => debug!(job, node, "{}", one_line(text)),
        Record::Note(Note { node, text, .. }) => info!(node, "{}", one_line(text)),
        Record::Run(row) => debug!(job = row.run.job, run = row.run.number, phase = ?row.phase, "run"),
        _ => {}
    }
}

/// What a job says cannot look like a line of the log.
fn one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

fn begins_again(record: &Record) -> bool {
    matches!(record, Record::Run(row) if row.phase == RunPhase::Preparing && row.run.number > 1)
}
