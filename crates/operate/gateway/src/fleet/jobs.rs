//! Replicas as jobs of a cluster, behind a router: as many as the load asks for.
//!
//! The cluster places them and starts them again when they fail. Here their addresses are found, in the first line that each
//! prints, and their number is decided by the policy that `bedplate replay requests` simulates. An update submits a job, waits
//! until it is ready, and only then takes an old one away.

use std::io::{self, Write};
use std::thread;
use std::time::{Duration, Instant};

use bedplate_drivers::{Driver, DriverError, JobId, JobOrder, JobState, LogQuery, new_submission_key};
use bedplate_job::Job;
use bedplate_replay::requests::{Scaling, replica_to_close, seconds};
use bedplate_supervise::{RestartBackoff, RestartPolicy};
use tracing::{info, warn};

use super::{Fleet, Shared};
use crate::error::GatewayError;
use crate::router::{Departure, Members, ReplicaHealth, ReplicaUrl};

/// How jobs are looked after.
#[derive(Debug, Clone)]
pub struct JobFleetOptions {
    pub scaling: Scaling,
    /// How long the new job of an update may take until it is ready, waiting for room included.
    pub start: Duration,
    /// How long a job may take to finish its requests.
    pub grace: Duration,
    /// The delay before a job takes the place of one that has ended for good; it doubles up to the longest.
    pub first_delay: Duration,
    pub longest_delay: Duration,
}

/// What has become of the jobs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct JobFleetState {
    /// Jobs that are replicas, or will be.
    pub jobs: Vec<JobId>,
    /// Updates that have come to their end, well or not.
    pub updates: u64,
}

/// Jobs that are looked after.
pub type JobFleet = Fleet<JobFleetState>;

impl JobFleet {
    /// Submits the first jobs and returns at once. Every job prints the URL of its replica as a line of rank 0.
    pub fn start(
        members: Members,
        driver: Box<dyn Driver>,
        options: JobFleetOptions,
        job: impl Fn() -> Job + Send + 'static,
    ) -> Result<Self, GatewayError> {
        let restarts = RestartBackoff::new(RestartPolicy {
            first_delay: options.first_delay,
            longest_delay: options.longest_delay,
            // One that is ready shows that jobs of this kind start.
            recovered_after: Duration::ZERO,
            most: None,
        });
        Self::on_a_thread("jobs", |shared| {
            let mut keeper = Keeper {
                members,
                driver,
                restarts,
                options,
                job: Box::new(job),
                shared,
                replicas: Vec::new(),
                leavers: Vec::new(),
                generation: 0,
                replacement: None,
                next_scaling: Instant::now(),
                has_complained: false,
            };
            move || keeper.run()
        })
    }
}

/// A job that is a replica, or will be.
struct Replica {
    job: JobId,
    /// The attempt whose address is known.
    run: u32,
    url: Option<ReplicaUrl>,
    generation: u64,
}

/// A job that gets no more requests.
struct Leaver {
    job: JobId,
    departure: Option<Departure>,
    until: Instant,
}

/// The new job of an update.
struct Replacement {
    job: JobId,
    until: Instant,
}

/// The thread that looks after the jobs.
struct Keeper {
    members: Members,
    driver: Box<dyn Driver>,
    options: JobFleetOptions,
    job: Box<dyn Fn() -> Job + Send>,
    shared: Shared<JobFleetState>,
    replicas: Vec<Replica>,
    leavers: Vec<Leaver>,
    generation: u64,
    replacement: Option<Replacement>,
    next_scaling: Instant,
    restarts: RestartBackoff,
    has_complained: bool,
}

impl Keeper {
    fn run(&mut self) {
        while !self.shared.lock().ends {
            match self.go_on() {
                Ok(()) => self.has_complained = false,
                Err(error) if !self.has_complained => {
                    self.has_complained = true;
                    warn!("{error}; the replicas stay as they are");
                }
                Err(_) => {}
            }
            self.publish();
            thread::sleep(self.driver.pause());
        }
        self.end();
    }

