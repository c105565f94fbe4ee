//! Small handwritten traces, and laws that hold for all of them.

use bedplate_catalog::Catalog;
use bedplate_diag::Source;
use bedplate_gangs::{Settings, Span, Time};
use bedplate_replay::jobs::{
    End, Estimates, Failures, Generator, LoadMixture, Outcome, Replay, ReplayPolicy, ReplaySummary, Trace,
    read, simulate, with_limits, write_jsonl,
};
use bedplate_topology::{Cluster, ImportOptions, import_detected};
use expect_test::{Expect, expect};
use proptest::prelude::*;

fn cluster(nodes: u32) -> Cluster {
    Cluster::from_spec(&format!("p5.48xlarge:{nodes}"), &Catalog::builtin()).expect("the fixture is right")
}

/// Leaves of four nodes; what leaves a leaf has half the bandwidth.
fn tree(nodes: u32) -> Cluster {
    let text = format!(
        "[[group]]\ninstance = \"p5.48xlarge\"\ncount = {nodes}\n[fabric]\nnodes_per_leaf = 4\noversubscription = [2.0]\n"
    );
    let source = [Source::new("cluster.toml", &text)];
    import_detected(&source, &ImportOptions::default(), &Catalog::builtin()).expect("the fixture is right")
}

/// Jobs as lines `name submit_minute nodes duration_minutes [more JSON fields]`, whole nodes of eight GPUs.
fn trace(lines: &str) -> Trace {
    let mut text = String::new();
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let mut words = line.splitn(5, ' ').filter(|word| !word.is_empty());
        let mut word = || words.next().unwrap_or("");
        let (name, submit, nodes, duration, more) = (word(), word(), word(), word(), word());
        let seconds = |minutes: &str| minutes.parse::<f64>().expect("the fixture is right") * 60.0;
        let more = if more.is_empty() { String::new() } else { format!(", {more}") };
        text += &format!(
            "{{\"id\": \"{name}\", \"submit_s\": {}, \"nodes\": {nodes}, \"gpus_per_node\": 8, \"duration_s\": {}{more}}}\n",
            seconds(submit),
            seconds(duration)
        );
    }
    read(Source::new("trace", &text), None).expect("the fixture is right")
}

fn exact(policy: &str) -> Replay {
    Replay {
        estimates: Estimates::Exact,
        ..Replay::new(ReplayPolicy::find(policy).expect("the fixture is right"))
    }
}

fn play(trace: &Trace, cluster: &Cluster, replay: &Replay) -> Outcome {
    simulate(trace, cluster, replay, &mut |_| {})
}

/// Start and end of every job, in minutes.
fn shown(trace: &Trace, outcome: &Outcome) -> String {
    let minutes = |time: Option<Time>| {
        time.map_or("never".into(), |time| format!("{:.1}", time.0 as f64 / 60_000.0).replace(".0", ""))
    };
    let jobs = trace.jobs.iter().zip(&outcome.records);
    let shown = |(job, record): (&bedplate_replay::jobs::TraceJob, &bedplate_replay::jobs::JobRecord)| {
        format!("{} {}..{}", job.name, minutes(record.first_start), minutes(record.ended))
    };
    jobs.map(shown).collect::<Vec<_>>().join(" | ")
}

fn check(policy: &str, lines: &str, expected: Expect) {
    let trace = trace(lines);
    let outcome = play(&trace, &cluster(4), &exact(policy));
    expected.assert_eq(&shown(&trace, &outcome));
}

/// Three nodes busy for an hour, a gang of four behind them, then a short, a long and a fitting job.
const QUEUE: &str = "a 0 3 60\n b 1 4 30\n c 2 1 90\n d 3 1 50\n e 4 1 5";

#[test]
fn in_strict_order_no_job_overtakes() {
    check("fifo", QUEUE, expect!["a 0..60 | b 60..90 | c 90..180 | d 90..140 | e 90..95"]);
}

#[test]
fn backfill_lets_short_jobs_pass_and_holds_long_ones() {
    check("easy", QUEUE, expect!["a 0..60 | b 60..90 | c 90..180 | d 3..53 | e 53..58"]);
    check("conservative", QUEUE, expect!["a 0..60 | b 60..90 | c 90..180 | d 3..53 | e 53..58"]);
}

