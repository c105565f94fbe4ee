//! A scheduler that is made while gangs run: what it is told, what it believes, what it decides.

mod fixture;

use bedplate_gangs::*;
use bedplate_topology::NodeId;

const HOUR: Span = Span::hours(1);

fn scheduler(nodes: u32) -> Scheduler {
    Scheduler::new(fixture::cluster(nodes, 8, 4, 1.0), Settings::default())
}

fn at(minutes: u64) -> Time {
    Time::ZERO + Span::minutes(minutes)
}

fn request(id: u64, nodes: u32, gpus: u16) -> GangRequest {
    GangRequest { time_limit: HOUR, ..GangRequest::new(JobId(id), RoleRequest::new(nodes, gpus)) }
}

fn share(node: u32, devices: u64) -> NodeShare {
    NodeShare { node: NodeId(node), role: 0, devices }
}

fn adopt(request: GangRequest, shares: Vec<NodeShare>, started: Time) -> Event {
    Event::Adopt(Box::new(Adopted::new(request, shares, started)))
}

fn submit(request: GangRequest) -> Event {
    Event::Submit(Box::new(request))
}

fn fail(node: u32) -> Event {
    Event::Node { node: NodeId(node), order: NodeOrder::Fail }
}

#[test]
fn an_adopted_gang_holds_the_very_devices_it_was_given_and_is_not_started_again() {
    let mut scheduler = scheduler(2);
    let decisions = scheduler.apply(adopt(request(1, 1, 2), vec![share(1, 0b1010_0000)], at(0)), at(10));
    assert_eq!(decisions, []);
    assert_eq!(scheduler.free_devices(NodeId(1)), 0b0101_1111);
    assert_eq!(scheduler.running().collect::<Vec<_>>(), [(JobId(1), &[share(1, 0b1010_0000)][..])]);
}

#[test]
fn its_limit_and_its_usage_count_from_its_start() {
    let mut scheduler = scheduler(1);
    scheduler.apply(adopt(request(1, 1, 8), vec![share(0, 0xff)], at(0)), at(50));
    scheduler.apply(submit(request(2, 1, 8)), at(50));
    assert_eq!(scheduler.reservation(JobId(2)).map(|reservation| reservation.start), Some(at(60)));
    assert_eq!(scheduler.wakeup(), Some(at(60)));
    scheduler.apply(Event::Ended { job: JobId(1), outcome: GangOutcome::Succeeded }, at(55));
    assert_eq!(scheduler.usage().total(), 8 * u128::from(Span::minutes(55).0));
}

#[test]
fn a_gang_whose_limit_passed_while_nobody_looked_is_stopped() {
    let mut scheduler = scheduler(1);
    let decisions = scheduler.apply(adopt(request(1, 1, 8), vec![share(0, 0xff)], at(0)), at(90));
    assert!(matches!(decisions[..], [Decision::Stop { why: StopReason::TimeLimit, .. }]), "{decisions:?}");
}

#[test]
fn limits_count_an_adopted_gang() {
    let mut settings = Settings::default();
    settings.qos[0].most_gpus_per_user = Some(8);
    let mut scheduler = Scheduler::new(fixture::cluster(4, 8, 4, 1.0), settings);
    let decisions = scheduler
        .apply_all([adopt(request(1, 1, 8), vec![share(0, 0xff)], at(0)), submit(request(2, 1, 1))], at(1));
    assert_eq!(decisions, []);
    let wait = scheduler.explain(JobId(2), at(1)).map(|told| told.wait);
    assert!(matches!(wait, Some(Wait::Limit { used: 8, asked: 1, .. })), "{wait:?}");
}

#[test]
fn a_gang_that_is_said_to_hold_what_it_cannot_is_disowned_and_waits_again() {
    let cases = [
        (vec![], Misfit::NoNodes),
        (vec![share(7, 0xff)], Misfit::UnknownNode(NodeId(7))),
        (vec![NodeShare { role: 3, ..share(0, 0xff) }], Misfit::UnknownRole(3)),
        (vec![share(0, 0x0f)], Misfit::OtherGpus(NodeId(0))),
        (vec![share(0, 0xff00)], Misfit::TooSmall(NodeId(0))),
        (vec![share(0, 0xff), share(1, 0xff)], Misfit::Taken(NodeId(1))),
    ];
    for (shares, why) in cases {
        let mut scheduler = scheduler(2);
        let first = adopt(request(1, 1, 8), vec![share(1, 0xff)], at(0));
        let decisions = scheduler.apply_all([first, adopt(request(2, 1, 8), shares, at(0))], at(1));
        assert_eq!(decisions[0], Decision::Disown { job: JobId(2), why });
        let restarted = matches!(decisions[1..], [Decision::Start { job: JobId(2), .. }]);
        assert!(restarted, "the first node is free for it: {decisions:?}");
    }
}

#[test]
fn a_gang_that_may_not_be_requeued_is_dropped_when_it_is_disowned() {
    let mut scheduler = scheduler(1);
    let request = GangRequest { is_requeued: false, ..request(1, 1, 8) };
    let decisions = scheduler.apply(adopt(request, vec![], at(0)), at(1));
    let dropped = Decision::Drop { job: JobId(1), outcome: GangOutcome::NodeLost };
    assert_eq!(decisions[1..], [dropped]);
    assert_eq!(scheduler.outcome(JobId(1)), Some(GangOutcome::NodeLost));
}

