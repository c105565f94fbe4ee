//! What slows or stops jobs, told while they run.
//!
//! Everything that ranks report, and what agents read in their output, passes by here on its way to the control plane. One thread
//! keeps a `Monitor` for each run; when it is sure of something new, that becomes a note of the job. It decides
//! nothing, and what it cannot take in time is dropped: control and heartbeats never wait for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bedplate_catalog::Catalog;
use bedplate_control::JobRemedy;
use bedplate_control::wire::{FromAgent, RunId};
use bedplate_diagnose::{
    Case, Culprit, FollowUp, JobVerdict, Machines, Monitor, NamedLog, NodeMove, Planned, Policy, diagnose,
    plan_of,
};
use bedplate_finding::OpenFinding;
use bedplate_gangs::JobId;
use bedplate_health::counters::CounterWindows;
use bedplate_host::clock::unix_time;
use bedplate_logs::{LogReader, Recognizer};
use bedplate_report::{Expectation, OWN_TRAINER, Report, RunArguments};
use tokio::runtime::Handle;
use tracing::{debug, warn};

use crate::control_thread::{ControlThread, SLICE};

/// What may wait to be taken in.
const INBOX: usize = 65_536;
/// How often runs are judged; those of very many ranks less often.
const JUDGE_EVERY: Duration = Duration::from_secs(1);
const MANY_RANKS: u32 = 1_000;
const JUDGE_MANY_EVERY: u32 = 5;
/// Errors of the ranks of a run come one after the other; they are judged so long after the first. A job may write such lines
/// without end: no more than these are kept.
const MOST_ERRORS: u32 = 4_096;
const ERRORS_SETTLE: Duration = Duration::from_millis(1_500);
/// A run that says nothing for so long is looked up, and forgotten if it is over.
const QUIET: Duration = Duration::from_secs(30);
/// Runs that are watched, and notes that one run gets.
const MOST_RUNS: usize = 20_000;
const MOST_NOTES: usize = 12;

/// The way to the thread, and what it has found.
#[derive(Debug, Clone)]
pub(crate) struct Diagnosing {
    inbox: SyncSender<Heard>,
    found: Arc<Mutex<BTreeMap<u64, Vec<JobVerdict>>>>,
}

#[derive(Debug)]
enum Heard {
    Report { node: Arc<str>, run: RunId, rank: u32, report: Report, at: f64 },
    Findings { node: Arc<str>, findings: Vec<OpenFinding>, at: f64 },
    Counters { node: Arc<str>, readings: Vec<(String, f64)>, at: f64 },
}

impl Diagnosing {
    /// The channel is there before the control plane is; [`Receiver::start`] begins to watch.
    pub(crate) fn new() -> (Self, Receiver) {
        let (inbox, heard) = mpsc::sync_channel(INBOX);
        let found = Arc::default();
        (Self { inbox, found: Arc::clone(&found) }, Receiver { heard, found })
    }

    /// An agent says something; what is of no interest costs nothing.
    pub(crate) fn hear(&self, node: &Arc<str>, message: &FromAgent) {
        let (node, at) = (node.clone(), now());
        let heard = match message {
            FromAgent::Report { run, rank, report } => {
                Heard::Report { node, run: *run, rank: *rank, report: report.clone(), at }
            }
            FromAgent::Findings { findings } => Heard::Findings { node, findings: findings.clone(), at },
            FromAgent::Counters { readings } => Heard::Counters { node, readings: readings.clone(), at },
            // A control plane that starts again hears of what is wrong by these.
            FromAgent::Heartbeat { findings, .. } if !findings.is_empty() => {
                Heard::Findings { node, findings: findings.clone(), at }
            }
            _ => return,
        };
        // Too much at once: the next report says the same again.
        let _ = self.inbox.try_send(heard);
    }

    /// What is wrong with a job now.
    pub(crate) fn of(&self, job: u64) -> Vec<JobVerdict> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).get(&job).cloned().unwrap_or_default()
    }

    /// The same of the first verdict, in a line.
    pub(crate) fn in_short(&self, job: u64) -> Option<String> {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.get(&job)?.first().map(JobVerdict::in_short)
    }

    /// All jobs with which something is wrong, with the kind and the cause of the first verdict.
    pub(crate) fn all(&self) -> Vec<(u64, &'static str, &'static str)> {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let first = |(job, verdicts): (&u64, &Vec<JobVerdict>)| {
            verdicts.first().map(|verdict| (*job, verdict.kind.name(), verdict.cause.name()))
        };
        found.iter().filter_map(first).collect()
    }
}

