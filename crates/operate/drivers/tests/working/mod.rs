//! What every driver must do on a cluster that really runs jobs: one suite for all of them. Each implementation brings a
//! cluster of at least two nodes with 8 GPUs each, real or pretended, on which nothing waits or runs.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use bedplate_breakdown::{Breakdown, Part, Span};
use bedplate_drivers::{Capability, Driver, DriverError, JobDetail, JobId, JobOrder, JobState, LogQuery};
use bedplate_job::{Array, Dependency, DependencyKind, Gang, Inherited, Job, Role, Workload};
use bedplate_testkit::wait_to_see;
use bedplate_units::Seconds;

/// Runs the whole suite; jobs work in the folder.
pub(crate) fn conforms(driver: &dyn Driver, folder: &Path) {
    ROUND.fetch_add(1, Ordering::Relaxed);
    let _ = std::fs::remove_file(folder.join("go"));
    let work = Work { driver, folder };
    work.a_gang_runs_whole_and_its_output_is_read();
    work.a_failure_is_told_with_its_exit_code();
    work.an_array_is_taken_in_as_its_tasks();
    work.a_job_waits_for_another();
    work.what_is_too_large_is_refused_or_explained();
    work.a_prediction_travels_with_the_job_beside_what_it_reports();
    work.a_log_is_followed_to_its_end();
}

struct Work<'a> {
    driver: &'a dyn Driver,
    folder: &'a Path,
}

