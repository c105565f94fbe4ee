//! What replays show about deployments: routing, pools, scaling, fairness, the end of the clock.

use std::collections::BTreeMap;

use bedplate_batching::{Fairness, LatePolicy, RoutingPolicy, SchedulerOptions, TenantId};
use bedplate_replay::requests::{
    Arrangement, Arrivals, Disaggregated, Fate, Fleet, GeneratedLoad, Lengths, LinearEngine, Outcome,
    Planned, Pool, Scaling, SharedPrefix, Traffic, Transfer, Turns, picoseconds, seconds, simulate,
};

const SECOND: u64 = 1_000_000_000_000;

fn replay(load: &GeneratedLoad, fleet: &Fleet<'_>) -> Outcome {
    simulate(Traffic::Generated(load.clone()), fleet).expect("the settings are sound")
}

#[test]
fn routing_by_prefix_keeps_conversations_where_their_kv_is() {
    let engine = LinearEngine::default();
    let load = GeneratedLoad {
        requests: 3000,
        arrivals: Arrivals::Poisson { per_second: 4.0 },
        prompt: Lengths::Between(200, 1200),
        output: Lengths::Between(50, 150),
        turns: Some(Turns { turns: 6, pause: 5 * SECOND }),
        ..GeneratedLoad::default()
    };
    let by = |policy| {
        let mut pool = Pool::new(4, &engine);
        pool.router.policy = policy;
        replay(&load, &Fleet::aggregated(pool))
    };
    let (prefix, work, turns) =
        (by(RoutingPolicy::Prefix), by(RoutingPolicy::LeastWork), by(RoutingPolicy::RoundRobin));
    assert!(prefix.hit_rate() > 1.5 * work.hit_rate().max(turns.hit_rate()));
    assert!(prefix.ttft.p50 < work.ttft.p50 && prefix.ttft.p99 < work.ttft.p99);
}

/// All prompts begin the same way, so every replica that is not overloaded soon has the prefix.
#[test]
fn one_prefix_for_all_does_not_end_up_on_one_replica() {
    let engine = LinearEngine::default();
    let load = GeneratedLoad {
        requests: 2000,
        arrivals: Arrivals::Closed { users: 64 },
        prompt: Lengths::Fixed(2000),
        shared: Some(SharedPrefix { percent: 90, groups: 1 }),
        ..GeneratedLoad::default()
    };
    let by = |policy| {
        let mut pool = Pool::new(4, &engine);
        pool.router.policy = policy;
        replay(&load, &Fleet::aggregated(pool))
    };
    let (prefix, work) = (by(RoutingPolicy::Prefix), by(RoutingPolicy::LeastWork));
    assert!(prefix.hit_rate() > 0.85);
    assert!(prefix.output_tokens_per_second() > 0.97 * work.output_tokens_per_second());
    assert!(prefix.ttft.p99 < 2 * work.ttft.p99);
}

#[test]
fn two_pools_keep_prompts_out_of_the_gaps_between_tokens() {
    let engine = LinearEngine::default();
    let load = GeneratedLoad {
        requests: 1000,
        arrivals: Arrivals::Poisson { per_second: 12.0 },
        prompt: Lengths::Fixed(3000),
        ..GeneratedLoad::default()
    };
    let together = replay(&load, &Fleet::aggregated(Pool::new(4, &engine)));
    let transfer = Transfer { latency: picoseconds(0.002), per_token: picoseconds(1e-6) };
    let split = Disaggregated { prefill: Pool::new(2, &engine), decode: Pool::new(2, &engine), transfer };
    let mut fleet = Fleet::aggregated(Pool::new(1, &engine));
    fleet.arrangement = Arrangement::Disaggregated(Box::new(split));
    let apart = replay(&load, &fleet);
    assert_eq!((together.finished, apart.finished), (1000, 1000));
    assert!(apart.token_gap.p99 < together.token_gap.p99 / 2);
    // The gap after the first token includes the transfer of 3000 tokens: 5 ms at least.
    assert!(apart.token_gap.longest > picoseconds(0.005));
}

