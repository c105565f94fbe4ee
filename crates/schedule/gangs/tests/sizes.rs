//! Sizes by goodput: limits, rules and promises hold whatever a plan of sizes would like.

mod fixture;

use bedplate_gangs::*;

/// A scheduler by goodput that plans anew only every ten minutes; QOS `small` allows each user four nodes.
fn scheduler(nodes: u32) -> Scheduler {
    let small = Qos { most_gpus_per_user: Some(32), ..Qos::named("small") };
    let usual = Settings::by_arrival();
    let settings = Settings {
        qos: vec![Qos::named("normal"), small],
        backfill: Backfill { replan_percent: 10_000, ..usual.backfill.clone() },
        elastic: ElasticRules { by: SizesBy::Goodput, ..usual.elastic.clone() },
        ..usual
    };
    Scheduler::new(fixture::cluster(nodes, 8, nodes, 1.0), settings)
}

const SMALL: QosId = QosId(1);

fn fixed(id: u64, nodes: u32) -> Request {
    Request { time_limit: Span::hours(2), ..Request::new(JobId(id), RoleRequest::new(nodes, 8)) }
}

/// Each further node brings less.
fn elastic(id: u64, nodes: u32, min: u32, max: u32) -> Request {
    let role = RoleRequest { elastic: Some(Elastic { min, max, step: 1 }), ..RoleRequest::new(nodes, 8) };
    let rates = Rates::new(vec![(1, 1.0), (2, 1.8), (4, 3.0), (8, 4.5)]).expect("a curve");
    Request { roles: vec![role], rates: Some(rates), ..fixed(id, nodes) }
}

fn submit(request: Request) -> Event {
    Event::Submit(Box::new(request))
}

fn ended(job: u64) -> Event {
    Event::Ended { job: JobId(job), outcome: Outcome::Succeeded }
}

/// The nodes that a gang is asked to leave.
fn leaves(decisions: &[Decision]) -> Event {
    let [Decision::Shrink { job, nodes, .. }] = decisions else { panic!("{decisions:?}") };
    Event::Left { job: *job, nodes: nodes.clone() }
}

fn started(decisions: &[Decision]) -> Vec<(JobId, usize, StartReason)> {
    let start = |decision: &Decision| match decision {
        Decision::Start { job, shares, why } => Some((*job, shares.len(), *why)),
        _ => None,
    };
    decisions.iter().filter_map(start).collect()
}

#[test]
fn a_promise_of_more_than_was_asked_for_begins_only_within_the_limits() {
    let mut scheduler = scheduler(9);
    let at = |seconds| Time::ZERO + Span::minutes(20) + Span::seconds(seconds);
    scheduler.apply_all(vec![submit(elastic(1, 8, 1, 8)), submit(fixed(2, 1))], Time::ZERO);
    let decisions = scheduler.apply(submit(Request { qos: SMALL, ..elastic(3, 2, 1, 8) }), at(0));
    let promised = scheduler.reservation(JobId(3)).map(|promise| promise.nodes.len());
    assert_eq!(promised, Some(4), "{decisions:?}");
    // Before the nodes are left, another gang of the user takes a part of what the limit allows.
    assert!(started(&scheduler.apply(submit(Request { qos: SMALL, ..fixed(4, 1) }), at(1))).is_empty());
    assert_eq!(
        started(&scheduler.apply(ended(2), at(2))),
        [(JobId(4), 1, StartReason::Backfilled { past: 1 })]
    );
    assert_eq!(started(&scheduler.apply(leaves(&decisions), at(3))), []);
    assert_eq!(started(&scheduler.apply(Event::Tick, at(700))), [(JobId(3), 2, StartReason::InOrder)]);
}

#[test]
fn a_promise_of_less_than_was_asked_for_begins_when_the_limits_allow_that() {
    let mut scheduler = scheduler(8);
    let at = |seconds| Time::ZERO + Span::minutes(20) + Span::seconds(seconds);
    scheduler.apply(submit(elastic(1, 8, 1, 8)), Time::ZERO);
    let decisions = scheduler.apply(submit(Request { qos: SMALL, ..elastic(2, 6, 1, 6) }), at(0));
    let smaller = StartReason::Smaller { nodes: 4, asked: 6 };
    assert_eq!(started(&scheduler.apply(leaves(&decisions), at(1))), [(JobId(2), 4, smaller)]);
}

#[test]
fn a_planned_start_says_whom_it_passes() {
    let mut scheduler = scheduler(8);
    scheduler.apply(submit(fixed(1, 7)), Time::ZERO);
    scheduler.apply(submit(fixed(2, 8)), Time::seconds(1));
    // A gang that ends before the promised start, looked at in a full cycle.
    let short = Request { time_limit: Span::minutes(10), ..elastic(3, 1, 1, 1) };
    let decisions = scheduler.apply(submit(short), Time::ZERO + Span::minutes(20));
    assert_eq!(started(&decisions), [(JobId(3), 1, StartReason::Backfilled { past: 1 })]);
}
