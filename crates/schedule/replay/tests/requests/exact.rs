//! The replay equals a simulation of every step, to the picosecond.

use std::collections::BTreeMap;

use bedplate_batching::{
    Fairness, LatePolicy, PreemptionMode, PrefillMode, RouterOptions, RoutingPolicy, SchedulerOptions,
    TenantId,
};
use bedplate_replay::requests::{
    Arrangement, Arrivals, Disaggregated, Fate, Fleet, GeneratedLoad, Lengths, LinearEngine, Outcome,
    Planned, Pool, Prefix, Scaling, SharedPrefix, Thinking, Traffic, Transfer, Turns, simulate,
};
use proptest::prelude::*;

use crate::reference::{Reference, play};

const MILLISECOND: u64 = 1_000_000_000;

fn request() -> impl Strategy<Value = Planned> {
    let prefix = prop_oneof![
        Just(Prefix::Unknown),
        (0u64..3, 0u32..300, 0u64..6).prop_map(|(group, group_tokens, conversation)| {
            Prefix::Conversation { group, group_tokens, conversation }
        }),
        prop::collection::vec(0u64..2, 1..8).prop_map(|choices| {
            let mut hash = 0;
            let hashes = choices.iter().map(|choice| {
                hash = hash * 3 + choice + 1;
                hash
            });
            Prefix::Hashes { block_tokens: 64, hashes: hashes.collect() }
        }),
    ];
    let what = (0u64..3000 * MILLISECOND, 1u32..600, 1u32..200, prop_oneof![8 => Just(1u16), 1 => 2u16..4]);
    let who = (0u32..3, -1i8..2, prop::option::weighted(0.3, 0u64..200 * MILLISECOND), prefix);
    (what, who).prop_map(|((at, prompt, output, samples), (tenant, priority, patience, prefix))| Planned {
        samples,
        tenant,
        priority,
        patience,
        prefix,
        ..Planned::new(at, prompt, output)
    })
}