#[test]
fn ours_starts_those_whose_turn_came_first() {
    // Turns come after the time asked for: of e at 9, of b at 31, of d at 53, of c at 92 minutes.
    check("ours", QUEUE, expect!["a 0..60 | b 60..90 | c 90..180 | d 3..53 | e 53..58"]);
}

#[test]
fn reservations_of_whole_nodes_waste_the_rest_of_them() {
    let lines = "{\"id\":\"a\",\"submit_s\":0,\"duration_s\":3600,\"gpus\":6}\n\
                 {\"id\":\"b\",\"submit_s\":60,\"duration_s\":3600,\"gpus\":4}\n\
                 {\"id\":\"c\",\"submit_s\":120,\"duration_s\":7200,\"gpus\":2}\n";
    let trace = read(Source::new("trace", lines), None).expect("the fixture is right");
    let found = |policy: &str| shown(&trace, &play(&trace, &cluster(1), &exact(policy)));
    expect!["a 0..60 | b 60..120 | c 60..180"].assert_eq(&found("conservative"));
    expect!["a 0..60 | b 60..120 | c 2..122"].assert_eq(&found("ours"));
}

#[test]
fn a_placement_across_leaves_takes_longer() {
    // One node of the first leaf is left: the first two that fit are of two leaves, the closest are not.
    let trace = trace("a 0 3 600\n b 1 2 100 \"scale_out_share\": 0.5");
    let found = |policy: &str| shown(&trace, &play(&trace, &tree(8), &exact(policy)));
    assert_eq!(found("easy"), "a 0..600 | b 1..151");
    assert_eq!(found("ours"), "a 0..600 | b 1..101");
}

#[test]
fn an_elastic_gang_grows_into_idle_nodes_and_ends_earlier() {
    let lines = "a 0 2 120 \"elastic\": {\"min\": 1, \"max\": 4, \"step\": 1}\n b 0 1 30";
    check("ours", lines, expect!["a 0..71.8 | b 0..30"]);
    check("ours-rigid", lines, expect!["a 0..120 | b 0..30"]);
}

/// From half to twice its two nodes; each further node brings less.
const CONCAVE: &str =
    "\"elastic\": {\"min\": 1, \"max\": 4, \"step\": 1}, \"rates\": [[1, 0.6], [2, 1], [3, 1.3], [4, 1.5]]";

#[test]
fn a_gang_works_by_its_curve_and_not_by_its_nodes() {
    // By goodput it starts with four nodes, 1.5 times as fast; ours grows to three, as the fourth would bring less than half of what it should.
    let lines = format!("a 0 2 90 {CONCAVE}");
    check("goodput", &lines, expect!["a 0..60"]);
    check("ours", &lines, expect!["a 0..72.5"]);
    check("ours-rigid", &lines, expect!["a 0..90"]);
}

#[test]
fn by_goodput_gangs_share_the_nodes_instead_of_waiting() {
    let lines = format!("a 0 2 60 {CONCAVE}\n f 0 2 60\n b 30 2 60 {CONCAVE}");
    check("ours-rigid", &lines, expect!["a 0..60 | f 0..60 | b 60..120"]);
    check("ours", &lines, expect!["a 0..60 | f 0..60 | b 60..109.5"]);
    check("goodput", &lines, expect!["a 0..73.6 | f 0..60 | b 30.2..94.3"]);
}

#[test]
fn wrong_predictions_mislead_the_scheduler_and_not_the_jobs() {
    let trace = generated_of(LoadMixture::TRAINING, 200, 16, 7);
    let goodput = ReplayPolicy::find("goodput").expect("the fixture is right");
    let found = |prediction_error| {
        let replay = Replay { prediction_error, ..Replay::new(goodput) };
        let outcome = play(&trace, &tree(16), &replay);
        check_laws(&trace, &outcome);
        assert_eq!(ReplaySummary::of(&trace, &outcome).ended, 200);
        outcome.records
    };
    assert_eq!(found(0.2), found(0.2), "equal seeds, equal errors");
    assert_ne!(found(0.0), found(0.2));
}

