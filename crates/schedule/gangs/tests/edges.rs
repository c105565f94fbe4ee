//! Odd requests and unlucky moments: who waits, who is told to go, and what may never happen.

mod fixture;

use bedplate_gangs::*;
use bedplate_topology::NodeId;
use expect_test::{Expect, expect};

fn check(story: &str, ending: Expect) {
    ending.assert_eq(&fixture::tell(story));
}

#[test]
fn a_waiting_gang_is_told_where_the_nodes_are_that_it_might_use() {
    check(
        "cluster 8 nodes x 8 gpus
         0m submit a nodes=2 limit=60m
         0m submit b limit=30m
         0m drain n8
         0m fail n7
         1m submit c nodes=5 avoid=n6 limit=10m
         2m nodes c",
        expect![[r#"
            2m of 8: free 2, held 3 (a 2 until 60m, b 1 until 30m), out n7, n8, small 0, left out 1 (1 by the list of nodes to avoid)
            a 0m..60m n[1-2]
            b 0m..30m n3
            c 60m..70m n[1-5]"#]],
    );
}

#[test]
fn a_job_that_needs_no_gpu_does_not_start_on_a_node_out_of_service() {
    check(
        "cluster 2 nodes x 8 gpus
         0m drain n1
         0m fail n2
         1m submit a gpus=0 limit=10m
         20m resume n2",
        expect![[r#"a 20m..30m n2"#]],
    );
}

#[test]
fn a_window_that_is_announced_for_a_draining_node_does_not_stop_what_ends_before_it() {
    check(
        "cluster 1 nodes x 8 gpus
         0m submit a limit=60m
         5m drain n1
         10m maintain n1 90m 120m",
        expect![[r#"a 0m..60m n1"#]],
    );
}

#[test]
fn a_window_that_is_over_stops_nobody() {
    check(
        "cluster 1 nodes x 8 gpus
         0m submit a limit=60m
         20m maintain n1 5m 10m",
        expect![[r#"a 0m..60m n1"#]],
    );
}

#[test]
fn a_gang_that_shrinks_and_so_takes_longer_still_leaves_before_maintenance() {
    check(
        "cluster 2 nodes x 8 gpus
         0m submit e nodes=2 elastic=1..2 limit=60m runs=100m
         0m maintain n1,n2 70m 80m
         10m left e n2
         10m drain n2",
        expect![[r#"
            e 0m..70m n1
            e 80m..180m n1"#]],
    );
}

#[test]
fn a_gang_leaves_before_the_second_window_when_the_first_is_called_off() {
    check(
        "cluster 2 nodes x 8 gpus
         0m submit a limit=60m
         1m maintain n1 20m 25m
         2m leaves n1 40m
         10m unreserve",
        expect![[r#"
            a 0m..40m n1
            a 40m..100m n2"#]],
    );
}

#[test]
fn nobody_is_stopped_for_a_gang_that_its_quota_puts_behind() {
    check(
        "cluster 3 nodes x 8 gpus
         qos urgent preempts=normal priority=10
         queue cohort
         queue red parent=cohort nominal=24
         queue blue parent=cohort nominal=16
         0m submit x nodes=1 limit=100m preempted=never
         0m submit a nodes=2 limit=60m
         1m submit q nodes=2 workers=1x8 queue=red qos=urgent limit=10m
         2m submit p nodes=2 queue=red qos=urgent limit=10m",
        expect![[r#"
            x 0m..100m n1
            a 0m..60m n[2-3]
            p 60m..70m n[2-3]
            q 100m..110m n[1-3]"#]],
    );
}

#[test]
fn who_waited_behind_a_reservation_starts_when_it_is_cancelled_or_held() {
    check(
        "cluster 4 nodes x 8 gpus
         0m submit a nodes=3 limit=60m
         1m submit b nodes=4 limit=30m
         1m submit c nodes=1 limit=90m
         5m cancel b
         95m submit d nodes=3 limit=60m
         96m submit e nodes=4 limit=30m
         96m submit f nodes=1 limit=90m
         100m hold e
         200m release e",
        expect![[r#"
            5m b dropped: Cancelled
            a 0m..60m n[1-3]
            c 5m..95m n4
            d 95m..155m n[1-3]
            f 100m..190m n4
            e 200m..230m n[1-4]"#]],
    );
}

#[test]
fn two_roles_on_one_node_come_and_go_together() {
    check(
        "cluster 2 nodes x 8 gpus
         0m submit rl nodes=2 gpus=4 workers=1x4 limit=10m runs=20m grace=5m
         1m submit b nodes=2 limit=10m
         2m submit again nodes=2 gpus=4 workers=1x4 limit=30m
         22m fail n1
         40m resume n1",
        expect![[r#"
            rl 0m..15m n[1-2]
            b 15m..22m n[1-2]
            b 40m..50m n[1-2]
            again 50m..80m n[1-2]"#]],
    );
}

#[test]
fn roles_that_cannot_stand_together_are_refused() {
    check(
        "cluster 4 nodes x 8 gpus, 2 per leaf
         0m submit a nodes=3 gpus=8 workers=2x1
         0m submit b nodes=3 gpus=8 workers=1x1 segment=2 within=leaf
         0m submit c nodes=2 gpus=8 workers=2x8 limit=10m",
        expect![[r#"
            a never: its roles do not fit together, even on the empty cluster
            b never: segments do not divide the nodes of a role
            c 0m..10m n[1-4]"#]],
    );
}

#[test]
fn segments_that_the_sets_cannot_hold_are_refused() {
    check(
        "cluster 9 nodes x 8 gpus, 3 per leaf
         0m submit a nodes=8 segment=2 within=leaf
         0m submit b nodes=6 segment=2 within=leaf limit=10m
         0m submit c nodes=4 segment=2 within=leaf elastic=3..5",
        expect![[r#"
            a never: it needs 4 segments of 2 nodes in one leaf each, and there are 3
            c never: segments do not divide the nodes of a role
            b 0m..10m n[1-2,4-5,7-8]"#]],
    );
}

#[test]
fn an_elastic_gang_grows_by_whole_segments() {
    check(
        "cluster 6 nodes x 8 gpus, 3 per leaf
         0m submit x nodes=1 limit=5m
         0m submit e nodes=2 elastic=2..6 step=2 segment=2 within=leaf limit=60m
         30m show",
        expect![[r#"
            30m e on n[4-5,1-2], x gone
            x 0m..5m n1
            e 0m..35m n[1-2,4-5]"#]],
    );
}

#[test]
fn who_shares_a_gpu_is_not_stopped_for_others() {
    check(
        "cluster 1 nodes x 2 gpus
         partition high tier=10
         0m submit a gpus=1 share=500 limit=60m preempted=suspend
         0m submit b gpus=1 limit=60m
         10m submit h gpus=2 limit=10m partition=high
         11m submit i gpus=1 limit=10m partition=high",
        expect![[r#"
            11m b stops for i
            a 0m..60m n1
            b 0m..11m n1
            i 11m..21m n1
            h 60m..70m n1
            b 70m..130m n1"#]],
    );
}

#[test]
fn memory_of_a_suspended_gang_is_not_given_to_who_suspends_it() {
    check(
        "cluster 1 nodes x 8 gpus
         partition high tier=10
         0m submit a memory=600 limit=60m preempted=suspend
         10m submit h memory=600 limit=10m partition=high
         11m submit i memory=200 limit=10m partition=high",
        expect![[r#"
            11m a stops for i
            a 0m..11m n1
            i 11m..21m n1
            a 21m..70m n1
            h 70m..80m n1"#]],
    );
}

#[test]
fn a_refused_job_does_not_keep_others_waiting() {
    check(
        "cluster 1 nodes x 8 gpus
         0m submit a nodes=2
         0m submit b limit=10m after=a
         0m submit c limit=10m afterany=a",
        expect![[r#"
            a never: it needs 2 nodes with 8 GPUs, and the cluster has 1 of them
            b never: job 1, which was to succeed first, did not
            c 0m..10m n1"#]],
    );
}

#[test]
fn a_job_without_end_that_fits_only_when_smaller_starts_smaller() {
    let mut scheduler = Scheduler::new(fixture::cluster(2, 8, 2, 1.0), Settings::default());
    let elastic = Some(Elastic { min: 1, max: u32::MAX, step: 1 });
    let role = RoleRequest { elastic, ..RoleRequest::new(3, 8) };
    let request = GangRequest { time_limit: Span::FOREVER, ..GangRequest::new(JobId(1), role) };
    let decisions = scheduler.apply(Event::Submit(Box::new(request)), Time::ZERO);
    assert!(matches!(&decisions[..], [Decision::Start { shares, .. }] if shares.len() == 2), "{decisions:?}");
}

#[test]
fn numbers_out_of_range_are_answered_not_panicked_about() {
    let mut scheduler = Scheduler::new(fixture::cluster(2, 8, 2, 1.0), Settings::default());
    let plain = |id| GangRequest::new(JobId(id), RoleRequest::new(1, 8));
    let endless = GangRequest { time_limit: Span(u64::MAX), grace: Span(u64::MAX), ..plain(1) };
    let pressing = GangRequest { site_priority: i64::MAX, nice: i64::MIN, ..plain(2) };
    let huge = GangRequest { roles: vec![RoleRequest::new(u32::MAX, 8); 2], ..plain(3) };
    let empty = RoleRequest { elastic: Some(Elastic { min: 0, max: 2, step: 1 }), ..RoleRequest::new(1, 8) };
    let shared = RoleRequest { gpu_share: Some(500), is_exclusive: true, ..RoleRequest::new(1, 1) };
    let array = Some(ArrayTask { array: JobId(9), at_once: Some(0) });
    let mut outcome = |request: GangRequest| {
        let decisions = scheduler.apply(Event::Submit(Box::new(request)), Time::ZERO);
        matches!(decisions[..], [Decision::Start { .. }])
    };
    assert!(outcome(endless) && outcome(pressing));
    assert!(!outcome(huge) && !outcome(GangRequest { array, ..plain(4) }));
    assert!(!outcome(GangRequest::new(JobId(5), empty)) && !outcome(GangRequest::new(JobId(6), shared)));
    let nowhere = vec![NodeId(77)];
    assert!(scheduler.apply(Event::Left { job: JobId(1), nodes: nowhere }, Time::ZERO).is_empty());
    assert!(
        scheduler
            .apply(Event::Ended { job: JobId(1), outcome: GangOutcome::Succeeded }, Time::ZERO)
            .is_empty()
    );
}

#[test]
fn a_long_chain_of_jobs_that_can_no_longer_run_is_refused_slice_by_slice_at_once() {
    let mut scheduler = Scheduler::new(fixture::cluster(1, 8, 1, 1.0), Settings::default());
    let link = |id| {
        let mut request = GangRequest::new(JobId(id), RoleRequest::new(1, 8));
        let on = GangDependency { kind: DependencyKind::AfterOk, jobs: vec![JobId(id - 1)] };
        request.dependencies.extend((id > 1).then_some(on));
        Event::Submit(Box::new(request))
    };
    scheduler.apply_all((1..=30_000).map(link), Time::ZERO);
    let failed = Event::Ended { job: JobId(1), outcome: GangOutcome::Failed };
    let mut refused = scheduler.apply(failed, Time::seconds(1)).len();
    while scheduler.wakeup() == Some(Time::seconds(1)) {
        refused += scheduler.apply(Event::Tick, Time::seconds(1)).len();
    }
    assert_eq!(refused, 29_999);
}

#[test]
fn a_cluster_on_which_nobody_waits_is_not_woken_for_nothing() {
    let story = "cluster 2 nodes x 8 gpus
         partition high tier=10
         0m submit a nodes=2 limit=60m minimum=30m
         10m submit h nodes=2 limit=10m partition=high
         20m cancel h
         20m cancel a";
    let mut world = fixture::World::new(story);
    world.run();
    assert_eq!(world.scheduler.wakeup(), None);
}

#[test]
fn an_elastic_gang_grows_once_it_has_settled_although_nothing_else_happens() {
    check(
        "cluster 4 nodes x 8 gpus
         0m submit x nodes=2 limit=5m
         0m submit e nodes=2 elastic=2..4 limit=60m runs=120m",
        expect![[r#"
            x 0m..5m n[1-2]
            e 0m..2250s n[1-4]"#]],
    );
}

#[test]
fn gangs_that_grow_at_once_share_what_their_quota_leaves() {
    check(
        "cluster 4 nodes x 8 gpus
         queue red nominal=24
         0m submit a elastic=1..2 queue=red limit=60m
         0m submit b elastic=1..2 queue=red limit=60m",
        expect![[r#"
            a 0m..35m n[1,3]
            b 0m..2850s n[1-2]"#]],
    );
}

#[test]
fn gangs_that_grow_at_once_share_what_their_limit_leaves() {
    check(
        "cluster 4 nodes x 8 gpus
         qos small gpus=24
         0m submit a elastic=1..2 qos=small limit=60m
         0m submit b elastic=1..2 qos=small limit=60m",
        expect![[r#"
            a 0m..35m n[1,3]
            b 0m..2850s n[1-2]"#]],
    );
}

#[test]
fn a_gang_does_not_grow_into_quota_that_another_takes_back() {
    check(
        "cluster 8 nodes x 8 gpus
         queue cohort
         queue red parent=cohort nominal=16
         queue blue parent=cohort nominal=16
         0m submit a queue=blue preempted=never limit=60m
         0m submit e elastic=1..2 queue=blue preempted=never limit=60m
         0m submit v queue=blue limit=60m
         0m submit w queue=blue limit=60m grace=2m
         12m submit r nodes=2 queue=red limit=10m",
        expect![[r#"
            12m v stops for r
            12m w stops for r
            a 0m..60m n1
            e 0m..60m n2
            v 0m..12m n3
            w 0m..14m n4
            r 14m..24m n[3-4]
            v 24m..84m n3
            w 24m..84m n4"#]],
    );
}

#[test]
fn a_spare_is_not_taken_from_a_gang_whose_end_comes_at_the_same_instant() {
    check(
        "cluster 8 nodes x 8 gpus, 4 per leaf
         95m submit j0 nodes=1 gpus=8 limit=8m runs=8m within=leaf
         15m submit j1 nodes=4 gpus=1 limit=46m runs=33m within=leaf
         24m submit j2 nodes=5 gpus=1 limit=44m runs=44m spread=leaf
         15m submit j3 nodes=5 gpus=8 limit=17m runs=11m spread=leaf
         103m fail n2",
        expect![[r#"
            103m j2 swaps n2 for n7
            j1 15m..48m n[1-4]
            j3 48m..59m n[1-3,5-6]
            j2 59m..103m n[1,3,5-7]
            j0 95m..103m n4"#]],
    );
}
