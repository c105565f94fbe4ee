//! What the scheduler of gangs allocates for one event and for a full cycle, held so that slow decay shows.

use bedplate_catalog::Catalog;
use bedplate_gangs::counted::looked_at;
use bedplate_gangs::{
    ArrayTask, DependencyKind, Event, GangDependency, GangOutcome, GangRequest, Grant, JobId, QueueId,
    RoleRequest, Scheduler, Settings, Span, Time,
};
use bedplate_testkit::counting::{CountingAllocator, assert_at_most, of_thread};
use bedplate_topology::Cluster;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const GANGS: u64 = 1000;

fn request(id: u64) -> GangRequest {
    let role = RoleRequest::new(1 + (id % 4) as u32, 8);
    GangRequest { time_limit: Span::hours(1 + id % 24), ..GangRequest::new(JobId(id), role) }
}

fn submit(id: u64) -> Event {
    Event::Submit(Box::new(request(id)))
}

/// A full cluster with a queue before it.
fn busy() -> Scheduler {
    let cluster = Cluster::from_spec("p5.48xlarge:64", &Catalog::builtin()).expect("the catalog has it");
    let mut scheduler = Scheduler::new(cluster, Settings::default());
    scheduler.apply_all((1..=GANGS).map(submit), Time::ZERO);
    scheduler
}

#[test]
fn a_full_cycle_allocates_less_than_once_a_gang() {
    let mut scheduler = busy();
    let (_, counted) = of_thread(|| scheduler.replan(Time::ZERO + Span::minutes(1)));
    assert_at_most("allocations of a full cycle over 1,000 gangs", counted.count, 432);
}

#[test]
fn a_submission_to_a_long_queue_costs_as_little_as_to_a_short_one() {
    let mut scheduler = busy();
    let later = Time::ZERO + Span::minutes(1);
    let (_, counted) =
        of_thread(|| (1..=100).for_each(|more| drop(scheduler.apply(submit(GANGS + more), later))));
    assert_at_most("allocations of a submission behind 1,000 gangs", counted.count / 100, 8);
}

fn looks<T>(work: impl FnOnce() -> T) -> u64 {
    let before = looked_at();
    work();
    looked_at() - before
}

#[test]
fn the_end_of_a_job_looks_at_none_of_its_namesakes() {
    let mut scheduler = busy();
    let held = |id| GangRequest { name: "array".into(), is_held: true, ..request(id) };
    scheduler.apply_all((2000..12_000).map(|id| Event::Submit(Box::new(held(id)))), Time::ZERO);
    let cancelled =
        looks(|| (2000..12_000).for_each(|id| drop(scheduler.apply(Event::Cancel(JobId(id)), Time::ZERO))));
    // A decision looks at the first 32 of the queue, whatever is behind them.
    assert_at_most("entries looked at by a cancellation among 10,000 namesakes", cancelled / 10_000, 120);
}

#[test]
fn a_job_that_awaits_a_whole_array_is_looked_at_when_the_last_task_ends() {
    let mut scheduler = busy();
    let held = |id| GangRequest { is_held: true, ..request(id) };
    scheduler.apply_all((2000..12_000).map(|id| Event::Submit(Box::new(held(id)))), Time::ZERO);
    let jobs = (2000..12_000).map(JobId).collect();
    let after = GangDependency { kind: DependencyKind::AfterAny, jobs };
    let last = GangRequest { dependencies: vec![after], ..request(12_000) };
    scheduler.apply(Event::Submit(Box::new(last)), Time::ZERO);
    let cancelled =
        looks(|| (2000..12_000).for_each(|id| drop(scheduler.apply(Event::Cancel(JobId(id)), Time::ZERO))));
    assert_at_most("entries looked at by an end that one job awaits with 10,000", cancelled / 10_000, 120);
    assert!(scheduler.queue().any(|job| job == JobId(12_000)), "all have ended");
}