#[test]
fn the_most_extreme_rates_there_may_be_are_replayed_with_the_largest_error() {
    let range = "\"elastic\": {\"min\": 1, \"max\": 2, \"step\": 1}";
    let goodput = ReplayPolicy::find("goodput").expect("the fixture is right");
    for rates in ["[[1, 1e12], [2, 1e-9]]", "[[1, 1e-9], [2, 1e12]]", "[[1, 1e12], [2, 1e12]]"] {
        let trace = trace(&format!("a 0 1 60 {range}, \"rates\": {rates}"));
        for seed in 0..8 {
            let replay = Replay { prediction_error: 1.0, seed, ..Replay::new(goodput) };
            let outcome = play(&trace, &cluster(4), &replay);
            let summary = ReplaySummary::of(&trace, &outcome);
            assert_eq!(summary.ended, 1, "{rates}");
            assert!((0.0..=1.0 + 1e-9).contains(&summary.goodput), "{rates}: {summary:?}");
        }
    }
}

#[test]
fn high_preempts_low_which_goes_on_from_its_checkpoint() {
    let lines = "a 0 4 120 \"qos\": \"low\", \"checkpoint_s\": 1800\n b 45 4 10 \"qos\": \"high\"";
    check("ours", lines, expect!["a 0..167.8 | b 45.2..55.2"]);
    check("ours-no-preemption", lines, expect!["a 0..120 | b 120..130"]);
    let trace = trace(lines);
    let outcome = play(&trace, &cluster(4), &exact("ours"));
    let summary = ReplaySummary::of(&trace, &outcome);
    assert_eq!((summary.preemptions, summary.requeues), (1, 1));
    // Fifteen minutes of work since the checkpoint and a restart, on 32 GPUs.
    let lost = (15.0 * 60_000.0 + 1_350_000.0) * 32.0;
    assert!((summary.gpu_time.lost_to_preemption - lost).abs() < 32.0 * 1000.0, "{:?}", summary.gpu_time);
}

#[test]
fn a_users_own_limit_ends_the_job() {
    let trace = trace("a 0 1 120 \"time_limit_s\": 3600\n b 0 1 20 \"time_limit_s\": 3600");
    let outcome = play(&trace, &cluster(1), &exact("easy"));
    assert_eq!([outcome.records[0].end, outcome.records[1].end], [End::TimedOut, End::Worked]);
}

