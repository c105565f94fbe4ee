//! Faults brought upon real ranks: jobs of PyTorch on a temporary cluster, each with one thing that goes wrong.
//!
//! Ranks mostly wait, so two processors suffice for four of them. What a job is told to do to itself is in `real/ranks.py`; ranks are
//! stopped and continued from here. What the cluster says of each job, and when, is scored as for simulated gangs.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bedplate_diagnose::{Cause, Culprit, JobVerdict};
use bedplate_drivers::{Driver, JobId, JobOrder, Local, new_submission_key};
use bedplate_host::clock::unix_time;
use bedplate_job::{Gang, Job, Role, Workload};
use bedplate_local::machine::{Process, command_line, processes_with};
use bedplate_local::{TemporaryCluster, Wanted};
use bedplate_random::Random;
use bedplate_terminal::present::{Column, Table};
use bedplate_terminal::{CliError, Console, Context};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::score::{Answer, Confusion, name};
use crate::comm::peers::torch;
use crate::product::launcher;

const PROGRAM: &str = include_str!("real/ranks.py");
const RANKS: u32 = 4;
/// Of a step; ranks wait for most of it.
const STEP_S: f64 = 0.1;
/// The first step that may be hit: what is usual is known by then.
const EARLIEST: u64 = 60;
/// How long a job is watched after its fault, a healthy one from its start, and how long it may take to get there.
const WATCHED: Duration = Duration::from_secs(30);
const HEALTHY: Duration = Duration::from_secs(45);
const STARTING: Duration = Duration::from_secs(180);
const LOOK: Duration = Duration::from_millis(100);
const PERIOD: Duration = Duration::from_millis(50);
const IN_TIME_S: f64 = 15.0;
const STALL_IN_TIME_S: f64 = 5.0;

/// Something that goes wrong, and what is to be said of it.
struct Case {
    name: &'static str,
    truth: Answer,
    /// One rank is to blame.
    has_culprit: bool,
    /// All ranks stand or end.
    stops: bool,
    /// Stopped for this share of the time.
    stopped: f64,
    /// Whether lines of a log tell it, too.
    in_logs: bool,
}

const fn case(name: &'static str, truth: Answer, has_culprit: bool, stops: bool, in_logs: bool) -> Case {
    Case { name, truth, has_culprit, stops, stopped: 0.0, in_logs }
}

const fn stopped(name: &'static str, share: f64) -> Case {
    Case { stopped: share, ..case(name, Some(Cause::Hardware), true, false, false) }
}

const CASES: [Case; 17] = [
    case("healthy", None, false, false, true),
    stopped("stopped-10", 0.1),
    stopped("stopped-30", 0.3),
    stopped("stopped-60", 0.6),
    // Nothing tells why a process stands, but who it is.
    Case { stopped: 1.0, ..case("frozen", Some(Cause::Unknown), true, true, false) },
    case("stuck", Some(Cause::Application), true, true, false),
    case("leaves-early", Some(Cause::Application), true, true, false),
    case("mismatched", Some(Cause::Application), true, true, false),
    case("loader-one", Some(Cause::Application), true, false, false),
    case("loader-all", Some(Cause::Application), false, false, false),
    case("more-work", Some(Cause::Application), false, false, false),
    case("skewed-lengths", Some(Cause::Application), false, false, false),
    case("not-a-number", Some(Cause::Application), false, false, true),
    case("loss-spike", Some(Cause::Application), false, false, false),
    case("data-error", Some(Cause::Application), true, true, true),
    case("out-of-memory", Some(Cause::OutOfMemory), true, true, true),
    case("disk-full", Some(Cause::Storage), true, true, true),
];

/// Which jobs are run.
pub(super) struct Asked<'a> {
    pub(super) seeds: u64,
    pub(super) first_seed: u64,
    pub(super) only: &'a [String],
    pub(super) python: Option<&'a Path>,
    pub(super) package: &'a Path,
}

