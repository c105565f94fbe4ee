//! What every driver must do. One suite for all of them: each implementation brings a cluster on which jobs of one node
//! start within seconds and run until they are cancelled.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use bedplate_diag::Diagnostic;
use bedplate_drivers::{
    Capability, ClusterEvent, Driver, DriverError, JobId, JobOrder, JobQuery, JobState, JobSummary, LogQuery,
    NodeId, Watched,
};
use bedplate_job::{Gang, Inherited, Job, Role, Workload};
use bedplate_testkit::wait_to_see;

/// Counts the suites of this process, so that each has names and keys of its own: a cluster remembers.
static ROUND: AtomicU32 = AtomicU32::new(0);

fn own(name: &str) -> String {
    format!("{name}-{}-{}", std::process::id(), ROUND.load(Ordering::Relaxed))
}

/// Runs the whole suite against a cluster on which nothing waits or runs.
pub(crate) fn conforms(driver: &dyn Driver) {
    ROUND.fetch_add(1, Ordering::Relaxed);
    std::fs::create_dir_all(folder()).expect("the folder of temporary files can be written");
    nodes_are_listed_and_unknown_ones_are_refused(driver);
    a_job_is_taken_in_once_and_found_again(driver);
    a_running_job_has_places_and_ends_when_it_is_cancelled(driver);
    a_held_job_waits_until_it_is_released(driver);
    a_requeued_job_runs_again(driver);
    a_node_is_drained_and_resumed(driver);
    changes_are_told_as_they_happen(driver);
    jobs_are_listed_by_what_is_asked(driver);
    what_is_not_there_is_refused_by_every_method(driver);
    what_the_cluster_cannot_do_is_refused_with_a_way_out(driver);
    let _ = std::fs::remove_dir_all(folder());
}

fn job(name: &str) -> Job {
    let role = Role { nodes: 1, gpus_per_node: 8, ..Role::named(Role::ONLY) };
    let mut job = Job::new(own(name), Workload::command(["/bin/sleep", "3600"]), Gang::of(role));
    job.environment.inherited = Inherited::Nothing;
    job.working_directory = Some(folder().display().to_string());
    job
}

/// Where jobs work; gone after the suite.
fn folder() -> PathBuf {
    std::env::temp_dir().join(format!("bedplate-suite-{}", std::process::id()))
}

fn submit(driver: &dyn Driver, name: &str) -> JobId {
    driver.submit(&job(name), &own(name)).expect("it can run here").id
}

pub(crate) fn until(driver: &dyn Driver, id: &JobId, is_so: impl Fn(&JobSummary) -> bool) -> JobSummary {
    wait_to_see("the job moves on", || driver.job(id).expect("it was submitted").summary, is_so)
}

fn runs(driver: &dyn Driver, id: &JobId) -> JobSummary {
    until(driver, id, |job| job.life.state == JobState::Running)
}

fn cancel(driver: &dyn Driver, id: &JobId) {
    driver.order(id, JobOrder::Cancel).expect("every cluster cancels");
    until(driver, id, |job| job.life.state == JobState::Cancelled);
}

fn nodes_are_listed_and_unknown_ones_are_refused(driver: &dyn Driver) {
    let nodes = driver.nodes().expect("every cluster lists its nodes");
    let first = nodes.first().expect("the cluster has a node");
    assert_eq!(driver.node(&first.name).expect("it was just listed").summary.name, first.name);
    let unknown = driver.node(&NodeId::from("no-such-node")).expect_err("there is none");
    assert!(unknown.is_refusal(), "{unknown}");
    assert!(!driver.name().is_empty() && !driver.cluster().expect("it has a name").name.is_empty());
}

fn a_job_is_taken_in_once_and_found_again(driver: &dyn Driver) {
    let taken = driver.submit(&job("once"), &own("key once")).expect("it can run here");
    assert_eq!((taken.count, taken.is_old, &taken.jobs[..]), (1, false, &[taken.id.clone()][..]));
    let again = driver.submit(&job("once"), &own("key once")).expect("the same job");
    assert_eq!((&again.id, again.is_old), (&taken.id, true));
    let summary = driver.job(&taken.id).expect("it was submitted").summary;
    assert_eq!((&summary.id, summary.name), (&taken.id, own("once")));
    let query = JobQuery { name: Some(own("once")), ..JobQuery::default() };
    let listed: Vec<JobId> = driver.jobs(&query).expect("it lists").into_iter().map(|job| job.id).collect();
    assert_eq!(listed, std::slice::from_ref(&taken.id));
    let unknown = driver.job(&JobId::from("999999")).expect_err("there is none");
    assert!(unknown.is_refusal(), "{unknown}");
    cancel(driver, &taken.id);
}