fn scheduler() -> impl Strategy<Value = SchedulerOptions> {
    let sizes = (prop_oneof![Just(16u32), Just(5)], 210u32..400, 64u32..700, 1u32..700, 4u32..40);
    (sizes, any::<[bool; 5]>(), 0u32..3).prop_map(
        |((block_tokens, blocks, budget, chunk, max_seqs), flags, reserve)| SchedulerOptions {
            block_tokens,
            blocks,
            token_budget: budget.max(max_seqs),
            chunk_tokens: chunk,
            max_seqs,
            watermark_blocks: 2,
            reserve_percent: reserve * 50,
            prefill: if flags[0] { PrefillMode::Mixed } else { PrefillMode::Separate },
            keeps_prefixes: flags[1],
            fairness: if flags[2] {
                Fairness::Tenants(BTreeMap::from([(TenantId(2), 3)]))
            } else {
                Fairness::Off
            },
            preempts_for_priority: flags[3],
            late: if flags[4] { LatePolicy::Drop } else { LatePolicy::Serve },
            ..SchedulerOptions::default()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_request_has_the_times_of_the_reference(
        trace in prop::collection::vec(request(), 1..80),
        scheduler in scheduler(),
        replicas in 1u32..4,
        policy in prop_oneof![
            Just(RoutingPolicy::Prefix), Just(RoutingPolicy::LeastWork), Just(RoutingPolicy::RoundRobin)
        ],
    ) {
        let engine = LinearEngine { context_token: 12_345, ..LinearEngine::default() };
        let router = RouterOptions { policy, overload_margin: 500, ..RouterOptions::default() };
        let pool = Pool { scheduler, router, ..Pool::new(replicas, &engine) };
        let expected = play(&trace, &pool);
        let outcome = simulate(Traffic::Trace(trace), &Fleet::aggregated(pool)).unwrap();
        let found: Vec<Reference> = outcome.records.iter().map(|record| {
            let is_dropped = record.fate == Fate::Dropped;
            let first_token = if is_dropped { 0 } else { record.first_token };
            Reference { first_token, finished: record.finished, is_dropped }
        }).collect();
        prop_assert_eq!(found, expected.requests);
        prop_assert_eq!(outcome.token_gap.count, expected.gaps);
        prop_assert_eq!(
            u128::from(outcome.token_gap.mean),
            expected.gap_sum.checked_div(expected.gaps.into()).unwrap_or(0)
        );
    }
}

/// Everything of an outcome that does not depend on how it was simulated.
fn result(outcome: &Outcome) -> impl PartialEq + std::fmt::Debug {
    let spreads = (outcome.ttft, outcome.token_gap, outcome.itl, outcome.end_to_end);
    (outcome.records.clone(), spreads, outcome.steps, outcome.preemptions, outcome.replica_seconds)
}

fn check(name: &str, load: &GeneratedLoad, fleet: &Fleet<'_>) {
    let play = |horizon: u32| {
        let fleet = Fleet { horizon, ..fleet.clone() };
        simulate(Traffic::Generated(load.clone()), &fleet).expect("the settings are sound")
    };
    let (jumped, stepped) = (play(512), play(1));
    assert_eq!(result(&jumped), result(&stepped), "{name}");
    assert_eq!(jumped.finished, u64::from(load.requests), "{name}");
    assert!(jumped.events < stepped.events, "{name}: no stretch was played as one");
}

#[test]
fn jumping_over_stretches_changes_nothing_whatever_is_replayed() {
    let engine = LinearEngine::default();
    let pool = Pool::new(2, &engine);
    let small = Pool {
        scheduler: SchedulerOptions {
            blocks: 600,
            preemption: PreemptionMode::Swap,
            host_blocks: 200,
            watermark_blocks: 4,
            ..SchedulerOptions::default()
        },
        ..pool.clone()
    };
    let separate = Pool {
        scheduler: SchedulerOptions { prefill: PrefillMode::Separate, ..SchedulerOptions::default() },
        ..pool.clone()
    };
    let scaled = Pool {
        scaling: Some(Scaling {
            least: 1,
            most: 6,
            sequences: 8,
            interval: 500 * MILLISECOND,
            cold_start: 2000 * MILLISECOND,
        }),
        ..pool.clone()
    };
    let link = Transfer { latency: MILLISECOND, per_token: 3_000_000 };
    let swapped = Fleet { swap: link, ..Fleet::aggregated(small) };
    let split = Disaggregated { prefill: pool.clone(), decode: pool.clone(), transfer: link };
    let disaggregated =
        Fleet { arrangement: Arrangement::Disaggregated(Box::new(split)), ..Fleet::aggregated(pool.clone()) };
    let load = GeneratedLoad {
        requests: 400,
        arrivals: Arrivals::Poisson { per_second: 12.0 },
        prompt: Lengths::Between(100, 1500),
        output: Lengths::Between(1, 300),
        ..GeneratedLoad::default()
    };
    let shared = GeneratedLoad { shared: Some(SharedPrefix { percent: 50, groups: 3 }), ..load.clone() };
    let talk = GeneratedLoad {
        turns: Some(Turns { turns: 5, pause: 800 * MILLISECOND }),
        prompt: Lengths::Between(20, 300),
        ..shared.clone()
    };
    let bursts = Arrivals::Bursts {
        per_second: 2.0,
        burst_per_second: 60.0,
        period: 10_000 * MILLISECOND,
        lasting: 1000 * MILLISECOND,
    };
    let thinking = Some(Thinking { percent: 10, output: Lengths::Between(1000, 3000) });
    check("poisson", &load, &Fleet::aggregated(pool.clone()));
    check("shared", &shared, &Fleet::aggregated(pool.clone()));
    check("separate", &shared, &Fleet::aggregated(separate));
    check("turns", &talk, &Fleet::aggregated(pool.clone()));
    check(
        "closed",
        &GeneratedLoad { arrivals: Arrivals::Closed { users: 20 }, ..talk.clone() },
        &disaggregated,
    );
    check("bursts", &GeneratedLoad { arrivals: bursts, ..shared.clone() }, &Fleet::aggregated(scaled));
    check("samples", &GeneratedLoad { samples: 4, thinking, ..load.clone() }, &Fleet::aggregated(pool));
    check("samples apart", &GeneratedLoad { samples: 3, ..shared.clone() }, &disaggregated);
    check("swap", &load, &swapped);
    check("transfer", &load, &disaggregated);
}
