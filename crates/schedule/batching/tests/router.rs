//! The router against failures known from routers of other projects.

use bedplate_batching::{
    BlockKey, BlockKeys, Load, PrefixMirror, ReplicaCandidate, Route, RouteReason, Router, RouterOptions,
    RoutingPolicy,
};
use proptest::prelude::*;

const PROMPT: u32 = 4000;

fn replica(pending_tokens: u64, cached_tokens: u32) -> ReplicaCandidate {
    ReplicaCandidate { load: Load { pending_tokens, ..Load::default() }, cached_tokens, is_open: true }
}

fn router(seed: u64) -> Router {
    Router::new(RouterOptions { seed, ..RouterOptions::default() })
}

fn route(candidates: &[ReplicaCandidate]) -> Route {
    router(1).route(PROMPT, candidates).expect("a replica is open")
}

/// SGLang issue 32983: with no hit anywhere the first replica was always picked.
#[test]
fn a_miss_does_not_always_go_to_replica_0() {
    let mut router = router(7);
    let mut counts = [0; 4];
    for _ in 0..4000 {
        counts[router.route(PROMPT, &[replica(0, 0); 4]).unwrap().replica] += 1;
    }
    assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
}

/// SGLang pull request 14305: the fallback went to the smallest tree, which stays small because its replica is
/// slow, and so attracted ever more load.
#[test]
fn a_miss_goes_to_the_least_work_however_little_is_cached_there() {
    // Nothing of this prompt is anywhere. The replica with an empty tree is the one that has most to do.
    let mut empty = PrefixMirror::new(1000);
    let full: BlockKeys = (0..500).map(BlockKey).collect();
    empty.observe(&BlockKeys::default());
    let mut large = PrefixMirror::new(1000);
    large.observe(&full);
    let prompt = BlockKeys::from_iter([BlockKey(9999)]);
    let cached = |mirror: &PrefixMirror| mirror.cached_blocks(&prompt) * 16;
    let chosen = route(&[replica(3000, cached(&empty)), replica(100, cached(&large))]);
    assert_eq!(chosen, Route { replica: 1, reason: RouteReason::LeastWork { work: 100 } });
}

/// SGLang pull request 32195: once replicas were out of balance, prefixes were ignored.
#[test]
fn an_overloaded_holder_leaves_the_others_competing_by_prefix() {
    let chosen = route(&[replica(90_000, 3900), replica(1500, 0), replica(2000, 3000), replica(1000, 0)]);
    assert_eq!(chosen.replica, 2);
    assert_eq!(
        chosen.reason.to_string(),
        "replica 0 has 3900 tokens of the prompt but is overloaded: 90000 tokens of work against 1000"
    );
}

/// smg pull request 2150: a router that sees only part of the load calls a handful of requests an imbalance when
/// it compares by ratio alone. And a margin alone never tells large loads from equal ones.
#[test]
fn overload_takes_a_margin_and_a_ratio() {
    // 30 times the work, but little of it: the prefix is worth more.
    assert_eq!(route(&[replica(3000, 3900), replica(100, 0)]).replica, 0);
    // 20,000 tokens more, but only 2 % more: with a prefix that saves as much, the holder is no worse.
    let long = 30_000;
    let chosen = router(1).route(long, &[replica(1_020_000, 29_000), replica(1_000_000, 0)]).unwrap();
    assert_eq!(chosen, Route { replica: 0, reason: RouteReason::Prefix { cached_tokens: 29_000 } });
    // Both: overloaded, whatever it has.
    let chosen = router(1).route(long, &[replica(25_000, 30_000), replica(5000, 0)]).unwrap();
    assert_eq!(chosen.replica, 1);
}

#[test]
fn a_prefix_is_weighed_against_work_token_by_token() {
    let chosen = route(&[replica(5000, 3000), replica(1000, 0)]);
    assert_eq!(
        chosen.reason.to_string(),
        "replica 0 has 3000 tokens of the prompt but 5000 tokens of work against 1000"
    );
    assert_eq!(route(&[replica(3500, 3000), replica(1000, 0)]).replica, 0);
}

#[test]
fn closed_replicas_are_never_chosen_and_none_open_means_no_route() {
    let closed = ReplicaCandidate { is_open: false, ..replica(0, PROMPT) };
    assert_eq!(route(&[closed, replica(90_000, 0), closed]).replica, 1);
    assert_eq!(router(1).route(PROMPT, &[closed, closed]), None);
    assert_eq!(router(1).route(PROMPT, &[]), None);
}

#[test]
fn round_robin_takes_the_open_ones_in_turn() {
    let options = RouterOptions { policy: RoutingPolicy::RoundRobin, ..RouterOptions::default() };
    let mut router = Router::new(options);
    let closed = ReplicaCandidate { is_open: false, ..replica(0, 0) };
    let candidates = [replica(5, 0), closed, replica(0, 0)];
    let chosen: Vec<usize> = (0..4).map(|_| router.route(PROMPT, &candidates).unwrap().replica).collect();
    assert_eq!(chosen, [0, 2, 0, 2]);
}