fn a_running_job_has_places_and_ends_when_it_is_cancelled(driver: &dyn Driver) {
    let id = submit(driver, "places");
    let running = runs(driver, &id);
    assert_eq!((running.nodes.len(), running.life.runs), (1, 1));
    assert!(running.life.started_ms.is_some() && running.life.ended_ms.is_none());
    if driver.can(Capability::Ranks) {
        let ranks = driver.ranks(&id).expect("it can");
        assert_eq!((ranks.len(), ranks[0].rank, &ranks[0].node), (1, 0, &running.nodes[0]));
    }
    if driver.can(Capability::Explain) {
        assert_eq!(driver.explain(&id).expect("it can"), None, "what runs does not wait");
    }
    if driver.can(Capability::Logs) {
        let mut text = Vec::new();
        let next = driver.logs(&id, &LogQuery::default(), &mut text).expect("it can");
        assert_eq!(next, text.len() as u64);
    }
    cancel(driver, &id);
    let ended = driver.job(&id).expect("history remembers it").summary;
    assert!(ended.life.ended_ms.is_some() && ended.nodes.is_empty(), "{ended:?}");
    assert_eq!(ended.life.reason.map(|reason| reason.code).as_deref(), Some("cancelled"));
    let names = |with_ended| {
        let query = JobQuery { name: Some(own("places")), with_ended, ..JobQuery::default() };
        driver.jobs(&query).expect("it lists").len()
    };
    assert_eq!((names(false), names(true)), (0, 1));
    let again = driver.order(&id, JobOrder::Cancel).expect_err("it has ended");
    assert!(again.is_refusal(), "{again}");
}

fn a_held_job_waits_until_it_is_released(driver: &dyn Driver) {
    if !driver.can(Capability::Hold) {
        return;
    }
    let mut held = job("held");
    held.policy.is_held = true;
    let id = driver.submit(&held, &own("held")).expect("it can run here").id;
    let summary = driver.job(&id).expect("it was submitted").summary;
    assert_eq!((summary.life.state, summary.life.is_held), (JobState::Waiting, true));
    if driver.can(Capability::Explain) {
        let explained = driver.explain(&id).expect("it can").expect("it waits");
        assert_eq!(explained.wait.code, "held");
        assert!(!explained.wait.text.is_empty());
    }
    driver.order(&id, JobOrder::Release).expect("it can");
    runs(driver, &id);
    cancel(driver, &id);
}

fn a_requeued_job_runs_again(driver: &dyn Driver) {
    if !driver.can(Capability::Requeue) {
        return;
    }
    let id = submit(driver, "requeued");
    runs(driver, &id);
    driver.order(&id, JobOrder::Requeue).expect("it can");
    until(driver, &id, |job| job.life.state == JobState::Running && job.life.runs == 2);
    cancel(driver, &id);
}

fn a_node_is_drained_and_resumed(driver: &dyn Driver) {
    if !driver.can(Capability::Drain) {
        return;
    }
    let node = driver.nodes().expect("it lists").remove(0).name;
    driver.drain(&node, "fan").expect("it can");
    let reason = driver.node(&node).expect("it is there").summary.reason.expect("it takes no work");
    assert!(reason.text.contains("fan"), "{reason}");
    driver.resume(&node).expect("it can");
    // Slurm must first hear from it again.
    let reason = || driver.node(&node).expect("it is there").summary.reason;
    wait_to_see("the node takes work again", reason, Option::is_none);
    driver.resume(&node).expect("giving an order twice does no harm");
}

