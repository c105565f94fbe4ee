//! What each operation on the queue costs at 10, 1,000 and 100,000 jobs: entries of lists of jobs that are looked at, and bytes
//! that are allocated. A path that goes through a list, or copies one, grows with it and fails here.

use bedplate_catalog::Catalog;
use bedplate_control::wire::{FromAgent, HeldPhase, HeldRun, Hello, HostMachine, NodeEnd, RunId, ToAgent};
use bedplate_control::{
    ClientOrder, Command, Control, ControlRules, JobFilter, LinkId, OrderRefusal, Submission,
};
use bedplate_gangs::counted::looked_at;
use bedplate_gangs::{JobId, Settings, Time};
use bedplate_job::{Array, Dependency, DependencyKind, Gang, Job, Role, Workload};
use bedplate_testkit::counting::{CountingAllocator, assert_at_most, of_thread};
use bedplate_topology::Cluster;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const NODES: u64 = 4;
const USERS: u64 = 50;

fn gang(name: &str) -> Job {
    let role = Role { gpus_per_node: 8, ..Role::named(Role::ONLY) };
    Job::new(name, Workload::command(["train"]), Gang::of(role))
}

fn array(tasks: u64) -> Job {
    let mut job = gang("array");
    job.policy.array = Some(Array::range(0, tasks as u32 - 1));
    job
}

/// A full cluster before which jobs of many users wait, most of them in arrays of up to 1,000 tasks.
struct Site {
    control: Control,
    now: Time,
}

impl Site {
    fn with(waiting: u64) -> Self {
        let cluster = Cluster::from_spec(&format!("p5.48xlarge:{NODES}"), &Catalog::builtin());
        let cluster = cluster.expect("the catalog has it");
        let now = Time(1_000);
        let control = Control::new(cluster, Settings::default(), ControlRules::default(), now);
        let mut site = Self { control, now };
        for number in 1..=NODES {
            let (node, host) = (format!("n{number}"), HostMachine::default());
            let hello = Hello { node, address: String::new(), incarnation: 1, held: Vec::new(), host };
            site.control.linked(LinkId(number), hello, now);
        }
        for number in 0..NODES {
            site.submit(&format!("runner {number}"), gang("run"));
        }
        let tasks = (waiting / 10).min(1_000);
        for number in 0..waiting / tasks {
            site.submit(&format!("user {}", number % USERS), array(tasks));
        }
        site.settle();
        site
    }

    /// Whether something is under way that is done in slices.
    fn goes_on(&self) -> bool {
        self.control.has_arrivals() || self.control.next_decision() <= self.now
    }

    fn take_a_turn(&mut self) {
        self.control.take_in(self.now);
        self.control.tick(self.now);
    }

    /// What is done in slices is done.
    fn settle(&mut self) {
        while self.goes_on() {
            self.take_a_turn();
            self.play();
        }
    }

    fn submit(&mut self, user: &str, job: Job) -> JobId {
        let accepted = self.control.submit(Submission::new(user, job), self.now).expect("it can run here");
        self.play();
        accepted.first
    }

    /// Agents do as they are told.
    fn play(&mut self) {
        loop {
            let output = self.control.take_output();
            if output.commands.is_empty() {
                return;
            }
            for command in output.commands {
                let Command::Send { link, message } = command else { continue };
                let answer = match message {
                    ToAgent::Prepare(launch) => FromAgent::Prepared { run: launch.run, master_port: None },
                    ToAgent::Stop { run, .. } => {
                        FromAgent::Released { run, end: NodeEnd { was_stopped: true, ..NodeEnd::default() } }
                    }
                    _ => continue,
                };
                self.control.heard(link, answer, self.now);
            }
        }
    }

    fn order(&mut self, order: ClientOrder) {
        self.control.order(order, "operator", self.now).expect("it can be done");
    }
}

