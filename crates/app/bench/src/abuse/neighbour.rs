//! The user who suffers: a job a second, a look at the nodes, and a gang that holds a place on every node all the time.

use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use bedplate_drivers::{
    ClusterPlace, Driver, DriverError, JobFormat, JobId, JobState, Local, NodeSummary, new_submission_key,
};
use bedplate_terminal::{CliError, ProgramError};
use bedplate_units::statistics::nearest_rank;

use super::strategies::job;

const EVERY: Duration = Duration::from_secs(1);
const SETTLED_WITHIN: Duration = Duration::from_secs(60);
/// How long jobs that were submitted last may take to end once the abuse is over.
const ENDED_WITHIN: Duration = Duration::from_secs(120);

/// What the other user went through.
#[derive(Default)]
pub(super) struct Experience {
    /// Of each submission and each look, ascending.
    pub(super) answers_ms: Vec<f64>,
    /// What was not answered, and jobs that failed.
    pub(super) failures: Vec<String>,
    /// Of the gang that stands on every node, and of nodes.
    pub(super) leases_lost: u64,
    jobs: Vec<JobId>,
    losses_before: u64,
}

impl Experience {
    pub(super) fn percentile(&self, part: f64) -> f64 {
        nearest_rank(&self.answers_ms, part).unwrap_or(0.0)
    }
}

pub(super) struct Neighbour {
    driver: Local,
    /// Holds a place on every node.
    gang: JobId,
    /// How often gang and nodes were lost, as far as it was told.
    losses: Mutex<u64>,
}

impl Neighbour {
    /// Starts the gang and waits until it runs.
    pub(super) fn settle(place: ClusterPlace, nodes: u32) -> Result<Self, CliError> {
        // What is not answered at once has failed.
        let driver = Local::new(place).with_patience(Duration::ZERO);
        let gang = job("gang", &["/bin/sleep", "1000000"], &format!("nodes = {nodes}\n"));
        let gang = gang.replace("10min", "365d");
        let gang = driver.submit_text(JobFormat::Toml, &gang, "gang")?.id;
        let began = Instant::now();
        while driver.job(&gang)?.summary.life.state != JobState::Running {
            if began.elapsed() > SETTLED_WITHIN {
                return Err(ProgramError::Bug { what: "the other user's gang does not start".into() }.into());
            }
            thread::sleep(Duration::from_millis(20));
        }
        let neighbour = Self { driver, gang, losses: Mutex::new(0) };
        let losses = neighbour.count_losses()?;
        *neighbour.losses.lock().expect("nothing panics with it") = losses;
        Ok(neighbour)
    }

    /// Submits a job a second for so long.
    pub(super) fn live(&self, length: Duration) -> Experience {
        let mut experience = Experience {
            losses_before: *self.losses.lock().expect("nothing panics with it"),
            ..Experience::default()
        };
        let own = job("own", &["/bin/true"], "");
        let began = Instant::now();
        for second in 0.. {
            let due = EVERY * second;
            if due >= length {
                break;
            }
            thread::sleep(due.saturating_sub(began.elapsed()));
            let submitted = experience
                .time("submit", || self.driver.submit_text(JobFormat::Toml, &own, &new_submission_key()));
            experience.jobs.extend(submitted.map(|submitted| submitted.id));
            experience.time("nodes", || self.driver.nodes());
        }
        experience.answers_ms.sort_by(f64::total_cmp);
        experience
    }

    /// How the jobs ended, and what was lost meanwhile.
    pub(super) fn look_back(&self, experience: &mut Experience) {
        let until = Instant::now() + ENDED_WITHIN;
        for job in std::mem::take(&mut experience.jobs) {
            match self.end_of(&job, until) {
                Ok(JobState::Succeeded) => {}
                Ok(state) => experience.failures.push(format!("job {job} is {state:?}")),
                Err(error) => experience.failures.push(format!("job {job}: {error}")),
            }
        }
        match self.count_losses() {
            Ok(losses) => {
                experience.leases_lost = losses.saturating_sub(experience.losses_before);
                *self.losses.lock().expect("nothing panics with it") = losses;
            }
            Err(error) => experience.failures.push(format!("the gang: {error}")),
        }
    }

    fn end_of(&self, job: &JobId, until: Instant) -> Result<JobState, DriverError> {
        loop {
            let state = self.driver.job(job)?.summary.life.state;
            if state.is_final() || Instant::now() > until {
                return Ok(state);
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn count_losses(&self) -> Result<u64, DriverError> {
        let gang = self.driver.job(&self.gang)?.summary.life;
        let of_gang = u64::from(gang.runs.saturating_sub(1)) + u64::from(gang.state.is_final());
        let of_nodes: usize = self.driver.nodes()?.iter().map(|node: &NodeSummary| node.losses).sum();
        Ok(of_gang + of_nodes as u64)
    }
}

impl Experience {
    fn time<T>(&mut self, what: &str, ask: impl FnOnce() -> Result<T, DriverError>) -> Option<T> {
        let asked = Instant::now();
        let answer = ask();
        self.answers_ms.push(asked.elapsed().as_secs_f64() * 1000.0);
        match answer {
            Ok(answer) => Some(answer),
            Err(error) => {
                self.failures.push(format!("{what}: {error}"));
                None
            }
        }
    }
}
