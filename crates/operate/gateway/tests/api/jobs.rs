//! Replicas as jobs of a cluster that is made up: its jobs are gateways in this process.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bedplate_drivers::{
    Capability, ClusterView, Driver, DriverError, JobDetail, JobId, JobOrder, JobQuery, JobSummary, LogQuery,
    NodeDetail, NodeId, NodeSummary, Submitted,
};
use bedplate_gateway::{Checks, JobFleet, JobFleetOptions, RouteOptions, RunningRouter, route};
use bedplate_job::{Gang, Job, Role, Workload};
use bedplate_replay::requests::{Scaling, picoseconds};
use bedplate_testkit::wait_until;
use serde_json::{Value, json};

use crate::support::{Fixture, PATIENCE, Parrot, Reply, in_service, send_chat};

/// A cluster in this process. Clones are the same one.
#[derive(Clone, Default)]
struct MadeUp(Arc<Mutex<Jobs>>);

#[derive(Default)]
struct Jobs {
    jobs: BTreeMap<u32, Running>,
    is_away: bool,
    /// Questions that it did not answer.
    unanswered: u32,
    never_starts: bool,
}

struct Running {
    replica: Option<Fixture>,
    state: &'static str,
    runs: u32,
}

fn replica() -> Fixture {
    Fixture::start(Parrot::new(|_| "the garden ".repeat(8)).slow(Duration::from_millis(30)))
}

impl MadeUp {
    fn with<T>(&self, act: impl FnOnce(&mut Jobs) -> T) -> T {
        act(&mut self.0.lock().unwrap())
    }

    fn running(&self) -> Vec<u32> {
        self.with(|jobs| {
            let running = jobs.jobs.iter().filter(|(_, job)| job.state == "running");
            running.map(|(id, _)| *id).collect()
        })
    }

    /// A job fails and its cluster starts it again, at another address.
    fn restart(&self, id: u32) {
        self.with(|jobs| {
            let job = jobs.jobs.get_mut(&id).unwrap();
            (job.replica, job.runs) = (Some(replica()), job.runs + 1);
        });
    }

    fn end(&self, id: u32, state: &'static str) {
        let replica = self.with(|jobs| {
            let job = jobs.jobs.get_mut(&id).unwrap();
            job.state = state;
            job.replica.take()
        });
        drop(replica);
    }

    fn find<T>(&self, id: &JobId, act: impl FnOnce(&Running) -> T) -> Result<T, DriverError> {
        self.with(|jobs| match jobs.is_away {
            true => {
                jobs.unanswered += 1;
                Err(self.cannot(Capability::Watch))
            }
            false => Ok(act(&jobs.jobs[&id.as_str().parse().unwrap()])),
        })
    }
}

impl Driver for MadeUp {
    fn name(&self) -> String {
        "a cluster made up".into()
    }

    fn capabilities(&self) -> &[Capability] {
        &[Capability::Logs]
    }

    fn pause(&self) -> Duration {
        Duration::from_millis(20)
    }

    fn submit(&self, job: &Job, _: &str) -> Result<Submitted, DriverError> {
        assert_eq!(job.name, "serve");
        self.with(|jobs| {
            let id = jobs.jobs.len() as u32 + 1;
            let running = match jobs.never_starts {
                true => Running { replica: None, state: "waiting", runs: 0 },
                false => Running { replica: Some(replica()), state: "running", runs: 1 },
            };
            jobs.jobs.insert(id, running);
            Ok(serde_json::from_value(json!({ "id": id, "label": id.to_string() })).unwrap())
        })
    }

    fn jobs(&self, _: &JobQuery) -> Result<Vec<JobSummary>, DriverError> {
        Err(self.cannot(Capability::Watch))
    }

    fn job(&self, id: &JobId) -> Result<JobDetail, DriverError> {
        self.find(id, |job| {
            let told = json!({
                "id": id, "label": id, "name": "serve", "user": "ada", "account": "", "partition": "", "qos": "",
                "submitted_ms": 0, "state": job.state, "runs": job.runs, "nodes_asked": 1, "gpus_asked": 0, "nodes": [],
                "notes": [], "tasks": [],
            });
            serde_json::from_value(told).unwrap()
        })
    }

    fn order(&self, id: &JobId, order: JobOrder) -> Result<(), DriverError> {
        assert_eq!(order, JobOrder::Cancel);
        self.end(id.as_str().parse().unwrap(), "cancelled");
        Ok(())
    }

    fn logs(&self, id: &JobId, query: &LogQuery, to: &mut dyn Write) -> Result<u64, DriverError> {
        let text = self.find(id, |job| {
            assert_eq!(query.run, Some(job.runs));
            job.replica
                .as_ref()
                .map_or(String::new(), |replica| format!("loads\nhttp://{}\n", replica.address))
        })?;
        to.write_all(text.as_bytes()).unwrap();
        Ok(text.len() as u64)
    }

    fn nodes(&self) -> Result<Vec<NodeSummary>, DriverError> {
        Err(self.cannot(Capability::Watch))
    }

