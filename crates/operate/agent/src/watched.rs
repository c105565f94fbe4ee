//! The output of ranks, read as it is written: what a program that reports nothing says of its steps and errors.
//!
//! It runs on threads of its own, one for files of ours and one for each run that named its files: a mount that hangs holds up the run that
//! writes there and no other. What comes out are reports like those that programs write themselves; of a rank that reports its own steps, those
//! of its log are left out. A log that is written faster than it is worth reading is skipped to its end.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bedplate_control::wire::RunId;
use bedplate_host::clock::unix_time;
use bedplate_host::{LinkPolicy, Opening, open_regular_for};
use bedplate_logs::{LiveLog, Observed, Recognizer};
use bedplate_report::Report;
use tokio::sync::mpsc::UnboundedSender;

use crate::event::AgentEvent;

const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Read of one file at a look, and how far a reader may lag before it skips to the end.
const MOST_AT_A_LOOK: u64 = 2 << 20;
const MOST_BEHIND: u64 = 32 << 20;
/// Steps of one look that are passed on.
const MOST_STEPS: usize = 32;
/// Outputs that one thread watches at a time.
const MOST_WATCHED: usize = 4096;
/// Runs whose own files are watched at a time; those whose mounts hang keep their place.
const MOST_NAMED: usize = 128;
const STACK: usize = 512 << 10;

/// The way to the threads.
#[derive(Debug)]
pub(crate) struct LogWatch {
    ours: mpsc::Sender<Order>,
    named: BTreeMap<RunId, mpsc::Sender<Order>>,
    /// The threads of runs that named their files, also of those that are over; with the owner of the files.
    threads: Vec<(Option<u32>, JoinHandle<()>)>,
    events: UnboundedSender<AgentEvent>,
}

#[derive(Debug)]
enum Order {
    Watch { run: RunId, rank: u32, paths: Vec<PathBuf>, access: Access },
    Forget { run: RunId },
}

/// How outputs may be opened.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Access {
    pub(crate) links: LinkPolicy,
    /// Whose files they must be: an agent that may read everything must not read for a job what its user may not.
    pub(crate) owner: Option<u32>,
}

impl LogWatch {
    pub(crate) fn start(events: &UnboundedSender<AgentEvent>) -> Self {
        // Without the thread logs are not watched; orders to nobody are dropped.
        let (ours, _) = begin("logs", events);
        Self { ours, named: BTreeMap::new(), threads: Vec::new(), events: events.clone() }
    }

    pub(crate) fn watch(&mut self, run: RunId, rank: u32, paths: Vec<PathBuf>, access: Access) {
        if paths.is_empty() {
            return;
        }
        let to = match access.links {
            LinkPolicy::Refuse => Some(&self.ours),
            LinkPolicy::Follow => self.thread_of(run, access.owner),
        };
        let _ = to.map(|to| to.send(Order::Watch { run, rank, paths, access }));
    }

    /// The thread of a run that named its files. A user has as many as are still free for others.
    fn thread_of(&mut self, run: RunId, owner: Option<u32>) -> Option<&mpsc::Sender<Order>> {
        if !self.named.contains_key(&run) {
            self.threads.retain(|(_, thread)| !thread.is_finished());
            let of_owner = self.threads.iter().filter(|(of, _)| *of == owner).count();
            if of_owner >= MOST_NAMED - self.threads.len() {
                return None;
            }
            let (orders, thread) = begin("named logs", &self.events);
            self.threads.push((owner, thread?));
            self.named.insert(run, orders);
        }
        self.named.get(&run)
    }

    /// The ranks are gone: what they wrote last is read, and nothing more.
    pub(crate) fn forget(&mut self, run: RunId) {
        let _ = self.ours.send(Order::Forget { run });
        // Its thread ends when it has read.
        let _ = self.named.remove(&run).map(|to| to.send(Order::Forget { run }));
    }
}

fn begin(name: &str, events: &UnboundedSender<AgentEvent>) -> (mpsc::Sender<Order>, Option<JoinHandle<()>>) {
    let (orders, taken) = mpsc::channel();
    let events = events.clone();
    let named = thread::Builder::new().name(name.to_owned()).stack_size(STACK);
    (orders, named.spawn(move || watch(&taken, &events)).ok())
}

