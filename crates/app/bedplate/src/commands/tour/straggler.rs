//! One rank of a training job is held up on purpose, and the cluster says which one.
//!
//! The rank's process is stopped and let go in turn, as a throttled processor or a busy neighbour would have it. Nothing here waits for
//! a time: the machine may be slow and loaded, so the story goes on after so many steps, found or not.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bedplate_drivers::{Driver, JobDetail, JobId, JobOrder, Local};
use bedplate_local::TemporaryCluster;
use bedplate_local::machine::{Process, processes_with};
use bedplate_terminal::{CliError, Console, Context, ProgramError};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::cluster::{Story, submit};

const RANK: u32 = 2;
/// Steps that show what is usual for each rank.
const STEPS_BEFORE: u64 = 40;
/// Steps within which it is found where the machine is not too busy to tell.
const STEPS_AFTER: u64 = 400;
/// It runs for the first part of each turn.
const RUNS: Duration = Duration::from_millis(30);
const STANDS: Duration = Duration::from_millis(70);
const PAUSE: Duration = Duration::from_millis(50);
/// Without a single further step for so long, something is broken.
const STUCK: Duration = Duration::from_secs(1200);

impl Story {
    /// A rank is slow: who, since when and why says `diagnose`.
    pub(super) fn slow_one_rank_down(
        &self,
        cluster: &TemporaryCluster,
        folder: &Path,
        context: &Context,
        console: &mut Console,
    ) -> Result<Value, CliError> {
        self.remark(
            console,
            &format!(
                "Not every fault kills. Another run on four nodes; once its usual pace is known, rank {RANK} is stopped for \
                 {} ms of every {}, as a throttled processor would be. All ranks become slow, because each step waits for the \
                 slowest. Which one is it?",
                STANDS.as_millis(),
                (RUNS + STANDS).as_millis()
            ),
        )?;
        self.command(
            console,
            "submit --nodes 4 --gpus-per-node 8 -- bedplate train train.toml --layout dp4 --set output.folder=slow",
        )?;
        let job = submit_endless(&cluster.driver, folder)?;
        self.line(console, job.as_str())?;
        let before = follow(&cluster.driver, &job, |detail| steps(detail) >= STEPS_BEFORE)?;
        let from = steps(&before);
        let held = HeldUp::begin(&job)?;
        let is_found = |detail: &JobDetail| !detail.diagnosis.is_empty();
        let seen =
            follow(&cluster.driver, &job, |detail| is_found(detail) || steps(detail) >= from + STEPS_AFTER)?;
        self.command(console, &format!("diagnose {job}"))?;
        match is_found(&seen) {
            // What is found is no failure of the tour.
            true => match self.run(&format!("diagnose {job}"), cluster, context, console) {
                Ok(()) | Err(CliError::Refused) => {}
                Err(error) => return Err(error),
            },
            false => self.line(
                console,
                &format!(
                    "nothing firm within {STEPS_AFTER} steps: this machine is too busy for ranks to differ"
                ),
            )?,
        }
        drop(held);
        cluster.driver.order(&job, JobOrder::Cancel)?;
        let found = seen.diagnosis.iter().map(|verdict| json!(verdict)).collect::<Vec<Value>>();
        Ok(
            json!({ "rank": RANK, "held_up_from_step": from, "found_at_step": steps(&seen), "diagnosis": found }),
        )
    }
}

/// A run that only its cancellation ends, on four nodes.
fn submit_endless(driver: &Local, folder: &Path) -> Result<JobId, CliError> {
    let program = std::env::current_exe().map_err(|error| ProgramError::Bug { what: error.to_string() })?;
    let program = program.display().to_string();
    let mut command = vec![&*program, "train", "train.toml", "--layout", "dp4"];
    for change in ["output.folder=slow", "training.steps=1000000", "evaluation.every=0", "checkpoint.every=0"]
    {
        command.extend(["--set", change]);
    }
    submit(driver, &["--nodes=4", "--gpus-per-node=8"], &command, &folder.display().to_string())
}

fn steps(detail: &JobDetail) -> u64 {
    detail.steps.as_ref().map_or(0, |steps| steps.steps)
}

/// The job as soon as it is so, however long that takes while its steps go on.
fn follow(driver: &Local, job: &JobId, is_so: impl Fn(&JobDetail) -> bool) -> Result<JobDetail, CliError> {
    let mut last = (0, Instant::now());
    loop {
        let detail = driver.job(job)?;
        if is_so(&detail) {
            return Ok(detail);
        }
        if steps(&detail) != last.0 {
            last = (steps(&detail), Instant::now());
        }
        if detail.summary.life.state.is_final() || last.1.elapsed() > STUCK {
            let what = format!("job {job} of the tour does not go on: {:?}", detail.summary.life);
            return Err(ProgramError::Bug { what }.into());
        }
        thread::sleep(PAUSE);
    }
}

/// The rank's process, stopped and let go in turn until this is dropped.
struct HeldUp {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl HeldUp {
    fn begin(job: &JobId) -> Result<Self, CliError> {
        let is_rank = |process: &Process| {
            process.variable("BEDPLATE_JOB") == Some(job.as_str())
                && process.variable("RANK") == Some(&RANK.to_string())
        };
        let pids: Vec<Pid> = processes_with("BEDPLATE_JOB")
            .into_iter()
            .filter(is_rank)
            .map(|process| Pid::from_raw(process.pid as i32))
            .collect();
        let failed = |what: String| ProgramError::Bug { what };
        if pids.is_empty() {
            return Err(failed(format!("rank {RANK} of job {job} has no process")).into());
        }
        let is_over = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&is_over);
        let turns = move || {
            // One that has ended needs no signal.
            let tell = |signal| {
                for pid in &pids {
                    let _ = kill(*pid, signal);
                }
            };
            while !flag.load(Ordering::Relaxed) {
                tell(Signal::SIGSTOP);
                thread::sleep(STANDS);
                tell(Signal::SIGCONT);
                thread::sleep(RUNS);
            }
        };
        let thread = thread::Builder::new()
            .name("straggler".into())
            .spawn(turns)
            .map_err(|error| failed(format!("cannot start a thread: {error}")))?;
        Ok(Self { is_over, thread: Some(thread) })
    }
}

impl Drop for HeldUp {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It only sleeps and sends signals, so it ends.
            let _ = thread.join();
        }
    }
}