fn changes_are_told_as_they_happen(driver: &dyn Driver) {
    if !driver.can(Capability::Watch) {
        return;
    }
    let id = submit(driver, "watched");
    runs(driver, &id);
    let mut has_begun = false;
    let mut states = Vec::new();
    let watched = Watched { job: Some(id.clone()), node: None };
    let mut see = |seen| match seen {
        ClusterEvent::Beat if !has_begun => {
            has_begun = true;
            driver.order(&id, JobOrder::Cancel).expect("every cluster cancels");
            ControlFlow::Continue(())
        }
        ClusterEvent::Job { job, state, .. } => {
            assert_eq!(job, id);
            states.push(state);
            if state.is_final() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }
        _ => ControlFlow::Continue(()),
    };
    driver.watch(&watched, &mut see).expect("it can");
    assert_eq!(states.last(), Some(&JobState::Cancelled));
}

fn jobs_are_listed_by_what_is_asked(driver: &dyn Driver) {
    let ids = ["listed-1", "listed-2"].map(|name| submit(driver, name));
    runs(driver, &ids[0]);
    let named = |query: JobQuery| -> Vec<String> {
        let jobs = driver.jobs(&query).expect("it lists").into_iter();
        let ours = jobs.filter(|job| ids.contains(&job.id)).map(|job| job.name);
        ours.map(|name| name.trim_end_matches(&own("")).to_owned()).collect()
    };
    assert_eq!(named(JobQuery::default()), ["listed-1", "listed-2"], "in the order of submission");
    assert_eq!(named(JobQuery { limit: Some(1), ..JobQuery::default() }).len(), 1);
    let user = driver.job(&ids[0]).expect("it was submitted").summary.user;
    assert_eq!(named(JobQuery { user: Some(user), ..JobQuery::default() }).len(), 2);
    assert!(named(JobQuery { user: Some("no-such-user".into()), ..JobQuery::default() }).is_empty());
    assert!(named(JobQuery { states: vec![JobState::Suspended], ..JobQuery::default() }).is_empty());
    ids.iter().for_each(|id| cancel(driver, id));
    let all = named(JobQuery { with_ended: true, ..JobQuery::default() });
    assert_eq!(all, ["listed-2", "listed-1"], "the newest first");
    let cancelled = JobQuery { states: vec![JobState::Cancelled], with_ended: true, ..JobQuery::default() };
    assert_eq!(named(cancelled).len(), 2);
}

fn what_is_not_there_is_refused_by_every_method(driver: &dyn Driver) {
    let refused = |outcome: Result<(), DriverError>| {
        let error = outcome.expect_err("it is not there");
        assert!(error.is_refusal(), "{error:?}");
    };
    for id in ["999999", "999999_7", "no-such-job", "--all", "../1"].map(JobId::from) {
        refused(driver.job(&id).map(drop));
        refused(driver.explain(&id).map(drop));
        refused(driver.ranks(&id).map(drop));
        refused(driver.logs(&id, &LogQuery::default(), &mut std::io::sink()).map(drop));
        for order in [JobOrder::Cancel, JobOrder::Hold, JobOrder::Release, JobOrder::Requeue] {
            refused(driver.order(&id, order));
        }
    }
    for node in ["no-such-node", "--all", "../n1", "n1 n2"].map(NodeId::from) {
        refused(driver.node(&node).map(drop));
        refused(driver.drain(&node, "fan"));
        refused(driver.resume(&node));
    }
}

fn what_the_cluster_cannot_do_is_refused_with_a_way_out(driver: &dyn Driver) {
    let (id, node) = (JobId::from("1"), NodeId::from("n1"));
    for capability in Capability::ALL.into_iter().filter(|capability| !driver.can(*capability)) {
        let refused = match capability {
            Capability::Watch => driver.watch(&Watched::default(), &mut |_| ControlFlow::Break(())),
            Capability::Logs => driver.logs(&id, &LogQuery::default(), &mut std::io::sink()).map(drop),
            Capability::Explain => driver.explain(&id).map(drop),
            Capability::Ranks => driver.ranks(&id).map(drop),
            Capability::Hold => driver.order(&id, JobOrder::Hold),
            Capability::Requeue => driver.order(&id, JobOrder::Requeue),
            Capability::Drain => driver.drain(&node, "fan"),
        };
        let error = refused.expect_err("it cannot");
        assert!(
            matches!(&error, DriverError::Cannot { capability: named, .. } if *named == capability),
            "{error}"
        );
        assert_eq!(error.page().code, "driver/cannot");
        assert!(error.to_string().contains(&driver.name()) && error.help().is_some(), "{error}");
    }
}