    fn go_on(&mut self) -> Result<(), DriverError> {
        self.look()?;
        self.let_go()?;
        self.update()?;
        if self.replacement.is_none() && Instant::now() >= self.next_scaling {
            self.next_scaling = Instant::now() + interval(&self.options.scaling);
            self.scale()?;
        }
        Ok(())
    }

    /// Notes what the jobs do: new attempts have new addresses, and those that have ended for good are given up.
    fn look(&mut self) -> Result<(), DriverError> {
        for at in (0..self.replicas.len()).rev() {
            let detail = match self.driver.job(&self.replicas[at].job) {
                // The cluster knows nothing of it any more.
                Err(error @ DriverError::Refused { .. }) => {
                    self.forget_address(at);
                    self.give_up(at, &error.to_string());
                    continue;
                }
                detail => detail?,
            };
            let (state, run) = (detail.summary.life.state, detail.summary.life.runs);
            if state != JobState::Running || self.replicas[at].run != run {
                self.forget_address(at);
                self.replicas[at].run = run;
            }
            if state == JobState::Running && self.replicas[at].url.is_none() {
                self.find_address(at, run)?;
            }
            if state.is_final() {
                let reason = detail.summary.life.reason.as_ref().map(ToString::to_string);
                self.give_up(at, reason.as_deref().unwrap_or(state.name()));
            }
        }
        Ok(())
    }

    fn forget_address(&mut self, at: usize) {
        if let Some(url) = self.replicas[at].url.take() {
            self.members.remove(&url);
        }
    }

    fn find_address(&mut self, at: usize, run: u32) -> Result<(), DriverError> {
        let mut printed = Bounded(Vec::new());
        let query = LogQuery { run: Some(run), ..LogQuery::default() };
        match self.driver.logs(&self.replicas[at].job, &query, &mut printed) {
            // A log that is too long has its beginning here, and one that is not there yet will be.
            Ok(_) => {}
            Err(error) if printed.0.is_empty() => return Err(error),
            Err(_) => {}
        }
        if let Some(url) = address(&printed.0) {
            self.members.add(&url);
            self.replicas[at].url = Some(url);
        }
        Ok(())
    }

    fn give_up(&mut self, at: usize, why: &str) {
        let replica = self.replicas.remove(at);
        let delay = self.restarts.dies(Instant::now()).unwrap_or_default();
        let Replica { job, run, .. } = replica;
        warn!(
            %job,
            run,
            "job {job} has ended ({why}); another one is submitted in {:.1} s",
            delay.as_secs_f64()
        );
    }

    /// Cancels jobs that have nothing more to do.
    fn let_go(&mut self) -> Result<(), DriverError> {
        let is_done = |leaver: &Leaver| {
            let is_idle = leaver.departure.as_ref().is_none_or(|departure| departure.sequences() == 0);
            is_idle || Instant::now() >= leaver.until
        };
        while let Some(at) = self.leavers.iter().position(is_done) {
            self.driver.order(&self.leavers[at].job, JobOrder::Cancel)?;
            self.leavers.remove(at);
        }
        Ok(())
    }

    /// As many replicas as the policy wants: all that are missing at once, and one less at a time.
    fn scale(&mut self) -> Result<(), DriverError> {
        let desired = self.options.scaling.desired(self.members.sequences()) as usize;
        if self.replicas.len() < desired && self.restarts.is_due(Instant::now()) {
            for _ in self.replicas.len()..desired {
                self.submit()?;
            }
        }
        if desired < self.replicas.len() {
            let open = self.replicas.iter().enumerate().filter(|(_, replica)| self.is_in(replica));
            let loads = open.map(|(at, replica)| (at, self.sequences_of(replica)));
            if let Some(at) = replica_to_close(loads) {
                self.retire(at);
            }
        }
        if self.replicas.iter().any(|replica| self.is_in(replica)) {
            self.restarts.is_well(Instant::now());
        }
        Ok(())
    }

