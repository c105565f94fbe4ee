//! Stories with a known ending: who runs when and where.

mod fixture;

use expect_test::{Expect, expect};

fn check(story: &str, ending: Expect) {
    ending.assert_eq(&fixture::tell(story));
}

#[test]
fn a_small_gang_backfills_behind_a_blocked_one() {
    check(
        "cluster 4 nodes x 8 gpus
         0m submit a nodes=3 limit=60m
         1m submit b nodes=4 limit=30m
         2m submit c nodes=1 limit=20m",
        expect![[r#"
            a 0m..60m n[1-3]
            c 2m..22m n4
            b 60m..90m n[1-4]"#]],
    );
}

#[test]
fn a_gang_that_would_delay_a_reservation_waits_and_one_that_ends_in_time_does_not() {
    check(
        "cluster 8 nodes x 8 gpus, 4 per leaf
         0m submit a nodes=6 limit=10m
         0m submit b nodes=8 limit=10m
         0m submit d nodes=2 limit=30m
         0m submit c nodes=2 limit=5m
         1m explain d",
        expect![[r#"
            1m d: 0 nodes have enough free and it needs 2 | start 20m | 
            a 0m..10m n[1-6]
            c 0m..5m n[7-8]
            b 10m..20m n[1-8]
            d 20m..50m n[1-2]"#]],
    );
}

#[test]
fn in_strict_order_nobody_passes() {
    check(
        "cluster 4 nodes x 8 gpus
         set fifo expansion=0
         0m submit a nodes=3 limit=60m
         1m submit b nodes=4 limit=30m
         2m submit c nodes=1 limit=20m
         3m explain c",
        expect![[r#"
            3m c: job 2 is ahead, and gangs start in strict order | start ? | 
            a 0m..60m n[1-3]
            b 60m..90m n[1-4]
            c 90m..110m n1"#]],
    );
}

#[test]
fn gpus_are_reserved_not_nodes() {
    check(
        "cluster 2 nodes x 8 gpus
         0m submit a nodes=2 gpus=6 limit=60m
         1m submit b nodes=2 gpus=4 limit=60m
         2m submit c nodes=1 gpus=2 limit=90m
         2m submit d nodes=1 gpus=2 limit=300m",
        expect![[r#"
            a 0m..60m n[1-2]
            c 2m..92m n1
            d 2m..302m n2
            b 60m..120m n[1-2]"#]],
    );
}

#[test]
fn gangs_take_the_leaf_that_fits_and_leave_the_other_whole() {
    check(
        "cluster 8 nodes x 8 gpus, 4 per leaf
         0m submit a nodes=1
         0m submit b nodes=4
         0m submit c nodes=3 within=leaf
         0m submit d nodes=1 gpus=4
         1m submit e nodes=2 within=leaf limit=10m
         2m explain e",
        expect![[r#"
            2m e: 0 nodes have enough free and it needs 2; job 3 must end first | start 60m | 
            a 0m..60m n1
            b 0m..60m n[5-8]
            c 0m..60m n[2-4]
            e 60m..70m n[2-3]
            d 60m..120m n1"#]],
    );
}

#[test]
fn a_higher_tier_stops_whole_gangs_and_they_come_back() {
    check(
        "cluster 8 nodes x 8 gpus, 4 per leaf
         partition high tier=10
         0m submit a nodes=4 limit=60m
         0m submit b nodes=2 limit=60m
         5m checkpoint a
         6m submit h nodes=8 limit=10m partition=high",
        expect![[r#"
            6m a stops for h
            6m b stops for h
            a 0m..6m n[1-4]
            b 0m..6m n[5-6]
            h 6m..16m n[1-8]
            a 16m..76m n[1-4]
            b 16m..76m n[5-6]"#]],
    );
}

#[test]
fn the_gang_that_loses_least_is_stopped() {
    check(
        "cluster 4 nodes x 8 gpus
         partition high tier=10
         0m submit a nodes=2 limit=60m
         0m submit b nodes=2 limit=60m
         20m checkpoint b
         21m submit h nodes=1 limit=10m partition=high",
        expect![[r#"
            21m b stops for h
            a 0m..60m n[1-2]
            b 0m..21m n[3-4]
            h 21m..31m n3
            b 31m..91m n[3-4]"#]],
    );
}

#[test]
fn no_large_gang_is_stopped_for_a_small_one() {
    check(
        "cluster 4 nodes x 8 gpus
         partition high tier=10
         0m submit a nodes=4 limit=60m
         1m submit h nodes=1 limit=10m partition=high",
        expect![[r#"
            a 0m..60m n[1-4]
            h 60m..70m n1"#]],
    );
}

#[test]
fn a_gang_is_left_alone_until_it_has_run_for_its_minimum() {
    check(
        "cluster 2 nodes x 8 gpus
         partition high tier=10
         0m submit a nodes=2 limit=60m minimum=30m
         10m submit h nodes=2 limit=10m partition=high",
        expect![[r#"
            30m a stops for h
            a 0m..30m n[1-2]
            h 30m..40m n[1-2]
            a 40m..100m n[1-2]"#]],
    );
}

#[test]
fn a_gang_that_keeps_losing_nodes_may_not_keep_stopping_others() {
    check(
        "cluster 3 nodes x 8 gpus
         partition high tier=10
         0m submit h nodes=2 limit=60m partition=high
         0m submit a nodes=1 limit=60m
         10m fail n1
         12m submit x nodes=1 gpus=1 limit=1m
         21m submit y nodes=1 gpus=1 limit=1m",
        expect![[r#"
            20m a stops for h
            h 0m..10m n[1-2]
            a 0m..20m n3
            x 12m..13m n2
            h 20m..80m n[2-3]
            y 80m..81m n3
            a 80m..140m n2"#]],
    );
}

#[test]
fn an_elastic_gang_gives_nodes_to_a_higher_tier_and_keeps_the_rest() {
    check(
        "cluster 4 nodes x 8 gpus
         partition high tier=10
         0m submit e nodes=4 elastic=1..4 preempted=shrink limit=60m
         10m submit h nodes=2 limit=10m partition=high",
        expect![[r#"
            e 0m..60m n[1-4]
            h 10m..20m n[2-3]"#]],
    );
}

#[test]
fn several_nodes_lost_at_once_are_all_swapped() {
    check(
        "cluster 8 nodes x 8 gpus, 4 per leaf
         0m submit a nodes=5 limit=60m
         10m fail n1
         10m fail n2
         20m show",
        expect![[r#"
            10m a swaps n1 for n6
            10m a swaps n2 for n7
            20m a on n[6-7,3-5]
            a 0m..60m n[3-7]"#]],
    );
}

#[test]
fn a_suspended_gang_goes_on_where_it_stood() {
    check(
        "cluster 2 nodes x 8 gpus
         partition high tier=10
         0m submit a nodes=2 limit=60m preempted=suspend runs=30m
         10m submit h nodes=2 limit=10m partition=high",
        expect![[r#"
            10m a stops for h
            a 0m..10m n[1-2]
            h 10m..20m n[1-2]
            a 20m..50m n[1-2]"#]],
    );
}

#[test]
fn an_elastic_gang_starts_small_grows_and_shrinks_again() {
    check(
        "cluster 4 nodes x 8 gpus
         0m submit a nodes=2 limit=60m runs=20m
         0m submit e nodes=3 elastic=1..4 limit=60m runs=120m
         45m submit b nodes=1 limit=10m",
        expect![[r#"
            a 0m..20m n[1-2]
            e 0m..60m n[1-4]
            b 45m..55m n2"#]],
    );
}

/// Sizes of a gang for which each further node brings less.
const CONCAVE: &str = "rates=1:1,2:1.8,4:3,8:4.5";

#[test]
fn by_goodput_a_gang_shrinks_below_what_it_asked_for_so_that_others_start() {
    check(
        &format!(
            "cluster 4 nodes x 8 gpus
             set sizes=goodput
             0m submit a nodes=4 elastic=1..4 limit=60m {CONCAVE}
             20m submit b nodes=2 elastic=1..4 limit=60m {CONCAVE}
             20m submit f nodes=1 limit=10m
             19m show
             22m show
             32m show"
        ),
        expect![[r#"
            19m a on n[1-4]
            22m a on n[1-2], b on n3, f on n4
            32m a on n[1-2], b on n[3-4], f gone
            a 0m..60m n[1-2]
            b 20m..4480s n[1-4]
            f 20m..30m n4"#]],
    );
}

#[test]
fn by_goodput_a_gang_that_shrank_keeps_its_size_for_a_while() {
    check(
        &format!(
            "cluster 4 nodes x 8 gpus
             set sizes=goodput
             0m submit a nodes=4 elastic=1..4 limit=60m {CONCAVE}
             20m submit b nodes=1 limit=60m
             25m submit f nodes=1 limit=10m
             26m show
             31m show
             36m show"
        ),
        expect![[r#"
            26m a on n[1-3], b on n4, f waits
            31m a on n[1-2], b on n4, f on n3
            36m a on n[1-2], b on n4, f on n3
            a 0m..60m n[1-3]
            b 20m..80m n4
            f 30m..40m n3"#]],
    );
}

#[test]
fn by_goodput_idle_nodes_go_where_they_bring_most() {
    check(
        &format!(
            "cluster 8 nodes x 8 gpus
             set sizes=goodput
             0m submit x nodes=8 limit=10m
             1m submit a nodes=2 elastic=1..8 limit=60m {CONCAVE}
             1m submit b nodes=2 elastic=1..8 limit=60m rates=1:1,2:1.1,4:1.15
             11m show
             40m show"
        ),
        expect![[r#"
            11m a on n[1-6], b on n[7-8], x gone
            40m a on n[1-6], b on n[7-8], x gone
            x 0m..10m n[1-8]
            a 10m..70m n[1-6]
            b 10m..70m n[7-8]"#]],
    );
}

#[test]
fn by_goodput_a_gang_of_higher_standing_keeps_what_it_asked_for() {
    check(
        &format!(
            "cluster 4 nodes x 8 gpus
             set sizes=goodput
             partition high tier=10
             0m submit a nodes=4 elastic=1..4 limit=60m partition=high {CONCAVE}
             20m submit b nodes=2 elastic=1..4 limit=60m {CONCAVE}
             30m show"
        ),
        expect![[r#"
            30m a on n[1-4], b waits
            a 0m..60m n[1-4]
            b 60m..120m n[1-4]"#]],
    );
}

#[test]
fn by_goodput_a_change_waits_until_it_pays_back() {
    // From two to four nodes it is 1.67 times as fast, which makes up for two minutes in five.
    check(
        &format!(
            "cluster 4 nodes x 8 gpus
             set sizes=goodput
             0m submit f nodes=2 limit=3m
             0m submit a nodes=2 elastic=2..4 step=2 limit=60m {CONCAVE}
             4m show
             6m show"
        ),
        expect![[r#"
            4m a on n[3-4], f gone
            6m a on n[3-4,1-2], f gone
            f 0m..3m n[1-2]
            a 0m..38m n[1-4]"#]],
    );
}

#[test]
fn a_lost_node_is_swapped_inside_its_leaf_before_anything_is_requeued() {
    check(
        "cluster 8 nodes x 8 gpus, 4 per leaf
         0m submit a nodes=3 within=leaf limit=60m
         10m fail n2
         20m fail n3
         30m resume n2",
        expect![[r#"
            10m a swaps n2 for n4
            a 0m..20m n[1,3-4]
            a 20m..80m n[5-7]"#]],
    );
}

#[test]
fn nodes_that_drain_finish_and_take_nothing_new() {
    check(
        "cluster 2 nodes x 8 gpus
         0m submit a nodes=1 limit=30m
         5m drain n1
         10m submit b nodes=2 limit=10m
         10m submit c nodes=1 limit=10m
         60m resume n1",
        expect![[r#"
            a 0m..30m n1
            c 10m..20m n2
            b 60m..70m n[1-2]"#]],
    );
}

#[test]
fn nobody_runs_into_a_maintenance_window() {
    check(
        "cluster 2 nodes x 8 gpus
         0m maintain n1,n2 60m 120m
         0m submit a nodes=2 limit=90m
         0m submit b nodes=1 limit=60m
         1m explain a",
        expect![[r#"
            1m a: 1 nodes have enough free and it needs 2 | start 120m | 
            b 0m..60m n1
            a 120m..210m n[1-2]"#]],
    );
}

#[test]
fn reservations_count_on_nodes_that_are_announced_and_avoid_those_that_leave() {
    check(
        "cluster 3 nodes x 8 gpus
         0m joins n3 30m
         0m leaves n1 20m
         1m submit a nodes=2 limit=60m
         1m submit b nodes=1 limit=10m
         2m explain a",
        expect![[r#"
            2m a: 1 nodes have enough free and it needs 2 | start 30m | FewerNodes { nodes: 1, start: Time(120000) }
            b 1m..11m n1
            a 30m..90m n[2-3]"#]],
    );
}

#[test]
fn a_gang_leaves_a_node_that_is_taken_away() {
    check(
        "cluster 2 nodes x 8 gpus
         0m submit a nodes=1 limit=60m grace=2m
         10m leaves n1 20m",
        expect![[r#"
            a 0m..20m n1
            a 20m..80m n2"#]],
    );
}

#[test]
fn dependencies_hold_release_and_rule_out() {
    check(
        "cluster 4 nodes x 8 gpus
         0m submit a limit=10m
         0m submit b limit=10m after=a
         0m submit c limit=10m after=b
         0m submit d limit=10m afternotok=a
         0m submit e limit=10m name=a singleton
         12m crash b",
        expect![[r#"
            d never: job 1 succeeded, and it was to run only if that failed
            c never: job 2, which was to succeed first, did not
            a 0m..10m n1
            b 10m..12m n1
            e 10m..20m n2"#]],
    );
}

#[test]
fn arrays_and_limits_bound_what_runs_at_once() {
    check(
        "cluster 4 nodes x 8 gpus
         qos small user_gpus=16
         0m submit a1 limit=10m array=9%2
         0m submit a2 limit=10m array=9%2
         0m submit a3 limit=10m array=9%2
         20m submit b1 limit=10m qos=small
         20m submit b2 limit=10m qos=small
         20m submit b3 limit=10m qos=small
         21m explain b3",
        expect![[r#"
            21m b3: QOS `small` allows 16 GPUs per user; 16 are in use and it asks for 8 | start ? | 
            a1 0m..10m n1
            a2 0m..10m n2
            a3 10m..20m n1
            b1 20m..30m n1
            b2 20m..30m n2
            b3 30m..40m n1"#]],
    );
}

#[test]
fn borrowed_quota_is_reclaimed_from_who_borrowed_most() {
    check(
        "cluster 4 nodes x 8 gpus
         queue cohort
         queue red parent=cohort nominal=16
         queue blue parent=cohort nominal=16
         0m submit r1 nodes=2 queue=red limit=60m
         0m submit r2 nodes=1 queue=red limit=60m
         0m submit r3 nodes=1 queue=red limit=60m
         10m submit b nodes=2 queue=blue limit=10m",
        expect![[r#"
            10m r2 stops for b
            10m r3 stops for b
            r1 0m..60m n[1-2]
            r2 0m..10m n3
            r3 0m..10m n4
            b 10m..20m n[3-4]
            r2 20m..80m n3
            r3 20m..80m n4"#]],
    );
}

#[test]
fn trainers_and_workers_start_together() {
    check(
        "cluster 4 nodes x 8 gpus
         0m submit x nodes=3 limit=10m
         1m submit rl nodes=2 gpus=8 workers=2x4 limit=30m
         2m submit s nodes=1 gpus=4 limit=60m",
        expect![[r#"
            x 0m..10m n[1-3]
            s 2m..62m n4
            rl 10m..40m n[1-4]"#]],
    );
}

#[test]
fn gangs_share_a_gpu_and_whole_ones_stay_free() {
    check(
        "cluster 1 nodes x 2 gpus
         0m submit a gpus=1 share=500 limit=60m
         0m submit b gpus=1 share=400 limit=30m
         0m submit c gpus=1 limit=60m
         0m submit d gpus=1 share=300 limit=10m",
        expect![[r#"
            a 0m..60m n1
            b 0m..30m n1
            c 0m..60m n1
            d 30m..40m n1"#]],
    );
}

#[test]
fn a_gang_that_talks_much_waits_for_neighbours_when_that_ends_earlier() {
    check(
        "cluster 8 nodes x 8 gpus, 4 per leaf, 4:1
         0m submit a nodes=2 limit=20m
         0m submit b nodes=3 limit=100m runs=90m
         1m submit quiet nodes=3 limit=100m talk=0.01
         2m cancel quiet
         3m submit loud nodes=3 limit=100m talk=0.5
         4m explain loud",
        expect![[r#"
            4m loud: nodes are free, but waiting for some of one leaf ends earlier | start 20m | 
            a 0m..20m n[1-2]
            b 0m..90m n[5-7]
            quiet 1m..2m n[3-4,8]
            loud 20m..120m n[1-3]"#]],
    );
}

#[test]
fn fair_share_puts_who_used_less_first() {
    check(
        "cluster 1 nodes x 8 gpus
         set fair_share=100000
         account heavy shares=1
         account light shares=1
         0m submit h1 account=heavy user=1 limit=60m
         1m submit h2 account=heavy user=1 limit=10m
         2m submit l1 account=light user=2 limit=10m
         2m submit h3 account=heavy user=1 limit=10m",
        expect![[r#"
            h1 0m..60m n1
            l1 60m..70m n1
            h2 70m..80m n1
            h3 80m..90m n1"#]],
    );
}

#[test]
fn replicas_are_spread_over_leaves() {
    check(
        "cluster 8 nodes x 8 gpus, 2 per leaf
         0m submit a nodes=4 gpus=4 spread=leaf limit=10m
         0m submit b nodes=4 segment=2 within=leaf gpus=4 limit=10m",
        expect![[r#"
            a 0m..10m n[1,3,5,7]
            b 0m..10m n[1-2,7-8]"#]],
    );
}

#[test]
fn impossible_jobs_are_refused_with_the_reason() {
    check(
        "cluster 4 nodes x 8 gpus, 2 per leaf
         partition short longest=30m
         0m submit a nodes=5
         0m submit b gpus=9
         0m submit c nodes=3 within=leaf
         0m submit d partition=short limit=60m",
        expect![[r#"
            a never: it needs 5 nodes with 8 GPUs, and the cluster has 4 of them
            b never: it needs 1 nodes with 9 GPUs, and the cluster has 0 of them
            c never: it needs 3 nodes in one leaf, and the largest has 2
            d never: it asks for 1h, and partition `short` allows 30m"#]],
    );
}

#[test]
fn a_job_that_crashes_is_retried_as_often_as_it_may() {
    check(
        "cluster 1 nodes x 8 gpus
         0m submit a limit=60m retries=1
         10m crash a
         20m crash a",
        expect![[r#"
            a 0m..10m n1
            a 10m..20m n1"#]],
    );
}

#[test]
fn the_gang_whose_turn_came_first_is_next() {
    // Turns come after the time asked for: of d at 602, of c at 890, of b at 960 minutes.
    check(
        "cluster 1 nodes x 8 gpus
         set smallest_first
         0m submit a nodes=1 limit=600m
         360m submit b nodes=1 limit=600m
         590m submit c nodes=1 limit=300m
         599m submit d nodes=1 limit=3m",
        expect![[r#"
            a 0m..600m n1
            d 600m..603m n1
            c 603m..903m n1
            b 903m..1503m n1"#]],
    );
}

#[test]
fn run_times_are_learned_from_gangs_of_the_same_user_and_size() {
    // The first gang of ann uses a tenth of its limit; so behind the guarded g her next, which asks for more than that of bob, counts as less.
    check(
        "cluster 2 nodes x 8 gpus
         set smallest_first
         0m submit a nodes=1 limit=120m runs=6m user=1
         6m submit x nodes=1 limit=200m user=3
         6m submit y nodes=1 limit=30m user=3
         7m submit g nodes=2 limit=10m user=4
         8m submit b nodes=1 limit=60m user=2
         9m submit c nodes=1 limit=100m runs=6m user=1",
        expect![[r#"
            a 0m..6m n1
            y 6m..36m n1
            x 6m..206m n2
            c 36m..42m n1
            b 42m..102m n1
            g 206m..216m n[1-2]"#]],
    );
}

#[test]
fn no_stream_of_small_gangs_keeps_the_guarded_one_from_its_nodes() {
    // The large gang comes while both nodes run. Small ones that come later start on the node that drains only if they end before it starts.
    check(
        "cluster 2 nodes x 8 gpus
         set smallest_first
         0m submit a nodes=1 limit=20m
         0m submit b nodes=1 limit=60m
         1m submit large nodes=2 limit=30m
         2m submit s1 nodes=1 gpus=1 limit=40m
         3m submit s2 nodes=1 gpus=1 limit=45m
         21m submit s3 nodes=1 gpus=1 limit=40m",
        expect![[r#"
            a 0m..20m n1
            b 0m..60m n2
            s1 20m..60m n1
            large 60m..90m n[1-2]
            s2 90m..135m n1
            s3 90m..130m n1"#]],
    );
}

#[test]
fn what_outlasts_the_guarded_gang_does_not_start_beside_it() {
    // Node 3 is free and not reserved; a day is longer than the half hour and the twelve hours after its start.
    check(
        "cluster 3 nodes x 8 gpus
         set smallest_first
         0m submit a nodes=2 limit=60m
         1m submit wide nodes=2 limit=30m
         2m submit long nodes=1 limit=1440m runs=10m
         3m submit short nodes=1 limit=600m runs=10m",
        expect![[r#"
            a 0m..60m n[1-2]
            short 3m..13m n3
            wide 60m..90m n[1-2]
            long 60m..70m n3"#]],
    );
}