fn watch(orders: &mpsc::Receiver<Order>, events: &UnboundedSender<AgentEvent>) {
    let mut watched: BTreeMap<(RunId, u32), Vec<Output>> = BTreeMap::new();
    let mut look = Instant::now();
    loop {
        match orders.recv_timeout(look.saturating_duration_since(Instant::now())) {
            Ok(Order::Watch { run, rank, paths, access }) if watched.len() < MOST_WATCHED => {
                // A file that several ranks share is read for the first of them.
                let of_run = watched.range((run, 0)..=(run, u32::MAX));
                let known: BTreeSet<PathBuf> = of_run
                    .flat_map(|(_, outputs)| outputs.iter().map(|output| output.path.clone()))
                    .collect();
                let fresh: BTreeSet<PathBuf> =
                    paths.into_iter().filter(|path| !known.contains(path)).collect();
                if !fresh.is_empty() {
                    let outputs = fresh.into_iter().map(|path| Output::new(path, access)).collect();
                    watched.insert((run, rank), outputs);
                    look = look.min(Instant::now() + LOOK_EVERY);
                }
                continue;
            }
            Ok(Order::Watch { .. }) => continue,
            Ok(Order::Forget { run }) => {
                let of_run = watched.range((run, 0)..=(run, u32::MAX));
                let gone: Vec<(RunId, u32)> = of_run.map(|(key, _)| *key).collect();
                for key in gone {
                    if let Some(mut outputs) = watched.remove(&key) {
                        tell(key, &mut outputs, events);
                    }
                }
                continue;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        for (key, outputs) in &mut watched {
            tell(*key, outputs, events);
        }
        look = Instant::now() + LOOK_EVERY;
        if watched.is_empty() {
            // Nothing to look at: the next order comes when it comes.
            look += Duration::from_secs(3600);
        }
    }
}

fn tell((run, rank): (RunId, u32), outputs: &mut [Output], events: &UnboundedSender<AgentEvent>) {
    let reports: Vec<Report> = outputs.iter_mut().flat_map(Output::read).collect();
    if !reports.is_empty() {
        let _ = events.send(AgentEvent::LogSaid { run, rank, reports });
    }
}

/// One stream of one rank.
struct Output {
    path: PathBuf,
    access: Access,
    offset: u64,
    log: Option<LiveLog<'static>>,
}

impl Output {
    fn new(path: PathBuf, access: Access) -> Self {
        Self { path, access, offset: 0, log: None }
    }

    /// What was written since the last look.
    fn read(&mut self) -> Vec<Report> {
        let Ok(mut file) = open_regular_for(Opening::Read, &self.path, self.access.links) else {
            return Vec::new();
        };
        let Ok(about) = file.metadata() else { return Vec::new() };
        if self.access.owner.is_some_and(|owner| owner != about.uid()) {
            return Vec::new();
        }
        let length = about.len();
        if length < self.offset {
            // It was cut: what comes now is new.
            self.offset = 0;
        }
        if length - self.offset > MOST_BEHIND {
            self.offset = length - MOST_AT_A_LOOK;
        }
        if length == self.offset || file.seek(SeekFrom::Start(self.offset)).is_err() {
            return Vec::new();
        }
        let mut bytes = Vec::new();
        let Ok(read) = file.take(MOST_AT_A_LOOK).read_to_end(&mut bytes) else { return Vec::new() };
        self.offset += read as u64;
        let now = unix_time().as_secs_f64();
        let log = self.log.get_or_insert_with(|| LiveLog::new(recognizer()));
        reports(log.feed(&bytes, now))
    }
}

fn recognizer() -> &'static Recognizer {
    static BUILT_IN: OnceLock<Recognizer> = OnceLock::new();
    BUILT_IN.get_or_init(Recognizer::built_in)
}

/// What was observed, in the words of reports.
fn reports(observed: Vec<Observed>) -> Vec<Report> {
    let steps = observed.iter().filter(|each| matches!(each, Observed::Step(_))).count();
    let mut skipped = steps.saturating_sub(MOST_STEPS);
    let mut reports = Vec::new();
    for each in observed {
        if matches!(each, Observed::Step(_)) && skipped > 0 {
            skipped -= 1;
            continue;
        }
        reports.extend(each.into_report());
    }
    reports
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_rank_that_reports_nothing_is_seen_by_its_log() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("stdout");
        let access = Access { links: LinkPolicy::Refuse, owner: None };
        let mut output = Output::new(path.clone(), access);
        assert_eq!(output.read(), []);
        let line = |step: u32| format!("iter {step}: loss 3.1, time 410.5ms, mfu 37.1%\n");
        fs::write(&path, line(1) + &line(2)).unwrap();
        let [Report::Step(step)] = &output.read()[..] else { panic!("no step") };
        assert_eq!((step.step, step.seconds, step.loss), (2, 0.4105, Some(3.1)));
        fs::write(&path, line(1) + &line(2) + "torch.OutOfMemoryError: CUDA out of memory.\n").unwrap();
        let [Report::Log { line }] = &output.read()[..] else { panic!("no error") };
        assert!(line.contains("out of memory"));
        assert_eq!(output.read(), []);
        // What a job puts in the place of its output is read only where it is its user's own.
        let owner = path.metadata().unwrap().uid();
        let of = |owner| Output::new(path.clone(), Access { links: LinkPolicy::Follow, owner: Some(owner) });
        assert_eq!(of(owner + 1).read(), []);
        assert_ne!(of(owner).read(), []);
    }
}