#[test]
fn a_node_lost_while_nobody_looked_is_replaced_by_one_that_no_other_adopted_gang_holds() {
    let mut scheduler = scheduler(3);
    let gangs = [(1, 0), (2, 1)].map(|(id, node)| adopt(request(id, 1, 8), vec![share(node, 0xff)], at(0)));
    let decisions = scheduler.apply_all([fail(0)].into_iter().chain(gangs), at(1));
    let swap = Decision::Swap { job: JobId(1), lost: vec![NodeId(0)], shares: vec![share(2, 0xff)] };
    assert_eq!(decisions, [swap]);
}

#[test]
fn an_adopted_gang_on_a_lost_node_is_stopped_where_no_other_node_is_free() {
    let mut scheduler = scheduler(1);
    let gang = adopt(request(1, 1, 8), vec![share(0, 0xff)], at(0));
    let decisions = scheduler.apply_all([fail(0), gang], at(1));
    let [Decision::Stop { why, then, .. }] = decisions[..] else { panic!("{decisions:?}") };
    assert_eq!((why, then), (StopReason::NodeLost(NodeId(0)), Then::Requeue));
}

#[test]
fn two_gangs_share_a_gpu_after_a_restart_as_before() {
    let mut scheduler = scheduler(1);
    let sharer = |id, share| {
        let role = RoleRequest { gpu_share: Some(share), ..RoleRequest::new(1, 1) };
        GangRequest { roles: vec![role], ..request(id, 1, 1) }
    };
    let gangs = [(1, 600), (2, 400), (3, 100)]
        .map(|(id, part)| adopt(sharer(id, part), vec![share(0, 0b100)], at(0)));
    let decisions = scheduler.apply_all(gangs, at(1));
    assert_eq!(decisions[0], Decision::Disown { job: JobId(3), why: Misfit::Taken(NodeId(0)) });
    assert_eq!(scheduler.gangs_on(NodeId(0)).take(2).collect::<Vec<_>>(), [JobId(1), JobId(2)]);
}

#[test]
fn a_job_is_released_or_dropped_by_how_a_job_ended_before_the_restart() {
    for (outcome, starts) in [(GangOutcome::Succeeded, true), (GangOutcome::Failed, false)] {
        for known_first in [true, false] {
            let after = GangDependency { kind: DependencyKind::AfterOk, jobs: vec![JobId(1)] };
            let waiting = submit(GangRequest { dependencies: vec![after], ..request(2, 1, 8) });
            let mut events = [Event::Known { job: JobId(1), outcome }, waiting];
            if !known_first {
                events.reverse();
            }
            let mut scheduler = scheduler(1);
            let decisions = scheduler.apply_all(events, at(1));
            let started = matches!(decisions[..], [Decision::Start { .. }]);
            let dropped =
                matches!(decisions[..], [Decision::Reject { why: Never::DependencyFailed { .. }, .. }]);
            assert_eq!((started, dropped), (starts, !starts), "{decisions:?}");
        }
    }
}

#[test]
fn the_age_of_a_waiting_job_survives() {
    let mut scheduler = scheduler(1);
    let old = GangRequest { history: Some(History::since(at(0))), ..request(2, 1, 8) };
    let gang = adopt(request(1, 1, 8), vec![share(0, 0xff)], at(0));
    scheduler.apply_all([gang, submit(request(3, 1, 8)), submit(old)], at(30));
    assert_eq!(scheduler.queue().collect::<Vec<_>>(), [JobId(2), JobId(3)]);
}

#[test]
fn usage_is_restored_to_the_last_bit() {
    let half_life = Span::days(7);
    let mut usage = Usage::default();
    for (user, gpu_ms, hour) in [(1, 1_000_003, 1), (2, 77, 2), (1, 500_009, 30)] {
        usage.add(Accounts::ROOT, UserId(user), gpu_ms, Time::ZERO + Span::hours(hour), half_life);
    }
    let mut restored = Usage::default();
    usage.records().for_each(|record| restored.restore(record, half_life));
    assert_eq!(usage, restored);
    let mut scheduler = scheduler(1);
    scheduler.apply_all(usage.records().map(Event::Used), at(0));
    assert_eq!(scheduler.usage(), &usage);
}

#[test]
fn usage_of_two_times_adds_up_as_if_it_had_been_booked_in_order() {
    let half_life = Span::days(1);
    let record = |gpu_ms, hour| UsageRecord {
        account: Accounts::ROOT,
        user: UserId(1),
        gpu_ms,
        faded: gpu_ms as f64,
        at: Time::ZERO + Span::hours(hour),
    };
    for order in [[(1000, 0), (100, 24)], [(100, 24), (1000, 0)]] {
        let mut usage = Usage::default();
        order.into_iter().for_each(|(gpu_ms, hour)| usage.restore(record(gpu_ms, hour), half_life));
        let kept = usage.records().next().expect("one user");
        assert_eq!((kept.gpu_ms, kept.faded, kept.at), (1100, 600.0, Time::ZERO + Span::hours(24)));
    }
}