#[test]
fn a_mirror_remembers_what_was_sent_until_it_is_full() {
    let keys =
        |conversation: u64| -> BlockKeys { (0..10).map(|at| BlockKey(conversation).then(at)).collect() };
    let mut mirror = PrefixMirror::new(25);
    for conversation in 0..3 {
        mirror.observe(&keys(conversation));
    }
    let cached: Vec<u32> = (0..3).map(|conversation| mirror.cached_blocks(&keys(conversation))).collect();
    assert_eq!(cached, [5, 10, 10], "the oldest lost its end");
}

/// All of the above at once, for a while: prompts of some conversations arrive at replicas that work them off. Most of each
/// prompt is found where it goes, and no replica is ever given more work than a prompt computed anew elsewhere would cost.
#[test]
fn over_time_prefixes_stay_together_and_work_stays_even() {
    const REPLICAS: usize = 4;
    let keys = |conversation: u64| -> BlockKeys {
        (0..u64::from(PROMPT) / 16)
            .scan(BlockKey(conversation), |key, at| {
                *key = key.then(at);
                Some(*key)
            })
            .collect()
    };
    for conversations in [1, 3, 32] {
        let mut router = router(conversations);
        let mut mirrors = vec![PrefixMirror::new(3000); REPLICAS];
        let (mut pending, mut counts, mut cached) = ([0u64; REPLICAS], [0u64; REPLICAS], 0u64);
        let requests = 4000;
        for request in 0..requests {
            let keys = keys(bedplate_random::mix(request) % conversations);
            let candidates: Vec<ReplicaCandidate> =
                (0..REPLICAS).map(|at| replica(pending[at], mirrors[at].cached_blocks(&keys) * 16)).collect();
            let chosen = router.route(PROMPT, &candidates).unwrap().replica;
            cached += u64::from(candidates[chosen].cached_tokens);
            // An answer takes a tenth of its prompt, cached or not.
            pending[chosen] += u64::from(PROMPT - candidates[chosen].cached_tokens) + 400;
            mirrors[chosen].observe(&keys);
            counts[chosen] += 1;
            let (least, most) = (pending.iter().min().unwrap(), pending.iter().max().unwrap());
            assert!(
                most - least <= 2 * u64::from(PROMPT) + 400,
                "{conversations} conversations: {pending:?}"
            );
            pending.iter_mut().for_each(|work| *work = work.saturating_sub(150));
        }
        let hits = cached * 100 / (requests * u64::from(PROMPT));
        assert!(hits >= 90, "{conversations} conversations: {hits} % cached");
        // A few conversations need no more than the replicas that can keep up with them.
        let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
        assert!(conversations < 32 || most < &(least * 2), "{conversations} conversations: {counts:?}");
    }
}

proptest! {
    #[test]
    fn the_choice_is_never_worse_than_a_replica_that_is_not_overloaded(
        replicas in prop::collection::vec((0u64..60_000, 0u32..PROMPT, any::<bool>()), 1..9),
        seed in any::<u64>(),
    ) {
        let candidates: Vec<ReplicaCandidate> = replicas
            .iter()
            .map(|(pending, cached, is_open)| ReplicaCandidate { is_open: *is_open, ..replica(*pending, *cached) })
            .collect();
        let Some(chosen) = router(seed).route(PROMPT, &candidates) else {
            prop_assert!(candidates.iter().all(|candidate| !candidate.is_open));
            return Ok(());
        };
        let open: Vec<&ReplicaCandidate> = candidates.iter().filter(|candidate| candidate.is_open).collect();
        let least = open.iter().map(|candidate| candidate.load.pending_tokens).min().unwrap();
        let cost = |candidate: &ReplicaCandidate| u64::from(PROMPT - candidate.cached_tokens) + candidate.load.pending_tokens;
        let chosen = &candidates[chosen.replica];
        prop_assert!(chosen.is_open);
        for other in open.iter().filter(|other| other.load.pending_tokens <= least + 16_384) {
            prop_assert!(cost(chosen) <= cost(other));
        }
    }
}

proptest! {
    #[test]
    fn asking_few_leads_to_the_same_choice_as_asking_all(
        replicas in prop::collection::vec((0u64..6000, 0u32..PROMPT, 0u32..2000, any::<bool>()), 1..40),
        seed in any::<u64>(),
    ) {
        let all: Vec<ReplicaCandidate> = replicas
            .iter()
            .map(|(pending, cached, _, is_open)| ReplicaCandidate { is_open: *is_open, ..replica(*pending, *cached) })
            .collect();
        let few: Vec<ReplicaCandidate> = all.iter().map(|each| ReplicaCandidate { cached_tokens: 0, ..*each }).collect();
        let (mut one, mut other) = (router(seed), router(seed));
        let most = |at: usize| replicas[at].1 + replicas[at].2;
        let asking_few = one.route_asking(PROMPT, &few, most, |at, _| replicas[at].1);
        let asking_all = other.route(PROMPT, &all);
        prop_assert_eq!(asking_few.map(|route| route.replica), asking_all.map(|route| route.replica));
    }
}
