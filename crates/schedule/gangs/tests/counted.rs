//! What the scheduler of gangs allocates for one event and for a full cycle, held so that slow decay shows.

use bedplate_catalog::Catalog;
use bedplate_gangs::{Event, GangRequest, JobId, RoleRequest, Scheduler, Settings, Span, Time};
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