    fn is_in(&self, replica: &Replica) -> bool {
        replica.url.as_ref().and_then(|url| self.members.replica_health(url)) == Some(ReplicaHealth::In)
    }

    fn sequences_of(&self, replica: &Replica) -> u32 {
        replica.url.as_ref().map_or(0, |url| self.members.sequences_of(url))
    }

    fn submit(&mut self) -> Result<JobId, DriverError> {
        let job = (self.job)();
        let submitted = self.driver.submit(&job, &new_submission_key())?;
        let id = submitted.id;
        info!(job = %id, "submitted job {}", submitted.label);
        self.replicas.push(Replica { job: id.clone(), run: 0, url: None, generation: self.generation });
        Ok(id)
    }

    fn retire(&mut self, at: usize) {
        let replica = self.replicas.remove(at);
        let departure = replica.url.and_then(|url| self.members.remove(&url));
        let until = Instant::now() + self.options.grace;
        self.leavers.push(Leaver { job: replica.job, departure, until });
    }

    /// One step of an update: a new job, or the end of an old one whose successor is ready.
    fn update(&mut self) -> Result<(), DriverError> {
        if self.generation < self.shared.lock().updates && self.replacement.is_none() {
            self.generation += 1;
            info!("replaces the replicas one after the other");
        }
        let old = self.replicas.iter().position(|replica| replica.generation < self.generation);
        match (old, &self.replacement) {
            (Some(_), None) => {
                let job = self.submit()?;
                self.replacement = Some(Replacement { job, until: Instant::now() + self.options.start });
            }
            (Some(old), Some(new)) => {
                let found = self.replicas.iter().find(|replica| replica.job == new.job);
                match found {
                    Some(replica) if self.is_in(replica) => {
                        self.replacement = None;
                        self.retire(old);
                    }
                    Some(_) if Instant::now() < new.until => {}
                    _ => self.give_update_up(),
                }
            }
            (None, _) => self.replacement = None,
        }
        Ok(())
    }

    fn give_update_up(&mut self) {
        let Some(new) = self.replacement.take() else { return };
        if let Some(at) = self.replicas.iter().position(|replica| replica.job == new.job) {
            self.retire(at);
        }
        self.replicas.iter_mut().for_each(|replica| replica.generation = self.generation);
        warn!(job = %new.job, "the new job {} was not ready in time; the others stay as they are", new.job);
    }

    fn publish(&self) {
        let jobs = self.replicas.iter().map(|replica| replica.job.clone()).collect();
        let is_updated = self.replicas.iter().all(|replica| replica.generation == self.generation);
        let updates = if is_updated { self.generation } else { self.generation.saturating_sub(1) };
        self.shared.lock().state = JobFleetState { jobs, updates };
    }

    fn end(&mut self) {
        let replicas = self.replicas.drain(..).map(|replica| (replica.job, replica.url));
        let all: Vec<_> = replicas.chain(self.leavers.drain(..).map(|leaver| (leaver.job, None))).collect();
        for (job, url) in all {
            url.map(|url| self.members.remove(&url));
            if let Err(error) = self.driver.order(&job, JobOrder::Cancel) {
                warn!(%job, "job {job} could not be cancelled: {error}");
            }
        }
        self.publish();
    }
}

fn interval(scaling: &Scaling) -> Duration {
    Duration::from_secs_f64(seconds(scaling.interval).clamp(0.0, 86_400.0))
}

/// The first line that is a URL, once all of it is there.
fn address(printed: &[u8]) -> Option<ReplicaUrl> {
    let text = String::from_utf8_lossy(printed);
    let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n')).map(str::trim);
    lines.filter(|line| line.starts_with("http://")).find_map(|line| line.parse().ok())
}

/// The beginning of a log.
struct Bounded(Vec<u8>);

const MOST_LOG: usize = 64 << 10;

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = MOST_LOG - self.0.len();
        if room == 0 {
            return Err(io::Error::other("the beginning of the log is enough"));
        }
        let taken = bytes.len().min(room);
        self.0.extend(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
