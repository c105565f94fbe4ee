//! What people and bad luck do to the world: submissions, orders, crashes, cuts and freezes.

use super::*;

impl World {
    pub(super) fn client(&mut self) {
        if self.is_stormy {
            let pause = self.random.between(10, 2_500);
            self.after(pause, Coming::Client);
        }
        let some_job = self
            .acknowledged
            .keys()
            .copied()
            .nth(self.random.between(0, self.acknowledged.len() as u64 + 1) as usize);
        let what = self.random.between(0, 100);
        self.marks += 1;
        let mark = format!("mark-{}", self.marks);
        let mut job = self.some_job(some_job);
        let user = self.make_hostile(&mut job);
        job.labels.insert("mark".into(), mark.clone());
        let node = self.nodes[self.random.between(0, NODES as u64) as usize].name.clone();
        let now = self.clock.now();
        let past = self.past_of(&job);
        let known_until = self.known_until(&node);
        let Some(control) = &mut self.control else {
            return;
        };
        let mut promised = Promised::default();
        match (what, some_job) {
            (0..75, _) => {
                if let Ok(accepted) = control.submit(Submission { past, ..Submission::new(user, job) }, now) {
                    let jobs = accepted.first.0..accepted.first.0 + u64::from(accepted.count);
                    promised.acknowledged.extend(jobs.map(|job| (JobId(job), mark.clone())));
                }
            }
            (75..82, Some(job)) => {
                let is_done = control.order(ClientOrder::Cancel(job), "ada", now).is_ok();
                promised.cancelled.extend(is_done.then_some(job));
            }
            (82..86, Some(job)) => drop(control.order(ClientOrder::Requeue(job), "ada", now)),
            (86..88, Some(job)) => drop(control.order(ClientOrder::Hold(job), "ada", now)),
            (88..92, Some(job)) => {
                drop(control.order(ClientOrder::Release(job), "ada", now));
                self.releases(&[job]);
            }
            (92..95, _) => {
                drop(control.order(ClientOrder::Drain { node, reason: "test".into() }, "ada", now))
            }
            (95.., _) => {
                let is_done = control.order(ClientOrder::Resume { node }, "ada", now).is_ok();
                promised.trusted.extend(known_until.filter(|_| is_done));
            }
            _ => {}
        }
        self.carry_out(promised);
    }

    /// What the journal says of jobs that a dependency names.
    pub(super) fn past_of(&self, job: &Job) -> Past {
        let names = job.policy.dependencies.iter().flat_map(|dependency| &dependency.jobs);
        names.filter_map(|name| Some((name.clone(), self.disk.past(JobId(name.parse().ok()?))))).collect()
    }

    /// How an acknowledged job ended: lately, or as the journal has it.
    pub(super) fn ended(&self, control: &Control, job: JobId) -> Option<JobState> {
        control.ended(job).or_else(|| self.disk.ended(job))
    }

    /// Some jobs harm their nodes or themselves; returns the user.
    fn make_hostile(&mut self, job: &mut Job) -> &'static str {
        if !self.is_hostile || !self.random.percent(25) {
            return "ada";
        }
        let how = HOSTILE[self.random.between(0, HOSTILE.len() as u64) as usize];
        job.environment.set.insert(HOSTILITY.into(), how.into());
        "mallory"
    }

    pub(super) fn some_job(&mut self, earlier: Option<JobId>) -> Job {
        let nodes = self.random.between(1, 4) as u32;
        let gpus = [0, 1, 4, 8][self.random.between(0, 4) as usize];
        let tasks = self.random.between(1, 3) as u32;
        let length = self.random.between(10, 20_000);
        let mut role = Role { nodes, gpus_per_node: gpus, tasks_per_node: tasks, ..Role::named("main") };
        if self.random.percent(15) {
            role.elastic = Some(Elastic { min: 1, max: 4, step: 1 });
        }
        let workload = if self.random.percent(20) {
            Workload::Script { text: "#!/bin/sh\nsrun true\n".into() }
        } else {
            Workload::command(["train"])
        };
        let mut job = Job::new(length.to_string(), workload, Gang::of(role));
        job.policy.time_limit = Some(bedplate_units::Seconds::new(30.0));
        job.policy.grace = bedplate_units::Seconds::new(2.0);
        job.policy.retries = self.random.between(0, 4) as u32;
        job.policy.is_requeued = self.random.percent(90);
        job.policy.survives = self.random.percent(30);
        if self.random.percent(20) {
            job.policy.preemption = Preemption::Suspend;
        }
        if self.random.percent(15) {
            job.policy.qos = Some("urgent".into());
        }
        if self.random.percent(10) {
            job.policy.array = Some(bedplate_job::Array::range(1, 4));
        }
        if let Some(earlier) = earlier.filter(|_| self.random.percent(10)) {
            let jobs = vec![earlier.0.to_string()];
            job.policy.dependencies = vec![Dependency { kind: DependencyKind::AfterAny, jobs }];
        }
        job
    }

    pub(super) fn fault(&mut self) {
        if !self.is_stormy {
            return;
        }
        let pause = self.random.between(200, 8_000);
        self.after(pause, Coming::Fault);
        let node = self.random.between(0, NODES as u64) as usize;
        if self.freezes && self.random.percent(25) {
            let longest = [1_000, 5_000, 60_000][self.random.between(0, 3) as usize];
            let length = self.random.between(100, longest);
            if self.both_freeze {
                let other = self.random.between(100, longest);
                return self.freeze_both(node, length, other);
            }
            // Each of the two watches the other.
            if self.is_frozen(node) || self.is_fork_server_frozen(node) {
                return;
            }
            if self.random.percent(40) {
                return self.freeze_fork_server(node, length);
            }
            self.nodes[node].frozen_until = self.nodes[node].frozen_until.max(self.now + length);
            return;
        }
        match self.random.between(0, 100) {
            0..20 => self.crash_control(),
            20..45 => self.crash_agent(node),
            45..70 => {
                let length = self.random.between(100, 9_000);
                self.cut(node, Way::Both, length);
                // Somewhere between them the connection is reset, and neither can make a new one.
                if let Some(link) = self.nodes[node].link.filter(|_| self.random.percent(30)) {
                    let delay = self.random.between(1, 2_000);
                    self.after(delay, Coming::ControlHearsClose { link, how: Unlinked::Broken });
                    self.after(delay, Coming::NodeHearsClose { link });
                }
            }
            70..90 => {
                if let Some(link) = self.nodes[node].link {
                    self.after(1, Coming::ControlHearsClose { link, how: Unlinked::Broken });
                    self.after(2, Coming::NodeHearsClose { link });
                }
            }
            _ => {
                // The whole room: everything at once.
                (0..NODES).for_each(|node| self.crash_agent(node));
                self.crash_control();
            }
        }
    }
}