#[test]
fn tasks_that_wait_for_the_limit_of_their_array_are_not_tried_one_by_one() {
    let cluster = Cluster::from_spec("p5.48xlarge:8", &Catalog::builtin()).expect("the catalog has it");
    let mut scheduler = Scheduler::new(cluster, Settings::default());
    let task = ArrayTask { array: JobId(1), at_once: Some(2) };
    let task = |id| GangRequest { array: Some(task), ..GangRequest::new(JobId(id), RoleRequest::new(1, 1)) };
    scheduler.apply_all((1..=10_000).map(|id| Event::Submit(Box::new(task(id)))), Time::ZERO);
    let ended = looks(|| {
        for id in 1..=1_000 {
            let outcome = GangOutcome::Succeeded;
            let began = scheduler.apply(Event::Ended { job: JobId(id), outcome }, Time::ZERO);
            assert_eq!(began.len(), 1, "the next task of 10,000");
        }
    });
    assert_at_most("entries looked at when a task ends of an array of 10,000", ended / 1_000, 160);
}

#[test]
fn a_chain_of_dependencies_is_taken_down_in_slices() {
    let mut scheduler = busy();
    let first = 2_000;
    let held = GangRequest { is_held: true, ..request(first) };
    scheduler.apply(Event::Submit(Box::new(held)), Time::ZERO);
    let after = |id: u64| {
        let dependency = GangDependency { kind: DependencyKind::AfterOk, jobs: vec![JobId(id - 1)] };
        GangRequest { dependencies: vec![dependency], ..request(id) }
    };
    scheduler.apply_all((first + 1..=22_000).map(|id| Event::Submit(Box::new(after(id)))), Time::ZERO);
    let mut rejected = 0;
    let mut decisions = scheduler.apply(Event::Cancel(JobId(first)), Time::ZERO);
    while !decisions.is_empty() {
        assert_at_most("jobs of a chain that one event takes down", decisions.len(), 2_001);
        rejected += decisions.len() - usize::from(rejected == 0);
        assert!(rejected == 20_000 || scheduler.wakeup() == Some(Time::ZERO), "it goes on at once");
        decisions = scheduler.apply(Event::Tick, Time::ZERO);
    }
    assert_eq!(rejected, 20_000);
}

/// Gangs of queues that share quotas. The first half of the queues lend what the others must borrow.
fn sharing(waiting: u64, queues: u16) -> Scheduler {
    let cluster = Cluster::from_spec("p5.48xlarge:64", &Catalog::builtin()).expect("the catalog has it");
    let mut settings = Settings::default();
    settings.backfill.cycle_slice = 1_024;
    let root = settings.queues.add("site", None, 1.0);
    for number in 0..queues {
        let queue = settings.queues.add(format!("team-{number}"), Some(root), 1.0);
        let nominal = if number < queues / 2 { 1_000_000 } else { 8 };
        settings.queues.grant(queue, "gpu", Grant { nominal, borrowing: None, lending: None });
    }
    let mut scheduler = Scheduler::new(cluster, settings);
    let of_queue =
        |id: u64| GangRequest { queue: Some(QueueId(1 + (id % u64::from(queues)) as u16)), ..request(id) };
    scheduler.apply_all((1..=waiting).map(|id| Event::Submit(Box::new(of_queue(id)))), Time::ZERO);
    scheduler
}

/// Does what is due, turn by turn; gives how many entries each looked at.
fn looks_of_turns(scheduler: &mut Scheduler, now: Time) -> Vec<u64> {
    let mut turns = Vec::new();
    while scheduler.wakeup().is_some_and(|at| at <= now) {
        turns.push(looks(|| scheduler.apply(Event::Tick, now)));
        assert!(turns.len() < 10_000, "the cycle does not end");
    }
    turns
}

#[test]
fn the_order_among_queues_that_borrow_is_worked_out_in_turns_that_do_not_grow_with_the_queue() {
    let [few, many] = [2_000, 100_000].map(|waiting| {
        let mut scheduler = sharing(waiting, 40);
        looks_of_turns(&mut scheduler, Time::ZERO);
        let later = Time::ZERO + Settings::default().backfill.replan_after;
        scheduler.apply(submit(waiting + 1), later);
        let turns = looks_of_turns(&mut scheduler, later);
        let most = turns.iter().copied().max().unwrap_or(0);
        assert!(turns.len() as u64 > waiting / 1_024, "a cycle over all of them, and not {turns:?}");
        println!("{waiting} gangs: {} turns, {most} entries at most", turns.len());
        most
    });
    // A place in a longer queue is found by a few more comparisons.
    assert_at_most("entries looked at in a turn among 100,000 gangs", many, 2 * few);
}