type Operation = (&'static str, fn(&mut Site, JobId));

/// `waits` is the last of all.
const OPERATIONS: [Operation; 21] = [
    ("a submission", |site, _| {
        site.submit("someone", gang("one"));
    }),
    ("a submission with a dependency", |site, waits| {
        let mut job = gang("after");
        job.policy.dependencies =
            vec![Dependency { kind: DependencyKind::AfterAny, jobs: vec![waits.0.to_string()] }];
        site.submit("someone", job);
    }),
    ("a hold", |site, waits| site.order(ClientOrder::Hold(waits))),
    ("a release", |site, waits| site.order(ClientOrder::Release(waits))),
    ("a cancellation", |site, waits| site.order(ClientOrder::Cancel(waits))),
    ("a look for the job of a name", |site, waits| drop(site.control.find_jobs(&waits.0.to_string()))),
    ("a look at a job", |site, waits| drop(site.control.job(JobId(waits.0 - 1)))),
    ("a look at its text", |site, waits| {
        site.control.job_text(JobId(waits.0 - 1));
    }),
    ("the question why a job waits", |site, waits| {
        let now = site.now;
        drop(site.control.question(JobId(waits.0 - 1)).map(|question| question.answer(now)));
    }),
    ("a page of all jobs", |site, _| {
        let filter = JobFilter { limit: Some(5), ..JobFilter::default() };
        drop(site.control.page(&filter, 256));
    }),
    ("a page of the jobs of a user", |site, _| {
        let filter = JobFilter { user: Some("runner 1".into()), ..JobFilter::default() };
        drop(site.control.page(&filter, 256));
    }),
    ("a slice of a search that finds nothing", |site, _| {
        let filter = JobFilter { name: Some("nothing".into()), ..JobFilter::default() };
        drop(site.control.page(&filter, 8));
    }),
    ("how many there are of everything", |site, _| drop(site.control.counts(site.now))),
    ("a look at all nodes", |site, _| drop(site.control.nodes(site.now))),
    ("a heartbeat", |site, _| {
        let run = RunId { job: 2, number: 1 };
        let held = vec![HeldRun { run, phase: HeldPhase::Running, is_suspended: false }];
        site.control.heard(
            LinkId(2),
            FromAgent::Heartbeat { sequence: 1, held, findings: Vec::new() },
            site.now,
        );
    }),
    ("a tick", |site, _| site.control.tick(site.now)),
    ("a wake-up", |site, _| {
        site.control.wakeup();
    }),
    ("an end, and the start of the next", |site, _| {
        let run = RunId { job: 1, number: 1 };
        site.control.heard(LinkId(1), FromAgent::Released { run, end: NodeEnd::default() }, site.now);
        site.play();
    }),
    ("a failing epilog", |site, _| {
        let run = RunId { job: 2, number: 1 };
        let end = NodeEnd { epilog_failed: Some("exit code 1".into()), ..NodeEnd::default() };
        site.control.heard(LinkId(2), FromAgent::Released { run, end }, site.now);
        site.play();
    }),
    ("a requeue of a running job, and its return", |site, _| {
        site.order(ClientOrder::Requeue(JobId(4)));
        site.play();
    }),
    ("a cancellation of a running job", |site, _| {
        site.order(ClientOrder::Cancel(JobId(3)));
        site.play();
    }),
];

/// Entries looked at and bytes allocated, operation by operation.
fn costs(waiting: u64) -> Vec<(u64, u64)> {
    let mut site = Site::with(waiting);
    let waits = JobId(NODES + waiting);
    let cost = |(_, operation): &Operation| {
        let before = looked_at();
        let ((), allocated) = of_thread(|| operation(&mut site, waits));
        site.control.take_output();
        (looked_at() - before, allocated.bytes)
    };
    OPERATIONS.iter().map(cost).collect()
}

#[test]
fn no_operation_costs_more_because_others_wait() {
    for waiting in [10, 1_000, 100_000] {
        // A quarter of a short queue comes soon, and with it a full cycle, which goes through all of it.
        let cycle = if waiting > 1_000 { 0 } else { waiting };
        for ((name, _), (looks, bytes)) in OPERATIONS.iter().zip(costs(waiting)) {
            assert_at_most(&format!("entries looked at for {name} among {waiting}"), looks, 300 + 20 * cycle);
            assert_at_most(
                &format!("bytes allocated for {name} among {waiting}"),
                bytes,
                36_864 + 64 * cycle,
            );
        }
    }
}

#[test]
fn the_tasks_of_ten_held_arrays_are_cancelled_at_one_price_each() {
    let price = |tasks: u64| {
        let mut site = Site::with(10);
        let held = (0..10).map(|_| {
            let mut job = array(tasks);
            job.policy.is_held = true;
            site.submit("mallory", job)
        });
        let first = held.collect::<Vec<JobId>>()[3];
        site.settle();
        let tasks = site.control.find_jobs(&first.0.to_string());
        let before = looked_at();
        let count = tasks.len() as u64;
        let (answers, allocated) = of_thread(|| {
            site.control.order_all(tasks.into_iter().map(ClientOrder::Cancel), "mallory", site.now)
        });
        assert!(answers.iter().all(Result::is_ok));
        ((looked_at() - before) / count, allocated.bytes / count)
    };
    let (few, many) = (price(100), price(10_000));
    assert_at_most("entries looked at for a cancelled task of 10,000", many.0, few.0 + 20);
    assert_at_most("bytes allocated for a cancelled task of 10,000", many.1, 2 * few.1);
}

#[test]
fn a_job_may_not_depend_on_more_jobs_than_two_large_arrays_have() {
    let mut site = Site::with(10);
    let arrays: Vec<String> = (0..3).map(|_| site.submit("mallory", array(10_000)).0.to_string()).collect();
    let after = |arrays: &[String]| {
        let mut job = gang("after");
        job.policy.dependencies = vec![Dependency { kind: DependencyKind::AfterAny, jobs: arrays.to_vec() }];
        Submission::new("mallory", job)
    };
    assert!(site.control.submit(after(&arrays[..2]), site.now).is_ok());
    let refused = site.control.submit(after(&arrays), site.now);
    assert_eq!(refused, Err(OrderRefusal::TooManyDependencies { most: 20_000 }));
}

#[test]
fn a_large_array_is_submitted_in_slices_and_orders_reach_tasks_that_have_not_come_yet() {
    let mut site = Site::with(10);
    let first = site.submit("mallory", array(10_000));
    assert!(site.control.is_arriving(first) && site.control.is_arriving(JobId(first.0 + 9_999)));
    let orders = (first.0 + 9_990..first.0 + 10_000).map(|task| ClientOrder::Cancel(JobId(task)));
    assert!(site.control.order_all(orders, "mallory", site.now).iter().all(Result::is_ok));
    site.settle();
    let live = site.control.page(&JobFilter { limit: Some(20_000), ..JobFilter::default() }, 20_000).jobs;
    assert_eq!(live.iter().filter(|job| job.user == "mallory").count(), 9_990);
}

#[test]
fn no_piece_of_work_grows_with_an_array_or_a_queue() {
    let looks = |act: &mut dyn FnMut()| {
        let before = looked_at();
        act();
        looked_at() - before
    };
    let mut site = Site::with(100_000);
    let submitted = looks(&mut || {
        site.submit("mallory", array(10_000));
    });
    assert_at_most("entries looked at for an array of 10,000", submitted, 20_000);
    let mut ticks = Vec::new();
    while site.goes_on() {
        ticks.push(looks(&mut || site.take_a_turn()));
    }
    let most = ticks.iter().copied().max().unwrap_or(0);
    assert_at_most("entries looked at for a slice of an array", most, 20_000);
    println!("submission {submitted}, {} slices of at most {most}", ticks.len());
    for waiting in [10, 1_000, 100_000] {
        let mut site = Site::with(waiting);
        let (node, reason) = ("n4".to_owned(), "test".to_owned());
        let drained =
            looks(&mut || site.order(ClientOrder::Drain { node: node.clone(), reason: reason.clone() }));
        let resumed = looks(&mut || site.order(ClientOrder::Resume { node: node.clone() }));
        for (what, looks) in [("a drain", drained), ("a resume", resumed)] {
            assert_at_most(&format!("entries looked at for {what} among {waiting}"), looks, A_TURN);
        }
    }
}

/// Entries that one turn may look at, however long the queue is.
const A_TURN: u64 = 60_000;

#[test]
fn priorities_and_a_full_cycle_are_worked_out_in_turns_that_do_not_grow_with_the_queue() {
    for waiting in [1_000, 100_000] {
        let mut site = Site::with(waiting);
        site.submit("someone", gang("one"));
        site.now = site.now + Settings::default().backfill.replan_after;
        let mut turns = Vec::new();
        while site.control.next_decision() <= site.now {
            let (before, last) = (looked_at(), JobId(NODES + waiting));
            site.control.tick(site.now);
            turns.push(looked_at() - before);
            // Others are served in between.
            site.order(ClientOrder::Hold(last));
            site.order(ClientOrder::Release(last));
            assert!(turns.len() < 10_000, "the cycle does not end");
        }
        let most = turns.iter().copied().max().unwrap_or(0);
        assert!(!turns.is_empty(), "a cycle is due");
        assert_at_most(&format!("entries looked at in a turn among {waiting}"), most, A_TURN);
        println!("{waiting} jobs: {} turns, {most} entries at most", turns.len());
    }
}

#[test]
fn a_chain_of_100_000_jobs_that_is_cut_at_its_head_ends_in_slices() {
    const LENGTH: u64 = 100_000;
    let mut site = Site::with(10);
    let mut head = gang("chain");
    head.policy.is_held = true;
    let head = site.submit("mallory", head);
    for number in 1..LENGTH {
        let mut job = gang("chain");
        let before = JobId(head.0 + number - 1);
        job.policy.dependencies =
            vec![Dependency { kind: DependencyKind::AfterOk, jobs: vec![before.0.to_string()] }];
        site.submit("mallory", job);
    }
    let count = |site: &Site| site.control.counts(site.now).jobs_by_state["waiting"];
    let before = count(&site);
    site.order(ClientOrder::Cancel(head));
    let mut most = 0;
    while site.control.next_decision() <= site.now {
        let looks = looked_at();
        site.control.tick(site.now);
        site.play();
        most = most.max(looked_at() - looks);
        // What is left is admitted a little later each time.
        site.now = Time(site.now.0 + 1);
    }
    assert_eq!(before - count(&site), LENGTH as usize);
    assert_at_most("entries looked at for a slice of a chain", most, 60_000);
}