    fn node(&self, _: &NodeId) -> Result<NodeDetail, DriverError> {
        Err(self.cannot(Capability::Watch))
    }

    fn cluster(&self) -> Result<ClusterView, DriverError> {
        Err(self.cannot(Capability::Watch))
    }
}

struct Site {
    // Ends before the router, whose members it changes.
    fleet: JobFleet,
    cluster: MadeUp,
    routing: RunningRouter,
}

impl Site {
    fn start(least: u32, most: u32) -> Self {
        let checks = Checks {
            interval: Duration::from_millis(50),
            timeout: Duration::from_secs(10),
            failures: 2,
            hang: PATIENCE,
        };
        let listen = "127.0.0.1:0".parse().unwrap();
        let routing = route(RouteOptions { listen, checks, ..RouteOptions::default() }).unwrap();
        let cluster = MadeUp::default();
        let scaling = Scaling { least, most, sequences: 2, interval: picoseconds(0.05), cold_start: 0 };
        let options = JobFleetOptions {
            scaling,
            start: Duration::from_secs(3),
            grace: Duration::from_secs(20),
            first_delay: Duration::from_millis(50),
            longest_delay: Duration::from_secs(1),
        };
        let job = || Job::new("serve", Workload::command(["serve"]), Gang::of(Role::named("main")));
        let fleet =
            JobFleet::start(routing.members().clone(), Box::new(cluster.clone()), options, job).unwrap();
        let site = Self { fleet, cluster, routing };
        wait_until("the first replicas are in", || site.in_service() == least as usize);
        site
    }

    fn in_service(&self) -> usize {
        in_service(self.routing.address())
    }

    fn chat(&self, text: &str, more: Value) -> Reply {
        send_chat(self.routing.address(), text, more)
    }
}

#[test]
fn jobs_follow_the_load_between_their_bounds_and_no_request_is_lost() {
    let site = Site::start(1, 3);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for worker in 0..8 {
            let (site, is_over) = (&site, &is_over);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let reply = site.chat(&format!("{worker}"), json!({ "stream": worker % 2 == 0 }));
                    assert_eq!(reply.status, 200, "{}", reply.text());
                    assert!(!reply.text().contains("\"error\""), "{}", reply.text());
                }
            });
        }
        wait_until("three are in", || site.in_service() == 3);
        is_over.store(true, Ordering::Relaxed);
    });
    wait_until("one is left", || site.cluster.running().len() == 1 && site.fleet.state().jobs.len() == 1);
    assert_eq!(site.chat("x", json!({})).status, 200);
}

#[test]
fn a_job_that_its_cluster_starts_again_is_found_at_its_new_address() {
    let site = Site::start(2, 2);
    site.cluster.restart(1);
    wait_until("both are in again", || {
        site.in_service() == 2
            && (0..4).all(|at| site.chat(&format!("{at}"), json!({ "max_tokens": 1 })).status == 200)
    });
    assert_eq!(site.cluster.running(), [1, 2]);
}

#[test]
fn a_job_that_ends_for_good_is_replaced_by_another() {
    let site = Site::start(2, 2);
    site.cluster.end(1, "failed");
    wait_until("another one is in", || site.cluster.running() == [2, 3] && site.in_service() == 2);
}

#[test]
fn jobs_are_replaced_one_after_the_other_without_a_failed_request() {
    let site = Site::start(2, 2);
    let (is_over, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for worker in 0..2 {
            let (site, is_over, answered) = (&site, &is_over, &answered);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let reply = site.chat(&format!("{worker}"), json!({ "stream": true }));
                    assert_eq!(reply.status, 200, "{}", reply.text());
                    assert!(!reply.text().contains("\"error\""), "{}", reply.text());
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        wait_until("requests are answered", || answered.load(Ordering::Relaxed) > 2);
        site.fleet.update();
        wait_until("the update is over", || {
            site.fleet.state().updates == 1 && site.cluster.running() == [3, 4]
        });
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn an_update_without_room_in_the_cluster_leaves_the_old_jobs() {
    let site = Site::start(2, 2);
    site.cluster.with(|jobs| jobs.never_starts = true);
    site.fleet.update();
    wait_until("the update is given up", || site.fleet.state().updates == 1);
    assert_eq!(site.cluster.running(), [1, 2]);
    assert_eq!(site.in_service(), 2);
    wait_until("the new one is cancelled", || site.cluster.with(|jobs| jobs.jobs[&3].state == "cancelled"));
}

#[test]
fn a_cluster_that_does_not_answer_changes_nothing_and_jobs_end_with_the_fleet() {
    let site = Site::start(2, 2);
    site.cluster.with(|jobs| jobs.is_away = true);
    wait_until("the fleet has asked in vain", || site.cluster.with(|jobs| jobs.unanswered > 3));
    assert_eq!(site.chat("x", json!({})).status, 200);
    site.cluster.with(|jobs| jobs.is_away = false);
    assert_eq!(site.in_service(), 2);
    let Site { fleet, cluster, routing } = site;
    fleet.stop();
    assert!(cluster.running().is_empty());
    assert!(!routing.members().has_one_in());
}
