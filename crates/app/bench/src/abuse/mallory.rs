//! The user who abuses the cluster: many clients at once, each as fast as it is served.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bedplate_drivers::{
    ClusterPlace, Driver, DriverError, JobFormat, JobId, JobOrder, JobQuery, Local, new_submission_key,
};

/// Threads that end what is left of an abuse.
const CLEARS: usize = 8;

pub(super) struct Mallory {
    pub(super) place: ClusterPlace,
    until: Instant,
    served: AtomicU64,
    refused: AtomicU64,
    keys: AtomicU64,
}

impl Mallory {
    pub(super) fn new(place: ClusterPlace, length: Duration) -> Self {
        let until = Instant::now() + length;
        Self { place, until, served: 0.into(), refused: 0.into(), keys: 0.into() }
    }

    pub(super) fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }

    /// How often it was served and refused.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.served.load(Ordering::Relaxed), self.refused.load(Ordering::Relaxed))
    }

    pub(super) fn client(&self) -> Client<'_> {
        Client { mallory: self, driver: self.driver() }
    }

    /// So many clients do this again and again until the time is over.
    pub(super) fn again(&self, clients: u64, act: impl Fn(&Client<'_>, u64) + Sync) {
        thread::scope(|scope| {
            for number in 0..clients {
                let act = &act;
                scope.spawn(move || {
                    let client = self.client();
                    while !self.is_over() {
                        act(&client, number);
                    }
                });
            }
        });
    }

    pub(super) fn count<T, E>(&self, answer: &Result<T, E>) {
        let counted = if answer.is_ok() { &self.served } else { &self.refused };
        counted.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits for the end, or a second.
    pub(super) fn wait(&self) {
        thread::sleep(self.until.saturating_duration_since(Instant::now()).min(Duration::from_secs(1)));
    }

    fn driver(&self) -> Local {
        // Refusals are not waited out.
        Local::new(self.place.clone()).with_patience(Duration::ZERO)
    }
}

/// One connection of the user.
pub(super) struct Client<'a> {
    pub(super) mallory: &'a Mallory,
    driver: Local,
}

impl Client<'_> {
    pub(super) fn ask<T>(&self, ask: impl FnOnce(&Local) -> Result<T, DriverError>) -> Option<T> {
        let answer = ask(&self.driver);
        self.mallory.count(&answer);
        answer.ok()
    }

    /// Submits a job file.
    pub(super) fn submit(&self, text: &str) -> Option<JobId> {
        let number = self.mallory.keys.fetch_add(1, Ordering::Relaxed);
        let key = format!("{}-{number}", new_submission_key());
        self.ask(|driver| driver.submit_text(JobFormat::Toml, text, &key)).map(|submitted| submitted.id)
    }

    pub(super) fn order(&self, job: &JobId, order: JobOrder) {
        self.ask(|driver| driver.order(job, order));
    }
}

/// Ends all jobs of a user; false when some are left after a while.
pub(super) fn clear(admin: &Local, user: &str, within: Duration) -> bool {
    let query = JobQuery { user: Some(user.to_owned()), limit: Some(1_000), ..JobQuery::default() };
    let began = Instant::now();
    while began.elapsed() < within {
        let Ok(jobs) = admin.jobs(&query) else {
            thread::sleep(Duration::from_millis(100));
            continue;
        };
        if jobs.is_empty() {
            return true;
        }
        // An array is ended as a whole.
        let mut labels: Vec<JobId> = jobs
            .iter()
            .map(|job| job.label.split_once('_').map_or(job.label.as_str(), |(array, _)| array).into())
            .collect();
        labels.dedup();
        thread::scope(|scope| {
            for part in labels.chunks(labels.len().div_ceil(CLEARS)) {
                // What has ended meanwhile is refused.
                scope.spawn(|| part.iter().for_each(|job| drop(admin.order(job, JobOrder::Cancel))));
            }
        });
        thread::sleep(Duration::from_millis(100));
    }
    false
}
