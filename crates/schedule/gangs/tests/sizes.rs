//! Sizes by goodput: limits, rules and reservations hold whatever a plan of sizes would like.

mod fixture;

use bedplate_gangs::*;
use bedplate_topology::NodeId;
use expect_test::{Expect, expect};

fn check(story: &str, ending: Expect) {
    ending.assert_eq(&fixture::tell(story));
}

/// Each further node brings less.
const CONCAVE: &str = "rates=1:1,2:1.8,4:3,8:4.5";
/// Further nodes bring next to nothing.
const FLAT: &str = "rates=1:1,8:1.2";

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

fn fixed(id: u64, nodes: u32) -> GangRequest {
    GangRequest { time_limit: Span::hours(2), ..GangRequest::new(JobId(id), RoleRequest::new(nodes, 8)) }
}

/// Each further node brings less.
fn elastic(id: u64, nodes: u32, min: u32, max: u32) -> GangRequest {
    let role = RoleRequest { elastic: Some(Elastic { min, max, step: 1 }), ..RoleRequest::new(nodes, 8) };
    let rates = Rates::new(vec![(1, 1.0), (2, 1.8), (4, 3.0), (8, 4.5)]).expect("a curve");
    GangRequest { roles: vec![role], rates: Some(rates), ..fixed(id, nodes) }
}

fn submit(request: GangRequest) -> Event {
    Event::Submit(Box::new(request))
}