struct Outcome {
    case: &'static Case,
    reports: bool,
    shards: bool,
    answer: Answer,
    named: Vec<u32>,
    culprit: Option<u32>,
    delay_s: Option<f64>,
    false_alarm: bool,
    watched_s: f64,
    summary: String,
}

pub(super) fn run(asked: &Asked<'_>, context: &Context, console: &mut Console) -> Result<(), CliError> {
    let python = torch(asked.python, console)?;
    let wanted = Wanted { nodes: Some(RANKS), ..Wanted::default() };
    let cluster = TemporaryCluster::start(&wanted, &context.load_catalog()?, launcher(context, console)?)?;
    let failed = |path: &Path| {
        let path = path.display().to_string();
        move |error: io::Error| super::DiagnoseError::Input { path, why: error.to_string() }
    };
    let package = asked.package.canonicalize().map_err(failed(asked.package))?;
    let bench = Bench { python, package, folder: cluster.folder().join("real") };
    let written = fs::create_dir_all(&bench.folder).and_then(|()| fs::write(bench.program(), PROGRAM));
    written.map_err(failed(&bench.folder))?;
    let mut outcomes = Vec::new();
    for seed in asked.first_seed..asked.first_seed + asked.seeds {
        for (at, case) in CASES.iter().enumerate() {
            let is_asked = asked.only.is_empty() || asked.only.iter().any(|name| name == case.name);
            if !is_asked {
                continue;
            }
            let mut random = Random::new(seed.wrapping_mul(1009).wrapping_add(at as u64));
            let outcome = bench.one(&cluster.driver, case, &mut random)?;
            console.say(&outcome.line());
            outcomes.push(outcome);
        }
    }
    cluster.stop()?;
    show(&outcomes, console)
}

struct Bench {
    python: PathBuf,
    package: PathBuf,
    folder: PathBuf,
}

impl Bench {
    fn program(&self) -> PathBuf {
        self.folder.join("ranks.py")
    }

    fn one(&self, driver: &Local, case: &'static Case, random: &mut Random) -> Result<Outcome, CliError> {
        let reports = !case.in_logs || random.chance(50);
        let culprit = case.has_culprit.then(|| random.below(RANKS as usize) as u32);
        let onset = EARLIEST + random.below(40) as u64;
        let mark = self.folder.join("mark");
        let _ = fs::remove_file(&mark);
        let is_external = case.stopped > 0.0;
        let shards = reports && random.chance(33);
        let told = json!({
            "fault": case.name, "culprit": culprit.map_or(-1, i64::from), "onset": if case.truth.is_none() { u64::MAX >> 1 } else { onset },
            "step_s": STEP_S, "steps": 100_000, "reports": reports, "shards": shards, "mark": mark,
        });
        let id = submit(driver, self.job(&told))?;
        let mut outcome = Outcome {
            case,
            reports,
            shards,
            answer: None,
            named: Vec::new(),
            culprit,
            delay_s: None,
            false_alarm: false,
            watched_s: 0.0,
            summary: String::new(),
        };
        let began = Instant::now();
        let mut happened: Option<f64> = None;
        let mut duty: Option<Duty> = None;
        loop {
            thread::sleep(LOOK);
            let detail = driver.job(&id)?;
            if happened.is_none() {
                happened = fs::read_to_string(&mark).ok().and_then(|text| text.parse().ok());
                if happened.is_some() && is_external {
                    duty = culprit.and_then(|rank| Duty::start(&id, rank, case.stopped));
                }
            }
            let now = unix_time().as_secs_f64();
            let firm = detail.diagnosis.iter().find(|verdict| verdict.is_firm);
            if let Some(verdict) = firm {
                outcome.take(verdict, happened.map(|then| now - then));
            }
            let has_ended = detail.summary.life.state.is_final();
            let since = happened.map(|then| Duration::from_secs_f64((now - then).max(0.0)));
            let is_over = match since {
                Some(since) => since > WATCHED || (outcome.is_right() && since > Duration::from_secs(8)),
                None if case.truth.is_none() => began.elapsed() > HEALTHY,
                None => began.elapsed() > STARTING,
            };
            if is_over || (has_ended && since.is_some_and(|since| since > Duration::from_secs(4))) {
                let mut notes = detail.notes.iter().filter_map(|note| note.text.strip_prefix("diagnosis: "));
                if outcome.answer.is_none() && happened.is_some() {
                    outcome.take_note(notes.next_back());
                }
                break;
            }
        }
        outcome.watched_s = began.elapsed().as_secs_f64();
        drop(duty);
        if !driver.job(&id)?.summary.life.state.is_final() {
            driver.order(&id, JobOrder::Cancel)?;
        }
        wait_for_end(driver, &id)?;
        Ok(outcome)
    }

