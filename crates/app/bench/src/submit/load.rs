//! The load: many jobs that do nothing, from several clients at once.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bedplate_drivers::{ClusterPlace, Driver, DriverError, JobFormat, Local, new_submission_key};
use bedplate_job::{Gang, Inherited, Job, Role, Workload};
use bedplate_terminal::CliError;
use bedplate_units::statistics::nearest_rank;

use super::{CPUS, NODES, SubmitBenchError};

/// The measurements of a system; absent ones do not apply to it.
#[derive(Debug, Default)]
pub(super) struct Measured {
    pub(super) submissions_per_s: Option<f64>,
    pub(super) p50_ms: Option<f64>,
    pub(super) p99_ms: Option<f64>,
    pub(super) drain_s: Option<f64>,
    pub(super) submissions_per_s_while_draining: Option<f64>,
    /// While clients ask why a job waits.
    pub(super) explained_p99_ms: Option<f64>,
    pub(super) explanations_per_s: Option<f64>,
    pub(super) daemon_mib: Option<f64>,
}

impl Measured {
    pub(super) fn figures(&self) -> [(&'static str, Option<f64>); 8] {
        [
            ("submissions_per_s", self.submissions_per_s),
            ("p50_ms", self.p50_ms),
            ("p99_ms", self.p99_ms),
            ("drain_s", self.drain_s),
            ("submissions_per_s_while_draining", self.submissions_per_s_while_draining),
            ("explained_p99_ms", self.explained_p99_ms),
            ("explanations_per_s", self.explanations_per_s),
            ("daemon_mib", self.daemon_mib),
        ]
    }
}

const PATIENCE: Duration = Duration::from_secs(300);

pub(super) fn measure(place: &ClusterPlace, jobs: u32, clients: u32) -> Result<Measured, CliError> {
    let driver = Local::new(place.clone());
    let body = no_op().to_json().to_string();
    let before = ended_count(&driver)?;
    let began = Instant::now();
    let draining = submit_all(place, &body, jobs, clients)?;
    wait_for_ended(&driver, before, jobs)?;
    let drain_s = began.elapsed().as_secs_f64();
    take_all_nodes(&driver)?;
    let waiting = submit_all(place, &body, jobs, clients)?;
    let (explained, explanations_per_s) = submit_all_while_asked(place, &body, jobs, clients)?;
    Ok(Measured {
        submissions_per_s: Some(waiting.per_second),
        p50_ms: Some(waiting.percentile(0.5)),
        p99_ms: Some(waiting.percentile(0.99)),
        drain_s: Some(drain_s),
        submissions_per_s_while_draining: Some(draining.per_second),
        explained_p99_ms: Some(explained.percentile(0.99)),
        explanations_per_s: Some(explanations_per_s),
        daemon_mib: None,
    })
}

/// A job that ends at once.
pub(super) fn no_op() -> Job {
    let mut job = Job::new("no-op", Workload::command(["/bin/true"]), Gang::of(Role::named(Role::ONLY)));
    job.environment.inherited = Inherited::Nothing;
    job.working_directory = Some("/".into());
    job.streams.stdout = Some("/dev/null".into());
    job
}

/// A job that holds every CPU, so that all others wait.
fn take_all_nodes(driver: &Local) -> Result<(), CliError> {
    let role = Role { nodes: NODES, cpus_per_task: CPUS, ..Role::named(Role::ONLY) };
    let mut blocker = Job::new("blocker", Workload::command(["/bin/sleep", "600"]), Gang::of(role));
    blocker.working_directory = Some("/".into());
    let blocker = driver.submit(&blocker, "blocker")?.id;
    let began = Instant::now();
    while driver.job(&blocker)?.summary.life.started_ms.is_none() && began.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

struct Rate {
    per_second: f64,
    /// Of each submission, ascending.
    milliseconds: Vec<f64>,
}

impl Rate {
    fn percentile(&self, part: f64) -> f64 {
        nearest_rank(&self.milliseconds, part).unwrap_or(0.0)
    }
}

fn submit_all(place: &ClusterPlace, body: &str, jobs: u32, clients: u32) -> Result<Rate, CliError> {
    let next = AtomicU32::new(0);
    let outcome: Mutex<(Vec<f64>, Option<DriverError>)> = Mutex::default();
    let key = new_submission_key();
    let began = Instant::now();
    thread::scope(|scope| {
        for _ in 0..clients.max(1) {
            scope.spawn(|| {
                let driver = Local::new(place.clone());
                let mut times = Vec::new();
                let mut failed = None;
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= jobs {
                        break;
                    }
                    let asked = Instant::now();
                    if let Err(error) = driver.submit_text(JobFormat::Json, body, &format!("{key}-{number}"))
                    {
                        failed = Some(error);
                        break;
                    }
                    times.push(asked.elapsed().as_secs_f64() * 1000.0);
                }
                let mut outcome = outcome.lock().expect("no client panics");
                outcome.0.extend(times);
                outcome.1 = outcome.1.take().or(failed);
            });
        }
    });
    let seconds = began.elapsed().as_secs_f64();
    let (mut milliseconds, failed) = outcome.into_inner().expect("no client panics");
    if let Some(error) = failed {
        return Err(error.into());
    }
    milliseconds.sort_by(f64::total_cmp);
    Ok(Rate { per_second: f64::from(jobs) / seconds, milliseconds })
}

/// Submits while four others ask without pause why a job waits; says how often they got an answer.
fn submit_all_while_asked(
    place: &ClusterPlace,
    body: &str,
    jobs: u32,
    clients: u32,
) -> Result<(Rate, f64), CliError> {
    const ASKING: u32 = 4;
    let waiting = Local::new(place.clone()).submit(&no_op(), "asked about")?.id;
    let is_over = AtomicBool::new(false);
    let answers = AtomicU32::new(0);
    let began = Instant::now();
    let rate = thread::scope(|scope| {
        for _ in 0..ASKING {
            scope.spawn(|| {
                let driver = Local::new(place.clone());
                while !is_over.load(Ordering::Relaxed) {
                    let is_answered = driver.explain(&waiting).is_ok();
                    answers.fetch_add(u32::from(is_answered), Ordering::Relaxed);
                }
            });
        }
        let rate = submit_all(place, body, jobs, clients);
        is_over.store(true, Ordering::Relaxed);
        rate
    });
    Ok((rate?, f64::from(answers.into_inner()) / began.elapsed().as_secs_f64()))
}

fn ended_count(driver: &Local) -> Result<u64, CliError> {
    let cluster = driver.cluster()?;
    Ok(cluster.rest.get("counts").and_then(|counts| counts["jobs_ended"].as_u64()).unwrap_or(0))
}

fn wait_for_ended(driver: &Local, before: u64, jobs: u32) -> Result<(), CliError> {
    let began = Instant::now();
    loop {
        let done = ended_count(driver)?.saturating_sub(before);
        if done >= u64::from(jobs) {
            return Ok(());
        }
        if began.elapsed() > PATIENCE {
            return Err(SubmitBenchError::Stuck { done, jobs, seconds: PATIENCE.as_secs() }.into());
        }
        thread::sleep(Duration::from_millis(10));
    }
}