fn ended(job: u64) -> Event {
    Event::Ended { job: JobId(job), outcome: GangOutcome::Succeeded }
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
fn a_reservation_of_more_than_was_asked_for_begins_only_within_the_limits() {
    let mut scheduler = scheduler(9);
    let at = |seconds| Time::ZERO + Span::minutes(20) + Span::seconds(seconds);
    scheduler.apply_all(vec![submit(elastic(1, 8, 1, 8)), submit(fixed(2, 1))], Time::ZERO);
    let decisions = scheduler.apply(submit(GangRequest { qos: SMALL, ..elastic(3, 2, 1, 8) }), at(0));
    let reserved = scheduler.reservation(JobId(3)).map(|reservation| reservation.nodes.len());
    assert_eq!(reserved, Some(4), "{decisions:?}");
    // Before the nodes are left, another gang of the user takes a part of what the limit allows.
    assert!(started(&scheduler.apply(submit(GangRequest { qos: SMALL, ..fixed(4, 1) }), at(1))).is_empty());
    assert_eq!(
        started(&scheduler.apply(ended(2), at(2))),
        [(JobId(4), 1, StartReason::Backfilled { past: 1 })]
    );
    assert_eq!(started(&scheduler.apply(leaves(&decisions), at(3))), []);
    let larger = StartReason::Larger { nodes: 3, asked: 2 };
    assert_eq!(started(&scheduler.apply(Event::Tick, at(700))), [(JobId(3), 3, larger)]);
}

#[test]
fn a_reservation_of_less_than_was_asked_for_begins_when_the_limits_allow_that() {
    let mut scheduler = scheduler(8);
    let at = |seconds| Time::ZERO + Span::minutes(20) + Span::seconds(seconds);
    scheduler.apply(submit(elastic(1, 8, 1, 8)), Time::ZERO);
    let decisions = scheduler.apply(submit(GangRequest { qos: SMALL, ..elastic(2, 6, 1, 6) }), at(0));
    let smaller = StartReason::Smaller { nodes: 4, asked: 6 };
    assert_eq!(started(&scheduler.apply(leaves(&decisions), at(1))), [(JobId(2), 4, smaller)]);
}

#[test]
fn a_planned_start_says_whom_it_passes() {
    let mut scheduler = scheduler(8);
    scheduler.apply(submit(fixed(1, 7)), Time::ZERO);
    scheduler.apply(submit(fixed(2, 8)), Time::seconds(1));
    // A gang that ends before the reserved start, looked at in a full cycle.
    let short = GangRequest { time_limit: Span::minutes(10), ..elastic(3, 1, 1, 1) };
    let decisions = scheduler.apply(submit(short), Time::ZERO + Span::minutes(20));
    assert_eq!(started(&decisions), [(JobId(3), 1, StartReason::Backfilled { past: 1 })]);
}

#[test]
fn a_limit_below_the_share_of_a_gang_does_not_keep_it_waiting() {
    check(
        &format!(
            "cluster 8 nodes x 8 gpus
             set sizes=goodput
             qos small user_gpus=16
             0m submit a nodes=8 elastic=1..8 limit=120m {FLAT}
             20m submit b nodes=2 elastic=1..8 limit=30m qos=small {CONCAVE}
             25m show"
        ),
        expect![[r#"
            25m a on n[1-6], b on n[7-8]
            a 0m..120m n[1-8]
            b 20m..50m n[7-8]"#]],
    );
}

#[test]
fn a_leaf_smaller_than_the_share_of_a_gang_does_not_keep_it_waiting() {
    check(
        &format!(
            "cluster 8 nodes x 8 gpus, 4 per leaf
             set sizes=goodput
             0m submit a nodes=8 elastic=1..8 limit=120m {FLAT}
             20m submit b nodes=2 elastic=1..8 limit=30m within=leaf {CONCAVE}
             25m show"
        ),
        expect![[r#"
            25m a on n[1-4], b on n[5-8]
            a 0m..120m n[1-8]
            b 20m..50m n[5-8]"#]],
    );
}

#[test]
fn what_a_gang_at_its_limit_cannot_have_goes_to_others() {
    check(
        &format!(
            "cluster 8 nodes x 8 gpus
             set sizes=goodput
             qos small user_gpus=16
             0m submit x nodes=4 limit=10m
             0m submit e nodes=2 elastic=1..8 limit=120m qos=small {CONCAVE}
             0m submit g nodes=2 elastic=1..8 limit=120m {CONCAVE}
             60m show"
        ),
        expect![[r#"
            60m e on n[5-6], g on n[7-8,1-4], x gone
            x 0m..10m n[1-4]
            e 0m..120m n[5-6]
            g 0m..3768s n[1-4,7-8]"#]],
    );
}

#[test]
fn what_a_gang_cannot_have_outside_of_its_leaf_goes_to_others() {
    check(
        &format!(
            "cluster 8 nodes x 8 gpus, 4 per leaf
             set sizes=goodput
             0m submit e nodes=4 elastic=4..8 limit=120m within=leaf rates=4:1,8:2
             1m submit x nodes=2 limit=10m
             1m submit g nodes=2 elastic=1..8 limit=120m {CONCAVE}
             60m show"
        ),
        expect![[r#"
            60m e on n[1-4], g on n[7-8,5-6], x gone
            e 0m..120m n[1-4]
            x 1m..11m n[5-6]
            g 1m..77m n[5-8]"#]],
    );
}

#[test]
fn nobody_gives_up_nodes_for_a_gang_of_another_leaf() {
    check(
        &format!(
            "cluster 8 nodes x 8 gpus, 4 per leaf
             set sizes=goodput
             0m submit far nodes=4 elastic=1..4 limit=240m within=leaf rates=1:1,4:1.6
             1m submit near nodes=2 elastic=1..2 limit=240m {FLAT}
             2m submit w nodes=2 elastic=2..4 limit=240m within=leaf {CONCAVE}
             3m show
             30m submit z held
             60m cancel z
             61m show"
        ),
        expect![[r#"
            3m far on n[1-4], near on n[5-6], w on n[7-8]
            60m z dropped: Cancelled
            61m far on n[1-4], near on n5, w on n[7-8,6], z gone
            far 0m..240m n[1-4]
            near 1m..241m n[5-6]
            w 2m..189m n[6-8]"#]],
    );
}

#[test]
fn a_gang_that_may_not_be_preempted_keeps_what_it_asked_for() {
    check(
        &format!(
            "cluster 4 nodes x 8 gpus
             set sizes=goodput
             0m submit a nodes=4 elastic=1..4 limit=60m preempted=never {CONCAVE}
             20m submit b nodes=2 elastic=1..4 limit=30m {CONCAVE}"
        ),
        expect![[r#"
            a 0m..60m n[1-4]
            b 60m..90m n[1-4]"#]],
    );
}

#[test]
fn a_gang_keeps_what_it_asked_for_until_it_has_run_for_its_minimum() {
    check(
        &format!(
            "cluster 4 nodes x 8 gpus
             set sizes=goodput
             0m submit a nodes=4 elastic=1..4 limit=60m minimum=40m {CONCAVE}
             20m submit b nodes=2 elastic=1..4 limit=30m {CONCAVE}"
        ),
        expect![[r#"
            a 0m..60m n[1-2]
            b 40m..66m n[1-4]"#]],
    );
}

/// How long a gang that asked for four nodes may run on a cluster of `nodes`, where it leaves some at once.
fn time_of(nodes: u32, left: &[u32], rates: &[(u32, f64)]) -> Span {
    let mut scheduler = scheduler(nodes);
    let rates = Some(Rates::new(rates.to_vec()).expect("a curve"));
    let mut decisions = scheduler.apply(submit(GangRequest { rates, ..elastic(1, 4, 1, 4) }), Time::ZERO);
    let left = Event::Left { job: JobId(1), nodes: left.iter().map(|node| NodeId(*node)).collect() };
    scheduler.apply(left, Time::ZERO);
    let mut begin = Time::ZERO;
    for minute in 0..2000 {
        let now = Time::ZERO + Span::minutes(minute);
        decisions.extend(scheduler.apply(Event::Tick, now));
        match decisions[..] {
            [] => {}
            [Decision::Start { .. }] => begin = now,
            [Decision::Stop { why: StopReason::TimeLimit, .. }] => return now.since(begin),
            _ => panic!("{decisions:?}"),
        }
        decisions.clear();
    }
    panic!("it is never told to stop");
}

#[test]
fn a_wrong_prediction_takes_no_time_from_a_gang() {
    let (fewer_is_faster, proportional) = ([(1, 9.0), (4, 1.0)], [(2, 1.0), (4, 2.0)]);
    let limit = Span::hours(2);
    assert_eq!(time_of(2, &[], &fewer_is_faster), limit, "with fewer nodes it starts with its limit");
    assert_eq!(time_of(4, &[2, 3], &fewer_is_faster), limit, "and keeps that when it loses nodes");
    assert_eq!(time_of(2, &[], &proportional), limit + limit, "half as fast, twice as long");
}