    fn job(&self, told: &Value) -> Job {
        let path = format!("PYTHONPATH={}", self.package.display());
        let words = [
            "/usr/bin/env".to_owned(),
            path,
            "OMP_NUM_THREADS=1".to_owned(),
            "CUDA_VISIBLE_DEVICES=".to_owned(),
            self.python.display().to_string(),
            self.program().display().to_string(),
            told.to_string(),
        ];
        let role = Role { nodes: RANKS, ..Role::named(Role::ONLY) };
        let mut job = Job::new("ranks", Workload::command(words), Gang::of(role));
        job.working_directory = Some(self.folder.display().to_string());
        job
    }
}

impl Outcome {
    fn take(&mut self, verdict: &JobVerdict, since: Option<f64>) {
        let Some(since) = since else {
            self.false_alarm = true;
            self.summary = verdict.to_string();
            if self.case.truth.is_none() {
                self.answer = Some(verdict.cause);
            }
            return;
        };
        self.delay_s.get_or_insert(since);
        self.answer = Some(verdict.cause);
        self.summary = verdict.to_string();
        let rank = |culprit: &Culprit| match culprit {
            Culprit::Rank(rank) => Some(*rank),
            _ => None,
        };
        self.named = verdict.culprits.iter().filter_map(rank).collect();
    }

    /// A job that has ended has its diagnosis in its notes.
    fn take_note(&mut self, note: Option<&str>) {
        let Some(note) = note else { return };
        self.summary = note.to_owned();
        let cause = note.split(": ").nth(1).unwrap_or("");
        let cause = Cause::KNOWN.into_iter().find(|known| cause.starts_with(known.name()));
        self.answer = Some(cause.unwrap_or(Cause::Unknown));
        self.named = (0..RANKS).filter(|rank| note.contains(&format!("rank {rank}"))).collect();
        self.delay_s.get_or_insert(0.0);
    }

    fn is_right(&self) -> bool {
        self.answer == self.case.truth && self.is_culprit_right() != Some(false)
    }

    fn is_culprit_right(&self) -> Option<bool> {
        self.culprit.map(|culprit| self.named == [culprit])
    }

    fn is_in_time(&self) -> bool {
        let limit = if self.case.stops { STALL_IN_TIME_S } else { IN_TIME_S };
        self.delay_s.is_some_and(|delay| delay <= limit)
    }

    fn line(&self) -> String {
        let how = match (self.reports, self.shards) {
            (true, true) => "FSDP, reports",
            (true, false) => "DDP, reports",
            _ => "DDP, logs",
        };
        let delay = self.delay_s.map_or("never".to_owned(), |delay| format!("{delay:.1} s"));
        format!("{} ({how}): {} after {delay}: {}", self.case.name, name(self.answer), self.summary)
    }
}

