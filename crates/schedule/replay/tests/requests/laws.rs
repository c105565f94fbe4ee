//! What every replay keeps true.

use bedplate_replay::requests::{
    Arrangement, Arrivals, Disaggregated, Fate, Fleet, GeneratedLoad, Lengths, LinearEngine, Objectives,
    Outcome, Planned, Pool, SharedPrefix, Traffic, Transfer, picoseconds, simulate,
};
use proptest::prelude::*;

fn replay(load: &GeneratedLoad, replicas: u32) -> Outcome {
    let engine = LinearEngine::default();
    let objectives =
        Objectives { ttft: Some(picoseconds(0.5)), itl: Some(picoseconds(0.03)), end_to_end: None };
    let fleet = Fleet { objectives, ..Fleet::aggregated(Pool::new(replicas, &engine)) };
    simulate(Traffic::Generated(load.clone()), &fleet).expect("the settings are sound")
}

fn load(seed: u64, per_second: f64, percent: u32) -> GeneratedLoad {
    GeneratedLoad {
        requests: 600,
        arrivals: Arrivals::Poisson { per_second },
        prompt: Lengths::Between(50, 2000),
        output: Lengths::Between(1, 250),
        shared: Some(SharedPrefix { percent, groups: 5 }),
        seed,
        ..GeneratedLoad::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn nothing_is_lost_and_time_goes_forward(seed in any::<u64>(), rate in 1.0f64..60.0, percent in 0u32..90) {
        let load = load(seed, rate, percent);
        let outcome = replay(&load, 2);
        prop_assert_eq!(outcome.requests, 600);
        prop_assert_eq!(outcome.finished + outcome.refused + outcome.dropped, 600);
        for record in &outcome.records {
            prop_assert_eq!(record.generated_tokens, record.longest_tokens);
            prop_assert!(record.arrived < record.first_token && record.first_token <= record.finished);
            prop_assert!(record.cached_tokens < record.prompt_tokens);
        }
        let windows = &outcome.series.windows;
        let sum = |of: fn(&bedplate_replay::requests::SeriesWindow) -> f64| windows.iter().map(of).sum::<f64>();
        prop_assert_eq!(sum(|window| f64::from(window.arrived)), 600.0);
        prop_assert_eq!(sum(|window| f64::from(window.good)), outcome.good as f64);
        prop_assert!((sum(|window| window.output_tokens) - outcome.output_tokens as f64).abs() < 1e-3);
    }

    #[test]
    fn the_same_seed_gives_the_same_replay_and_another_one_another(seed in any::<u64>()) {
        let (first, again) = (replay(&load(seed, 20.0, 50), 3), replay(&load(seed, 20.0, 50), 3));
        prop_assert_eq!(&first.records, &again.records);
        prop_assert_eq!(first.series, again.series);
        prop_assert_ne!(first.records, replay(&load(seed ^ 1, 20.0, 50), 3).records);
    }

    /// Little's law: users who ask again at once are each waiting for one answer, until nothing is left to ask. And every
    /// token that was asked for is made, once.
    #[test]
    fn a_closed_loop_holds_as_many_requests_as_users_and_makes_every_token(
        seed in any::<u64>(), users in 1u32..60, way in 0u64..400_000_000_000, longest in 1u32..120,
        samples in 1u16..3, percent in 0u32..90, split in any::<bool>(), replicas in 1u32..4,
    ) {
        let load = GeneratedLoad {
            requests: 400,
            arrivals: Arrivals::Closed { users },
            output: Lengths::Between(1, longest),
            samples,
            ..load(seed, 1.0, percent)
        };
        let engine = LinearEngine::default();
        let pool = || Pool::new(replicas, &engine);
        let mut fleet = Fleet { way, ..Fleet::aggregated(pool()) };
        if split {
            let transfer = Transfer { latency: picoseconds(0.002), per_token: picoseconds(1e-6) };
            let split = Disaggregated { prefill: Pool::new(1, &engine), decode: pool(), transfer };
            fleet.arrangement = Arrangement::Disaggregated(Box::new(split));
        }
        let outcome = simulate(Traffic::Generated(load), &fleet).expect("the settings are sound");
        prop_assert_eq!(outcome.finished, 400);
        let held: u128 = outcome.records.iter().map(|record| u128::from(record.end_to_end())).sum();
        let last_asked = outcome.records.iter().map(|record| record.arrived).max().unwrap_or(0);
        let users = u128::from(users);
        prop_assert!(users * u128::from(last_asked) <= held, "{} users, {} s", users, held);
        prop_assert!(held <= users * u128::from(outcome.duration));
        let in_system = outcome.requests_per_second() * outcome.end_to_end.mean as f64 / 1e12;
        prop_assert!(in_system <= users as f64 * (1.0 + 1e-9), "X R = {}", in_system);
        for record in &outcome.records {
            prop_assert_eq!(record.generated_tokens, record.longest_tokens * u32::from(samples));
        }
        let shown: f64 = outcome.series.windows.iter().map(|window| window.output_tokens).sum();
        prop_assert!((shown - outcome.output_tokens as f64).abs() < 1e-3, "{} tokens shown", shown);
    }

    /// One more tree means one more prefix to compute, so one more replica is not always better; it must never be
    /// much worse.
    #[test]
    fn a_replica_more_costs_at_most_two_percent_of_goodput(
        seed in any::<u64>(), rate in 5.0f64..60.0, percent in 0u32..90, replicas in 1u32..5,
    ) {
        let load = load(seed, rate, percent);
        let (fewer, more) = (replay(&load, replicas), replay(&load, replicas + 1));
        prop_assert!(more.good as f64 >= fewer.good as f64 * 0.98, "{} -> {}", fewer.good, more.good);
    }
}

#[test]
fn what_can_never_run_is_refused_with_its_reason_and_the_rest_is_served() {
    let engine = LinearEngine::default();
    let trace = vec![Planned::new(5, 100, 10), Planned::new(3, 200_000, 10), Planned::new(4, 10, 0)];
    let outcome = simulate(Traffic::Trace(trace), &Fleet::aggregated(Pool::new(1, &engine))).unwrap();
    let fates: Vec<String> = outcome
        .records
        .iter()
        .map(|record| match record.fate {
            Fate::Refused(refusal) => refusal.to_string(),
            fate => format!("{fate:?}"),
        })
        .collect();
    assert_eq!(
        fates,
        [
            "prompt and output have 200010 tokens, but the context holds at most 131072",
            "a prompt of 10 tokens, an output of 0 and 1 samples leave nothing to generate",
            "Finished"
        ]
    );
}

#[test]
fn the_way_in_and_out_lengthens_every_request_and_changes_nothing_else() {
    let engine = LinearEngine::default();
    let near = Fleet::aggregated(Pool::new(1, &engine));
    let far = Fleet { way: 7_000, ..near.clone() };
    let play = |fleet| simulate(Traffic::Generated(load(3, 20.0, 0)), fleet).expect("the settings are sound");
    let (near, far) = (play(&near), play(&far));
    for (near, far) in near.records.iter().zip(&far.records) {
        assert_eq!((near.ttft() + 7_000, near.end_to_end() + 7_000), (far.ttft(), far.end_to_end()));
        assert_eq!(near.itl(), far.itl());
    }
    assert_eq!(near.duration + 7_000, far.duration, "it ends with the last answer");
}