impl Work<'_> {
    fn job(&self, name: &str, nodes: u32, script: &str) -> Job {
        let role = Role { nodes, gpus_per_node: 8, tasks_per_node: 2, ..Role::named(Role::ONLY) };
        let mut job = Job::new(name, Workload::command(["/bin/sh", "-c", script]), Gang::of(role));
        job.environment.inherited = Inherited::Nothing;
        job.environment.set.insert("PATH".into(), "/usr/bin:/bin".into());
        job.environment.set.insert("WORD".into(), "it's, \"hello\"".into());
        job.working_directory = Some(self.folder.display().to_string());
        job
    }

    fn submit(&self, job: &Job) -> JobId {
        self.driver.submit(job, &key(&job.name)).expect("it can run here").id
    }

    fn ended(&self, id: &JobId) -> JobDetail {
        self.until(id, |job| job.summary.life.state.is_final())
    }

    fn until(&self, id: &JobId, is_so: impl Fn(&JobDetail) -> bool) -> JobDetail {
        wait_to_see("the job moves on", || self.driver.job(id).expect("it was submitted"), is_so)
    }

    fn log(&self, id: &JobId, query: &LogQuery) -> String {
        let mut text = Vec::new();
        self.driver.logs(id, query, &mut text).expect("it can be read here");
        String::from_utf8(text).expect("the test wrote text")
    }

    fn a_gang_runs_whole_and_its_output_is_read(&self) {
        let script = "echo rank $RANK of $WORLD_SIZE says $WORD; while [ ! -e go ]; do sleep 0.1; done";
        let id = self.submit(&self.job("gang", 2, script));
        let running = self.until(&id, |job| job.summary.life.state == JobState::Running).summary;
        assert_eq!((running.nodes.len(), running.nodes_asked, running.gpus_asked), (2, 2, 16));
        let ranks = self.driver.ranks(&id).expect("it can");
        let nodes: Vec<_> = ranks.iter().map(|place| place.node.clone()).collect();
        assert_eq!(nodes, [0, 0, 1, 1].map(|at: usize| running.nodes[at].clone()), "blocks of ranks");
        assert!(ranks.iter().all(|place| place.devices.len() == 4), "{ranks:?}");
        let node = self.driver.node(&running.nodes[1]).expect("it is there").summary;
        assert_eq!((node.gpus, node.gpus_free, &node.jobs[..]), (8, 0, &[id.clone()][..]));
        std::fs::write(self.folder.join("go"), "").expect("the folder is the test's");
        let ended = self.ended(&id).summary;
        assert_eq!(
            (ended.life.state, ended.life.exit_status, ended.life.runs),
            (JobState::Succeeded, Some(0), 1)
        );
        assert!(ended.life.started_ms <= ended.life.ended_ms && ended.life.ended_ms.is_some(), "{ended:?}");
        let text = self.log(&id, &LogQuery::default());
        assert!(text.contains("rank 0 of 4 says it's, \"hello\"\n"), "{text}");
        let rest = self.log(&id, &LogQuery { offset: text.len() as u64, ..LogQuery::default() });
        assert_eq!(rest, "");
        let none = self.driver.logs(&id, &LogQuery { rank: 99, ..LogQuery::default() }, &mut std::io::sink());
        assert!(none.is_err_and(|error| error.is_refusal()), "it has four ranks");
    }

    fn a_failure_is_told_with_its_exit_code(&self) {
        let ended = self.ended(&self.submit(&self.job("fails", 1, "exit 7"))).summary;
        assert_eq!((ended.life.state, ended.life.exit_status), (JobState::Failed, Some(7)));
        assert!(ended.life.reason.is_some_and(|reason| !reason.text.is_empty()));
    }

    fn an_array_is_taken_in_as_its_tasks(&self) {
        let mut job = self.job("array", 1, "true");
        job.policy.array = Some("1-3".parse::<Array>().expect("it is one"));
        let taken = self.driver.submit(&job, &key("array")).expect("it can run here");
        assert_eq!((taken.count, taken.jobs.len()), (3, 3));
        for task in &taken.jobs {
            assert_eq!(self.ended(task).summary.life.state, JobState::Succeeded, "{task}");
        }
        let whole = self.driver.job(&JobId(taken.label.clone())).expect("it was submitted");
        assert_eq!(whole.tasks.len(), 3, "{:?}", whole.tasks);
        let again = self.driver.submit(&job, &key("array")).expect("the same job");
        assert_eq!((again.is_old, again.id), (true, taken.id));
    }

    fn a_job_waits_for_another(&self) {
        let first = self.submit(&self.job("first", 1, "sleep 2"));
        let mut second = self.job("second", 1, "true");
        let jobs = vec![first.to_string()];
        second.policy.dependencies = vec![Dependency { kind: DependencyKind::AfterOk, jobs }];
        let second = self.submit(&second);
        if let Some(explained) = self.driver.explain(&second).expect("it can") {
            assert!(!explained.wait.text.is_empty());
        }
        let (second, first) = (self.ended(&second).summary, self.ended(&first).summary);
        assert_eq!((first.life.state, second.life.state), (JobState::Succeeded, JobState::Succeeded));
        assert!(second.life.started_ms >= first.life.ended_ms, "{first:?} {second:?}");
    }

    fn what_is_too_large_is_refused_or_explained(&self) {
        match self.driver.submit(&self.job("huge", 5000, "true"), &key("huge")) {
            Err(error) => assert!(error.is_refusal(), "{error:?}"),
            Ok(taken) => {
                let explained = self.driver.explain(&taken.id).expect("it can").expect("it waits");
                assert!(!explained.wait.text.is_empty() && !explained.remedies.is_empty(), "{explained:?}");
                self.driver.order(&taken.id, JobOrder::Cancel).expect("every cluster cancels");
                assert_eq!(self.ended(&taken.id).summary.life.state, JobState::Cancelled);
            }
        }
    }

    fn a_prediction_travels_with_the_job_beside_what_it_reports(&self) {
        let line = |step: u32| {
            format!(
                r#"echo '{{"version":1,"report":"step","step":{step},"seconds":0.5,"breakdown":{{"compute":0.5}}}}' >> "$BEDPLATE_REPORT"; "#
            )
        };
        let script = format!(
            "if [ $RANK = 0 ]; then {}{}echo checkpoint 2 /c/2 >> \"$BEDPLATE_REPORT\"; fi; sleep 1",
            line(1),
            line(2)
        );
        let mut job = self.job("predicted", 1, &script);
        let expected = Breakdown::default()
            .with(Part::Compute, Span { exposed: Seconds::new(0.4), hidden: Seconds::new(0.1) })
            .with(Part::ScaleOut, Span::exposed(Seconds::new(0.05)));
        job.expected = Some(expected);
        let id = self.submit(&job);
        let told = self.until(&id, |job| job.steps.as_ref().is_some_and(|steps| steps.steps == 2));
        assert_eq!(told.expected.and_then(|told| told.breakdown), Some(expected));
        let mean = told.steps.and_then(|steps| steps.mean).expect("both steps came with one");
        assert!((mean[Part::Compute].exposed.get() - 0.5).abs() < 1e-9);
        let told =
            self.until(&id, |job| job.summary.life.checkpoint.is_some() && job.summary.life.state.is_final());
        assert_eq!(told.summary.life.checkpoint.map(|checkpoint| checkpoint.step), Some(2));
    }

    fn a_log_is_followed_to_its_end(&self) {
        if !self.driver.can(Capability::Logs) {
            return;
        }
        let id = self.submit(&self.job("followed", 1, "echo begin; sleep 1; echo end"));
        self.until(&id, |job| job.summary.life.state != JobState::Waiting);
        let text = match self.try_follow(&id) {
            Ok(text) => text,
            Err(error) => panic!("{error}"),
        };
        assert!(text.contains("begin\n") && text.contains("end\n"), "{text}");
        assert_eq!(self.ended(&id).summary.life.state, JobState::Succeeded);
    }

    fn try_follow(&self, id: &JobId) -> Result<String, DriverError> {
        let mut text = Vec::new();
        self.driver.logs(id, &LogQuery { follow: true, ..LogQuery::default() }, &mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

/// No cluster has seen it before.
fn key(name: &str) -> String {
    format!("{name} {} {}", std::process::id(), ROUND.load(Ordering::Relaxed))
}

/// Counts the suites of this process.
static ROUND: AtomicU32 = AtomicU32::new(0);