/// A process that is stopped for a share of the time, or altogether, and goes on when this is dropped.
struct Duty {
    process: Pid,
    ends: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Duty {
    fn start(id: &JobId, rank: u32, share: f64) -> Option<Self> {
        let is_ours = |process: &Process| {
            process.variable("BEDPLATE_JOB") == Some(&id.to_string())
                && process.variable("RANK") == Some(&rank.to_string())
                && command_line(process.pid).contains("ranks.py")
        };
        // The oldest is the rank itself, not a helper that it started.
        let process = processes_with("BEDPLATE_JOB").into_iter().find(is_ours)?;
        let process = Pid::from_raw(i32::try_from(process.pid).ok()?);
        let ends = Arc::new(AtomicBool::new(false));
        let ended = ends.clone();
        let on = PERIOD.mul_f64(share);
        let thread = thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                let _ = kill(process, Signal::SIGSTOP);
                thread::sleep(on);
                if share < 1.0 {
                    let _ = kill(process, Signal::SIGCONT);
                    thread::sleep(PERIOD.saturating_sub(on));
                }
            }
        });
        Some(Self { process, ends, thread: Some(thread) })
    }
}

impl Drop for Duty {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = kill(self.process, Signal::SIGCONT);
    }
}

fn submit(driver: &Local, job: Job) -> Result<JobId, CliError> {
    Ok(driver.submit(&job, &new_submission_key())?.id)
}

fn wait_for_end(driver: &Local, id: &JobId) -> Result<(), CliError> {
    let began = Instant::now();
    while began.elapsed() < STARTING && !driver.job(id)?.summary.life.state.is_final() {
        thread::sleep(LOOK);
    }
    Ok(())
}

fn show(outcomes: &[Outcome], console: &mut Console) -> Result<(), CliError> {
    let mut confusion = Confusion::default();
    for outcome in outcomes {
        confusion.add(outcome.case.truth, outcome.answer);
    }
    let share = |part: usize, whole: usize| part as f64 / whole.max(1) as f64;
    let culprits: Vec<bool> = outcomes.iter().filter_map(Outcome::is_culprit_right).collect();
    let faulty = || outcomes.iter().filter(|outcome| outcome.case.truth.is_some());
    let in_time = share(faulty().filter(|outcome| outcome.is_in_time()).count(), faulty().count());
    let culprits_right = share(culprits.iter().filter(|right| **right).count(), culprits.len());
    let false_alarms = outcomes.iter().filter(|outcome| outcome.false_alarm).count();
    if console.is_json() {
        let each = |each: &Outcome| json!({ "fault": each.case.name, "reports": each.reports, "shards": each.shards, "true": name(each.case.truth), "answer": name(each.answer), "culprit": each.culprit, "named": each.named, "delay_s": each.delay_s, "false_alarm": each.false_alarm, "summary": each.summary });
        return console.json(&json!({
            "confusion": confusion.json(), "culprits_right": culprits_right, "in_time": in_time,
            "false_alarms": false_alarms, "jobs": outcomes.iter().map(each).collect::<Vec<Value>>(),
        }));
    }
    let mut table = Table::new(vec![
        Column::left("FAULT", 0),
        Column::left("SEEN BY", 0),
        Column::left("ANSWER", 0),
        Column::left("CULPRIT", 0),
        Column::right("AFTER", 0),
        Column::left("DIAGNOSIS", 2),
    ]);
    for each in outcomes {
        table.row(vec![
            each.case.name.to_owned(),
            if each.reports { "reports" } else { "log" }.to_owned(),
            name(each.answer).to_owned(),
            each.is_culprit_right().map_or("", |right| if right { "right" } else { "wrong" }).to_owned(),
            each.delay_s.map_or(String::new(), |delay| format!("{delay:.1} s")),
            each.summary.clone(),
        ]);
    }
    console.table(&table)?;
    console.line("")?;
    console.table(&confusion.table())?;
    let hours = outcomes.iter().map(|outcome| outcome.watched_s).sum::<f64>() / 3600.0;
    console.line(&format!(
        "\n{} jobs of {RANKS} real ranks, {hours:.2} hours: precision {:.3}, F1 {:.3}, culprit rank right in {:.0} % of {}, \
         in time (15 s, stalls 5 s) in {:.0} %, {false_alarms} with an alarm before the fault",
        outcomes.len(),
        confusion.precision(),
        confusion.f1(),
        100.0 * culprits_right,
        culprits.len(),
        100.0 * in_time,
    ))
}