#[test]
fn a_job_wider_than_the_cluster_is_refused_with_its_reason() {
    let trace = trace("a 0 5 10\n b 0 1 10");
    let outcome = play(&trace, &cluster(4), &exact("ours"));
    assert_eq!(outcome.records[0].end, End::Rejected);
    expect![[r#"{"it needs 5 nodes with 8 GPUs, and the cluster has 4 of them": 1}"#]]
        .assert_eq(&format!("{:?}", outcome.rejections));
}

#[test]
fn figures_of_a_tiny_case_are_those_worked_out_by_hand() {
    // One node. The second job waits 50 minutes, the third 110 less its 20 of submission.
    let trace = trace("a 0 1 60 \"user\": \"u\"\n b 10 1 50 \"user\": \"v\"\n c 20 1 1 \"user\": \"v\"");
    let outcome = play(&trace, &cluster(1), &exact("fifo"));
    let summary = ReplaySummary::of(&trace, &outcome);
    assert_eq!([summary.wait.p50, summary.wait.longest], [Span::minutes(50), Span::minutes(90)]);
    let slowdowns = [1.0, 100.0 / 50.0, 91.0];
    assert!((summary.bounded_slowdown - slowdowns.iter().sum::<f64>() / 3.0).abs() < 1e-3);
    let second = (2.0 + 91.0) / 2.0;
    let jain = (1.0 + second) * (1.0 + second) / (2.0 * (1.0 + second * second));
    assert!((summary.fairness.unwrap() - jain).abs() < 1e-4);
    assert!((summary.utilisation - 1.0).abs() < 1e-9, "one job after the other in the window");
    assert!((summary.goodput - 1.0).abs() < 1e-6);
    assert_eq!(summary.makespan, Span::minutes(111));
}

/// Half the nodes do 0.5 / (0.8 + 0.2 × 0.5) of the work: the hour takes 108 minutes on 16 GPUs instead of 60 on 32.
#[test]
fn a_gang_that_runs_smaller_wastes_nothing_and_does_more_work_than_it_holds_gpu_time() {
    let trace = trace("a 0 4 60 \"fixed_share\": 0.2, \"elastic\": {\"min\": 2, \"max\": 4, \"step\": 2}");
    let summary = ReplaySummary::of(&trace, &play(&trace, &cluster(2), &exact("ours")));
    let minute = 60_000.0;
    assert!((summary.gpu_time.held - 108.0 * minute * 16.0).abs() < minute, "{:?}", summary.gpu_time);
    assert!((summary.gpu_time.work - 60.0 * minute * 32.0).abs() < minute);
    assert!((summary.goodput - 1.0).abs() < 1e-6, "{}", summary.goodput);
}

#[test]
fn what_a_slow_placement_takes_longer_is_slowed_not_useful() {
    let trace = trace("a 0 3 600\n b 1 2 100 \"scale_out_share\": 0.5");
    let gpu_time = ReplaySummary::of(&trace, &play(&trace, &tree(8), &exact("easy"))).gpu_time;
    let slowed = 50.0 * 60_000.0 * 16.0;
    assert!((gpu_time.slowed() - slowed).abs() < 1e4, "half as long again on two nodes: {gpu_time:?}");
}

fn generated(jobs: usize, nodes: u32, seed: u64) -> Trace {
    generated_of(LoadMixture::SEREN, jobs, nodes, seed)
}

fn generated_of(mixture: LoadMixture, jobs: usize, nodes: u32, seed: u64) -> Trace {
    let (gpus, gpus_per_node) = (nodes * 8, 8);
    Generator { mixture, jobs, days: Some(2.0), load: 0.9, gpus, gpus_per_node, seed }.generate()
}

/// GPU time adds up, jobs are accounted for, no job starts before it is submitted or ends too soon.
fn check_laws(trace: &Trace, outcome: &Outcome) {
    let summary = ReplaySummary::of(trace, outcome);
    let left = summary.ended + summary.timed_out + summary.given_up + summary.rejected;
    assert_eq!(left, trace.jobs.len(), "every job leaves: {summary:?}");
    let lost = summary.gpu_time;
    // The tolerance covers only rounding.
    assert!(lost.slowed() >= -1e-9 * lost.held, "no GPU time comes from nowhere: {lost:?}");
    assert!((0.0..=1.0 + 1e-9).contains(&summary.goodput), "{summary:?}");
    for record in &outcome.records {
        let lost = record.lost_to_failures + record.lost_to_preemption + record.lost_to_resizing;
        let slowed = record.held - record.useful - lost;
        assert!(record.useful >= -1e-6 && slowed >= -1e-9 * record.held - 1e-3, "{record:?}");
    }
    assert!((0.0..=1.0 + 1e-9).contains(&summary.utilisation));
    let capacity = f64::from(outcome.gpus) * outcome.makespan.0 as f64;
    assert!(lost.held <= capacity * (1.0 + 1e-9));
    for (job, record) in trace.jobs.iter().zip(&outcome.records).filter(|(_, each)| each.end == End::Worked) {
        let (start, end) =
            (record.first_start.expect("the fixture is right"), record.ended.expect("the fixture is right"));
        assert!(start >= job.submit);
        let fastest = job.elastic.map_or(1.0, |range| f64::from(range.max) / f64::from(range.min));
        assert!(
            end.since(start).0 as f64 + 2.0 >= job.duration.0 as f64 / fastest.max(1.0),
            "{job:?} {record:?}"
        );
        assert!((record.done - job.duration.0 as f64).abs() < 1.0);
    }
}

#[test]
fn equal_seeds_give_equal_replays() {
    let trace = generated(600, 16, 3);
    for policy in ReplayPolicy::ALL {
        let failures = Some(Failures::published(0.2, 0.75));
        let replay = Replay { failures, seed: 9, ..Replay::new(policy) };
        let (one, two) = (play(&trace, &tree(16), &replay), play(&trace, &tree(16), &replay));
        assert_eq!(one.records, two.records, "{}", policy.name);
        assert_eq!(one.events, two.events);
        check_laws(&trace, &one);
    }
}

#[test]
fn a_saved_trace_replays_as_the_one_it_was_saved_from() {
    let (trace, cluster) = (generated(300, 8, 5), tree(8));
    let limited = with_limits(&trace, &cluster, Estimates::Factor, 5);
    assert!(limited.jobs.iter().all(|job| job.assigned_limit.is_some() && job.time_limit.is_none()));
    let text = write_jsonl(&limited);
    let saved = read(Source::new("saved.jsonl", &text), None).expect("what is written can be read");
    let failures = Some(Failures::published(0.2, 0.75));
    for policy in ["easy", "ours"] {
        let policy = ReplayPolicy::find(policy).expect("the fixture is right");
        let first = Replay { failures, seed: 5, ..Replay::new(policy) };
        // Other estimates would be other limits.
        let again = Replay { estimates: Estimates::Exact, ..first.clone() };
        assert_eq!(play(&trace, &cluster, &first).records, play(&saved, &cluster, &again).records);
    }
}

#[test]
fn a_load_counts_only_what_the_cluster_can_run() {
    let both = trace("a 0 5 600\n b 0 1 60\n c 100 1 60");
    let scaled = both.clone().scaled_to_load_of(0.5, &cluster(4));
    let outcome = play(&scaled, &cluster(4), &exact("easy"));
    assert!((ReplaySummary::of(&scaled, &outcome).load - 0.5).abs() < 1e-3);
    assert!((both.scaled_to_load(0.5, 32).load(32) - 0.5).abs() < 1e-3, "of all jobs");
}

#[test]
fn a_site_without_rules_of_its_own_is_the_scheduler_as_it_comes() {
    let trace = trace(QUEUE);
    let found = |replay: Replay| shown(&trace, &play(&trace, &cluster(4), &replay));
    let site = |settings| Replay { estimates: Estimates::Exact, ..Replay::of_site(settings) };
    assert_eq!(found(site(Settings::default())), found(exact("ours")));
    let mut fifo = Settings::by_arrival();
    (fifo.backfill.overtakes, fifo.weights.expansion) = (false, 0);
    assert_eq!(found(site(fifo)), found(exact("fifo")));
}

#[test]
fn jobs_go_by_the_names_of_the_site_and_others_by_its_first() {
    let trace = trace(
        "a 0 4 60 \"qos\": \"batch\"\n b 1 4 60 \"qos\": \"batch\", \"account\": \"x\"\n c 2 4 60 \"qos\": \"urgent\"\n d 3 4 60 \"account\": \"y\"",
    );
    let text = "order = \"arrival\"\n[[qos]]\nname = \"normal\"\n[[qos]]\nname = \"urgent\"\npriority = 9\n";
    let site = Settings::from_toml(text, "site.toml", &cluster(4)).expect("the fixture is right");
    let replay = Replay { estimates: Estimates::Exact, ..Replay::of_site(site) };
    let found = shown(&trace, &play(&trace, &cluster(4), &replay));
    assert_eq!(found, "a 0..60 | b 120..180 | c 60..120 | d 180..240", "c is urgent, `batch` is not known");
}

#[test]
fn failures_are_the_same_for_every_policy_and_cost_gpu_time() {
    let trace = generated(600, 16, 4);
    let failures = Some(Failures::published(0.2, 0.75));
    for policy in ["easy", "ours"] {
        let replay =
            Replay { failures, ..Replay::new(ReplayPolicy::find(policy).expect("the fixture is right")) };
        let outcome = play(&trace, &tree(16), &replay);
        let summary = ReplaySummary::of(&trace, &outcome);
        assert!(summary.gpu_time.lost_to_failures > 0.0 && summary.node_failures > 3, "{summary:?}");
        assert!(summary.swaps + summary.requeues > 0);
    }
}

/// A gang that grew since its checkpoint loses what the work cost when it was done, not what it costs now.
#[test]
fn work_lost_by_a_gang_that_changed_its_size_costs_what_it_cost() {
    let trace = generated(9, 5, 130);
    let failures = Some(Failures::published(0.3, 0.5));
    let ours = ReplayPolicy::find("ours").expect("the fixture is right");
    let replay = Replay { failures, seed: 130, ..Replay::new(ours) };
    check_laws(&trace, &play(&trace, &tree(5), &replay));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn gpu_time_adds_up_under_every_policy(
        jobs in 1usize..150, nodes in 4u32..20, seed in 0u64..1000, which in 0usize..ReplayPolicy::ALL.len(), fails in any::<bool>(), is_exact in any::<bool>(),
        trains in any::<bool>(), prediction_error in prop::sample::select(vec![0.0, 0.2])
    ) {
        let trace = generated_of(if trains { LoadMixture::TRAINING } else { LoadMixture::SEREN }, jobs, nodes, seed);
        let replay = Replay {
            failures: fails.then_some(Failures::published(0.3, 0.5)),
            estimates: if is_exact { Estimates::Exact } else { Estimates::Factor },
            seed,
            prediction_error,
            ..Replay::new(ReplayPolicy::ALL[which])
        };
        check_laws(&trace, &play(&trace, &tree(nodes), &replay));
    }
}