#[test]
fn a_single_transfer_is_timed_to_the_picosecond() {
    let engine = LinearEngine { context_token: 0, ..LinearEngine::default() };
    let transfer = Transfer { latency: 7, per_token: 3 };
    let split = Disaggregated { prefill: Pool::new(1, &engine), decode: Pool::new(1, &engine), transfer };
    let mut fleet = Fleet::aggregated(Pool::new(1, &engine));
    fleet.arrangement = Arrangement::Disaggregated(Box::new(split));
    let outcome = simulate(Traffic::Trace(vec![Planned::new(11, 100, 3)]), &fleet).unwrap();
    let record = outcome.records[0];
    let prompt = engine.step + 100 * engine.prefill_token + 5050 * engine.thousand_pairs / 1000;
    assert_eq!(record.ttft(), prompt);
    assert_eq!(record.finished - record.first_token, 7 + 300 + 2 * (engine.step + engine.decode));
}

#[test]
fn scaling_follows_the_load_after_a_cold_start_and_drains_afterwards() {
    let engine = LinearEngine::default();
    let trace: Vec<Planned> = (0..400).map(|at| Planned::new(at * SECOND / 20, 1000, 200)).collect();
    let scaling = Scaling { least: 1, most: 5, sequences: 20, interval: SECOND, cold_start: 5 * SECOND };
    let fixed = |replicas| Fleet::aggregated(Pool { dollars_per_hour: 10.0, ..Pool::new(replicas, &engine) });
    let scaled =
        Fleet::aggregated(Pool { scaling: Some(scaling), dollars_per_hour: 10.0, ..Pool::new(1, &engine) });
    let play = |fleet: &Fleet<'_>| simulate(Traffic::Trace(trace.clone()), fleet).unwrap();
    let (one, five, scaled) = (play(&fixed(1)), play(&fixed(5)), play(&scaled));
    assert_eq!(scaled.finished, 400);
    assert!(scaled.ttft.mean < one.ttft.mean && scaled.ttft.mean > five.ttft.mean);
    assert!(scaled.dollars < five.dollars);
    // Until the first new replica has finished its cold start, the result is that of one replica.
    for (scaled, one) in scaled.records.iter().zip(&one.records) {
        if one.finished < 6 * SECOND {
            assert_eq!(scaled, one);
        }
    }
}

/// One tenant floods the replica; with fairness the other is served almost as if it were alone.
#[test]
fn a_flood_from_one_tenant_does_not_drown_another() {
    let engine = LinearEngine::default();
    let mut trace: Vec<Planned> = (0..600).map(|at| Planned::new(at, 1000, 100)).collect();
    for at in 0..20 {
        trace.push(Planned { tenant: 1, ..Planned::new(at * SECOND, 500, 50) });
    }
    let waited = |fairness: Fairness| {
        let scheduler = SchedulerOptions { fairness, max_seqs: 32, ..SchedulerOptions::default() };
        let fleet = Fleet::aggregated(Pool { scheduler, ..Pool::new(1, &engine) });
        let outcome = simulate(Traffic::Trace(trace.clone()), &fleet).unwrap();
        assert_eq!(outcome.finished, 620);
        let small = outcome.records.iter().filter(|record| record.prompt_tokens == 500);
        small.map(|record| seconds(record.ttft())).fold(0.0, f64::max)
    };
    assert!(waited(Fairness::Tenants(BTreeMap::new())) < waited(Fairness::Off) / 5.0);
    assert!(waited(Fairness::Tenants(BTreeMap::from([(TenantId(1), 4)]))) < 5.0);
}

#[test]
fn deadlines_that_pass_in_the_queue_drop_requests_and_nothing_else() {
    let engine = LinearEngine::default();
    let load = GeneratedLoad {
        requests: 500,
        arrivals: Arrivals::Poisson { per_second: 60.0 },
        patience: Some(SECOND),
        ..GeneratedLoad::default()
    };
    let scheduler = SchedulerOptions { late: LatePolicy::Drop, max_seqs: 32, ..SchedulerOptions::default() };
    let outcome = replay(&load, &Fleet::aggregated(Pool { scheduler, ..Pool::new(1, &engine) }));
    assert!(outcome.dropped > 0 && outcome.finished > 0);
    assert_eq!(outcome.dropped + outcome.finished, 500);
    for record in outcome.records.iter().filter(|record| record.fate == Fate::Dropped) {
        assert!(record.finished - record.arrived > SECOND);
    }
}

#[test]
fn what_the_clock_does_not_suffice_for_is_told() {
    let engine = LinearEngine { step: 100 * 86_400 * SECOND, ..LinearEngine::default() };
    let outcome = simulate(
        Traffic::Trace(vec![Planned::new(0, 10, 1), Planned::new(0, 10, 5)]),
        &Fleet::aggregated(Pool::new(1, &engine)),
    )
    .unwrap();
    assert_eq!((outcome.finished, outcome.unfinished), (1, 1));
}