/// The thread before it runs.
pub(crate) struct Receiver {
    heard: mpsc::Receiver<Heard>,
    found: Arc<Mutex<BTreeMap<u64, Vec<JobVerdict>>>>,
}

impl Receiver {
    pub(crate) fn start(self, control: ControlThread, policy: Policy) {
        let watching = Watching {
            control,
            policy,
            catalog: Catalog::builtin(),
            runtime: Handle::current(),
            recognizer: Box::leak(Box::new(Recognizer::built_in())),
            found: self.found,
            runs: BTreeMap::new(),
            facts: BTreeMap::new(),
            counters: BTreeMap::new(),
            turns: 0,
        };
        let heard = self.heard;
        if let Err(error) =
            thread::Builder::new().name("diagnosis".into()).spawn(move || watching.run(&heard))
        {
            warn!("jobs are not diagnosed while they run: {error}");
        }
    }
}

struct Watching {
    control: ControlThread,
    /// What the site wants done about a verdict.
    policy: Policy,
    catalog: Catalog,
    runtime: Handle,
    recognizer: &'static Recognizer,
    found: Arc<Mutex<BTreeMap<u64, Vec<JobVerdict>>>>,
    runs: BTreeMap<RunId, Watched>,
    /// What nodes said of themselves last.
    facts: BTreeMap<Arc<str>, Vec<OpenFinding>>,
    /// What counters of nodes were.
    counters: BTreeMap<Arc<str>, CounterWindows>,
    turns: u32,
}

struct Watched {
    monitor: Monitor,
    nodes: BTreeSet<Arc<str>>,
    ranks: BTreeSet<u32>,
    errors: LogReader<'static>,
    error_lines: u32,
    /// When the first error came that has not been judged.
    errors_since: Option<Instant>,
    crash: Option<JobVerdict>,
    /// Its log has said what it trains.
    has_arguments: bool,
    /// What is wrong and was told, and how many notes that took in all.
    told: BTreeSet<String>,
    notes: usize,
    heard: Instant,
}

/// What the control plane knows of a run.
struct Known {
    is_running: bool,
    /// A prediction; what it took at first is what the monitor finds out itself.
    expected: Option<Expectation>,
}

