//! A user with ordinary rights who does all he may as fast as he can: arrays are submitted, held, released, requeued and cancelled, as
//! a whole and task by task, and fail in every way. He keeps nobody from anything, and no node goes out of service for it.

use super::*;

/// Of his jobs, so many at once.
const MOST_LIVE: usize = 100;
const MALLORY: &str = "mallory";

#[derive(Default)]
pub(super) struct Abuse {
    pub(super) is_on: bool,
    /// The arrays that he has submitted.
    arrays: Vec<(JobId, u32)>,
    /// Jobs that waited when they were held, as is on disk.
    held: BTreeSet<JobId>,
}

impl Abuse {
    pub(super) fn hold(&mut self, jobs: Vec<JobId>) {
        self.held.extend(jobs);
    }
}

impl World {
    pub(super) fn abuse(&mut self) {
        if !self.is_stormy {
            return;
        }
        let pause = self.random.between(20, 400);
        self.after(pause, Coming::Abuse);
        let what = self.random.between(0, 100);
        let some = self.random.between(0, self.abuse.arrays.len().max(1) as u64) as usize;
        let array = self.abuse.arrays.get(some).copied();
        let now = self.clock.now();
        match (what, array) {
            (0..30, _) | (_, None) => self.submit_array(now),
            (30..50, Some(array)) => self.order_array(array, ClientOrder::Cancel, now),
            (50..65, Some(array)) => self.order_array(array, ClientOrder::Hold, now),
            (65..80, Some(array)) => self.order_array(array, ClientOrder::Release, now),
            (80..90, Some(array)) => self.order_array(array, ClientOrder::Requeue, now),
            (_, Some((first, count))) => {
                let task = first.0 + self.random.between(0, u64::from(count));
                self.order_array((JobId(task), 1), ClientOrder::Cancel, now);
            }
        }
    }

    fn submit_array(&mut self, now: Time) {
        let is_full = |control: &Control| control.jobs(&Default::default()).len() >= MOST_LIVE;
        if self.control.as_ref().is_none_or(is_full) {
            return;
        }
        let mut job = self.some_job(None);
        let tasks = self.random.between(2, 20) as u32;
        job.name = self.random.between(10, 2_000).to_string();
        job.gang.roles[0].nodes = self.random.between(1, 3) as u32;
        job.gang.roles[0].elastic = None;
        job.policy.qos = None;
        job.policy.is_held = self.random.percent(30);
        job.policy.array = Some(bedplate_job::Array::range(1, tasks));
        if self.random.percent(50) {
            let how = HOSTILE[self.random.between(0, HOSTILE.len() as u64) as usize];
            job.environment.set.insert(HOSTILITY.into(), how.into());
        }
        if let Some((on, _)) = self.abuse.arrays.last().filter(|_| self.random.percent(30)) {
            let jobs = vec![on.0.to_string()];
            job.policy.dependencies = vec![Dependency { kind: DependencyKind::AfterAny, jobs }];
        }
        self.marks += 1;
        let mark = format!("mark-{}", self.marks);
        job.labels.insert("mark".into(), mark.clone());
        let past = self.past_of(&job);
        let Some(control) = &mut self.control else { return };
        let mut promised = Promised::default();
        if let Ok(accepted) = control.submit(Submission { past, ..Submission::new(MALLORY, job) }, now) {
            self.abuse.arrays.push((accepted.first, accepted.count));
            let jobs = accepted.first.0..accepted.first.0 + u64::from(accepted.count);
            promised.acknowledged.extend(jobs.map(|job| (JobId(job), mark.clone())));
        }
        self.carry_out(promised);
    }

    fn order_array(&mut self, (first, count): (JobId, u32), order: impl Fn(JobId) -> ClientOrder, now: Time) {
        let Some(control) = &mut self.control else { return };
        let jobs: Vec<JobId> = (first.0..first.0 + u64::from(count)).map(JobId).collect();
        let waited: BTreeSet<JobId> =
            jobs.iter().copied().filter(|job| control.job_state(*job) == Some(JobState::Waiting)).collect();
        let answers = control.order_all(jobs.iter().map(|job| order(*job)), MALLORY, now);
        let done = jobs.into_iter().zip(answers).filter(|(_, answer)| answer.is_ok()).map(|(job, _)| job);
        let done: Vec<JobId> = done.collect();
        let mut promised = Promised::default();
        match order(first) {
            ClientOrder::Cancel(_) => promised.cancelled = done,
            ClientOrder::Hold(_) => {
                promised.held = done.into_iter().filter(|job| waited.contains(job)).collect();
            }
            ClientOrder::Release(_) => self.releases(&done),
            _ => {}
        }
        self.carry_out(promised);
    }

    /// What is released may start, whether or not that is on disk.
    pub(super) fn releases(&mut self, jobs: &[JobId]) {
        self.abuse.held.retain(|job| !jobs.contains(job));
        for waiting in &mut self.waiting {
            waiting.promised.held.retain(|job| !jobs.contains(job));
        }
    }

    /// In the calm everything is released.
    pub(super) fn releases_all(&mut self) {
        self.abuse.held.clear();
        self.waiting.iter_mut().for_each(|waiting| waiting.promised.held.clear());
    }

    /// What is held does not start, and nobody's jobs alone take a node out of service.
    pub(super) fn check_abuse(&mut self, output: &Output) {
        for command in output.urgent.iter().chain(&output.commands) {
            if let Command::Send { message: ToAgent::Prepare(launch), .. } = command
                && self.abuse.held.contains(&JobId(launch.run.job))
            {
                self.findings.breaks_law(format!("{} starts, and its job is held", launch.run));
            }
        }
        let suspected = output.records.iter().find_map(|record| match record {
            Record::Node(row) => row.drained.as_ref().filter(|why| why.code == "suspected"),
            _ => None,
        });
        if let Some(why) = suspected.filter(|_| self.abuse.is_on) {
            self.findings.breaks_law(format!("one user has taken a node out of service: {why}"));
        }
    }
}