impl Watching {
    fn run(mut self, heard: &mpsc::Receiver<Heard>) {
        let mut judged = Instant::now();
        loop {
            let pause = JUDGE_EVERY.saturating_sub(judged.elapsed());
            match heard.recv_timeout(pause) {
                Ok(said) => {
                    self.take(said);
                    // A flood must not keep it from judging.
                    if judged.elapsed() < JUDGE_EVERY {
                        continue;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            judged = Instant::now();
            self.judge();
        }
    }

    fn take(&mut self, said: Heard) {
        match said {
            Heard::Findings { node, findings, at } => {
                for watched in self.runs.values_mut().filter(|watched| watched.nodes.contains(&node)) {
                    findings.iter().for_each(|open| watched.monitor.finding(&node, at, &open.finding));
                }
                self.facts.insert(node, findings);
            }
            Heard::Counters { node, readings, at } => {
                let windows = self.counters.entry(node).or_default();
                readings.iter().for_each(|(metric, value)| windows.take(metric, at, *value));
            }
            Heard::Report { node, run, rank, report, at } => {
                if !self.runs.contains_key(&run) {
                    let is_of_interest =
                        matches!(report, Report::Step(_) | Report::Log { .. } | Report::Arguments(_));
                    if !is_of_interest || self.runs.len() >= MOST_RUNS || !self.begin(run) {
                        return;
                    }
                }
                let Some(watched) = self.runs.get_mut(&run) else { return };
                watched.heard = Instant::now();
                watched.ranks.insert(rank);
                watched.monitor.member(rank, &node, None);
                if watched.nodes.insert(node.clone())
                    && let Some(findings) = self.facts.get(&node)
                {
                    findings.iter().for_each(|open| watched.monitor.finding(&node, at, &open.finding));
                }
                match report {
                    Report::Log { line } if watched.error_lines < MOST_ERRORS => {
                        watched.error_lines += 1;
                        watched.errors.feed(format!("[rank{rank}]: {line}\n").as_bytes());
                        watched.errors_since.get_or_insert_with(Instant::now);
                    }
                    Report::Arguments(arguments) if !watched.has_arguments => {
                        watched.has_arguments = true;
                        if arguments.trainer != OWN_TRAINER {
                            self.plan(run, rank, &arguments);
                        }
                    }
                    report => watched.monitor.report(rank, at, &report),
                }
            }
        }
    }

    /// A plan of what the log tells, as the job's own expectation. One that was submitted counts before it, and devices that
    /// are pretended have none.
    fn plan(&mut self, run: RunId, rank: u32, arguments: &RunArguments) {
        let job = JobId(run.job);
        let asked = self.control.ask(move |control, _| control.machines(job));
        let Ok(Some(machines)) = self.runtime.block_on(asked) else { return };
        let Some(kind) = machines.kinds.first().filter(|_| !machines.is_pretended) else { return };
        if machines.kinds.iter().any(|other| other.name != kind.name) {
            return;
        }
        let machines = Machines { kind: kind.clone(), nodes: machines.kinds.len() as u32 };
        match plan_of(arguments, &machines, &self.catalog) {
            Ok(Planned { breakdown, source }) => {
                let report = Report::Predicted { breakdown: Box::new(breakdown), source: Some(source) };
                if let Some(watched) = self.runs.get_mut(&run) {
                    watched.monitor.report(rank, now(), &report);
                }
                let tell = self.control.tell(move |control, now| control.planned(run, rank, report, now));
                self.runtime.block_on(tell);
            }
            Err(why) => debug!(job = run.job, "there is no plan of what its log tells: {why}"),
        }
    }

    /// A run of which nothing was heard before.
    fn begin(&mut self, run: RunId) -> bool {
        let Some(known) = self.known(run) else { return false };
        self.runs.insert(
            run,
            Watched {
                monitor: Monitor::new(known.expected),
                nodes: BTreeSet::new(),
                ranks: BTreeSet::new(),
                errors: LogReader::new(self.recognizer),
                error_lines: 0,
                errors_since: None,
                crash: None,
                has_arguments: false,
                told: BTreeSet::new(),
                notes: 0,
                heard: Instant::now(),
            },
        );
        true
    }

    fn known(&self, run: RunId) -> Option<Known> {
        let asked = self.control.ask(move |control, _| {
            let job = JobId(run.job);
            control.job_state(job)?;
            let expected = control.expectation(job).filter(Expectation::is_prediction);
            Some(Known { is_running: control.is_running(run), expected })
        });
        self.runtime.block_on(asked).ok()?
    }

    fn judge(&mut self) {
        self.turns = self.turns.wrapping_add(1);
        let (now, turns) = (now(), self.turns);
        let mut news = Vec::new();
        let mut quiet = Vec::new();
        for (run, watched) in &mut self.runs {
            if watched.heard.elapsed() > QUIET && turns.is_multiple_of(8) {
                quiet.push(*run);
            }
            if watched.ranks.len() > MANY_RANKS as usize && !turns.is_multiple_of(JUDGE_MANY_EVERY) {
                continue;
            }
            if watched.errors_since.is_some_and(|since| since.elapsed() > ERRORS_SETTLE) {
                watched.errors_since = None;
                watched.crash = crash(&watched.errors, watched.ranks.len(), self.recognizer);
            }
            let mut verdicts: Vec<JobVerdict> = watched.crash.iter().cloned().collect();
            verdicts.extend(watched.monitor.judge(now));
            verdicts.iter_mut().for_each(|verdict| corroborate(verdict, &watched.nodes, &self.counters));
            news.push((*run, verdicts));
        }
        for (run, verdicts) in news {
            self.tell(run, verdicts);
        }
        for slice in quiet.chunks(SLICE) {
            self.forget_ended(slice);
        }
    }

    /// Forgets those whose jobs are over; a control plane that has no time to say so is asked again later.
    fn forget_ended(&mut self, runs: &[RunId]) {
        let asked = runs.to_vec();
        let lives = self.control.ask(move |control, _| {
            asked.iter().map(|run| control.job_state(JobId(run.job)).is_some()).collect::<Vec<bool>>()
        });
        let Ok(lives) = self.runtime.block_on(lives) else { return };
        for (run, lives) in runs.iter().zip(lives) {
            match self.runs.get_mut(run) {
                Some(watched) if lives => watched.heard = Instant::now(),
                _ => {
                    self.runs.remove(run);
                    self.found().remove(&run.job);
                }
            }
        }
    }

    /// Keeps what is wrong with a run, and makes a note of what is new and sure.
    fn tell(&mut self, run: RunId, mut verdicts: Vec<JobVerdict>) {
        verdicts.retain(|verdict| verdict.is_firm);
        let Some(watched) = self.runs.get_mut(&run) else { return };
        let fresh: Vec<JobVerdict> = verdicts
            .iter()
            .filter(|verdict| !watched.told.contains(&key_of(verdict)))
            .take(MOST_NOTES.saturating_sub(watched.notes))
            .cloned()
            .collect();
        // What has passed is told again when it comes back, within the same number of notes.
        watched.told.retain(|key| verdicts.iter().any(|verdict| key_of(verdict) == *key));
        if !fresh.is_empty() {
            let has_errors = watched.crash.is_some();
            // What stands still because it has ended, or was suspended, is no finding.
            if !has_errors && !self.known(run).is_some_and(|known| known.is_running) {
                self.found().remove(&run.job);
                return;
            }
            let Some(watched) = self.runs.get_mut(&run) else { return };
            watched.notes += fresh.len();
            watched.told.extend(fresh.iter().map(key_of));
            let follow: Vec<Follow> = fresh.iter().filter_map(|verdict| self.follow(verdict)).collect();
            let tell = self.control.tell(move |control, now| {
                for Follow { text, remedies } in follow {
                    control.diagnosed(JobId(run.job), format!("diagnosis: {text}"), now);
                    remedies.iter().for_each(|remedy| control.remedy(run, remedy, &text, now));
                }
            });
            self.runtime.block_on(tell);
        }
        match verdicts.is_empty() {
            true => drop(self.found().remove(&run.job)),
            false => drop(self.found().insert(run.job, verdicts)),
        }
    }

    /// What the site wants done about a verdict; nothing where it is only kept.
    fn follow(&self, verdict: &JobVerdict) -> Option<Follow> {
        let remedies = match self.policy.after(verdict) {
            FollowUp::Nothing => return None,
            FollowUp::Tell => Vec::new(),
            FollowUp::Dump => vec![JobRemedy::Dump],
            // What hangs is worth knowing before it is gone.
            FollowUp::Restart => vec![JobRemedy::Dump, JobRemedy::Restart],
            FollowUp::Replace => {
                let (mut ranks, mut nodes) = (Vec::new(), Vec::new());
                for culprit in &verdict.culprits {
                    match culprit {
                        Culprit::Rank(rank) => ranks.push(*rank),
                        Culprit::Node(node) => nodes.push(node.clone()),
                        _ => {}
                    }
                }
                vec![JobRemedy::Dump, JobRemedy::Replace { ranks, nodes }]
            }
        };
        Some(Follow { text: verdict.to_string(), remedies })
    }

    fn found(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, Vec<JobVerdict>>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is told of a verdict, and what is to be done.
struct Follow {
    text: String,
    remedies: Vec<JobRemedy>,
}

/// Reads what nodes of the job counted around the onset together with the verdict.
fn corroborate(
    verdict: &mut JobVerdict,
    nodes: &BTreeSet<Arc<str>>,
    counters: &BTreeMap<Arc<str>, CounterWindows>,
) {
    let Some(onset) = verdict.since.unix_seconds else { return };
    let known = nodes.iter().filter_map(|node| Some((node, counters.get(node)?)));
    let moves = known
        .flat_map(|(node, windows)| windows.moved(onset).into_iter().map(|moved| NodeMove { node, moved }));
    verdict.corroborate(&moves.collect::<Vec<_>>(), nodes.len());
}

/// By which two verdicts are the same.
fn key_of(verdict: &JobVerdict) -> String {
    format!("{}{}{:?}", verdict.kind, verdict.cause, verdict.culprits)
}

/// What the errors that ranks printed come to.
fn crash(errors: &LogReader<'_>, ranks: usize, recognizer: &Recognizer) -> Option<JobVerdict> {
    let log = NamedLog { name: "output".to_owned(), log: errors.so_far().clone() };
    let case = Case { logs: vec![log], ranks: u32::try_from(ranks).ok(), ..Case::default() };
    diagnose(&case, recognizer).verdicts.into_iter().next()
}

fn now() -> f64 {
    unix_time().as_secs_f64()
}
