//! Recorded requests as a load: what is taken from them, and what is drawn.

use std::fs;

use bedplate_diag::Source;
use bedplate_replay::requests::{
    Fleet, Lengths, LinearEngine, Planned, Pool, Prefix, TracedLoad, Traffic, picoseconds, read_trace,
    simulate,
};
use proptest::prelude::*;

fn traced(text: &str) -> TracedLoad {
    TracedLoad::new(read_trace(Source::new("trace", text)).expect("it is a trace")).expect("it has requests")
}

#[test]
fn lengths_rate_and_shared_prefixes_are_taken() {
    let taken = traced(
        r#"{"timestamp": 0, "input_length": 1024, "output_length": 10, "hash_ids": [1, 2]}
           {"timestamp": 1000, "input_length": 1536, "output_length": 30, "hash_ids": [1, 2, 3]}
           {"timestamp": 2000, "input_length": 1024, "output_length": 20, "hash_ids": [9, 2]}
           {"timestamp": 4000, "input_length": 512, "output_length": 20, "hash_ids": [1]}"#,
    );
    assert_eq!((taken.prompt.median, taken.prompt.p90, taken.prompt.longest), (1024, 1536, 1536));
    assert_eq!((taken.output.median, taken.output.mean), (20, 20.0));
    assert_eq!(taken.longest_request, 1566);
    assert_eq!(taken.per_second, Some(0.75));
    assert_eq!(taken.busiest_minute, None, "it is shorter than a minute");
    // Two blocks of the second request and one of the fourth, whose last token is computed nevertheless; the second block of
    // the third follows another beginning.
    let shared = taken.shared.expect("it has hashes");
    assert_eq!(shared.share, (1024.0 + 511.0) / 4096.0);
    assert_eq!(shared.tokens, 1024);
    assert_eq!(taken.longer_than(1034), 2);
    assert_eq!(taken.longer_than(1566), 0);
}

#[test]
fn a_single_request_says_nothing_of_a_rate_or_of_sharing() {
    let taken = traced("TIMESTAMP,ContextTokens,GeneratedTokens\n0,700,5\n");
    assert_eq!((taken.per_second, taken.busiest_minute, taken.shared), (None, None, None));
    assert_eq!(taken.prompt.spread_evenly(), Lengths::Fixed(700));
    let drawn = taken.drawn(3, 2.0, 7);
    assert!(drawn.iter().all(|it| (it.prompt_tokens, it.output_tokens) == (700, 5)));
    assert!(TracedLoad::new(Vec::new()).is_none());
    let burst = traced("TIMESTAMP,ContextTokens,GeneratedTokens\n0,700,5\n0.5,700,5\n");
    assert_eq!(burst.per_second, None);
}

#[test]
fn the_busiest_minute_is_the_one_with_most_requests() {
    let at = |second: f64| Planned::new(picoseconds(second), 10, 10);
    let calm = (0..10).map(|minute| at(60.0 * f64::from(minute)));
    let burst = (0..30).map(|second| at(200.5 + f64::from(second)));
    let taken = TracedLoad::new(calm.chain(burst).collect()).expect("it has requests");
    // The burst, and the request at 240 s.
    assert_eq!(taken.busiest_minute, Some(31.0 / 60.0));
}

#[test]
fn a_second_lap_shares_nothing_with_the_first() {
    let taken = traced(
        r#"{"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [1]}
           {"timestamp": 1, "input_length": 512, "output_length": 1, "hash_ids": [1]}"#,
    );
    let hashes = |planned: &Planned| match &planned.prefix {
        Prefix::Hashes { hashes, .. } => hashes.clone(),
        other => panic!("{other:?}"),
    };
    for seed in 0..8 {
        let drawn = taken.drawn(7, 1.0, seed);
        let mut different: Vec<Vec<u64>> = drawn.iter().map(hashes).collect();
        different.dedup();
        assert!((4..=5).contains(&different.len()), "one for each lap: {different:?}");
    }
}

/// The published conversation trace of 2023, where it is available.
#[test]
fn the_azure_conversation_trace_is_taken_whole() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../../../shared/traces/azure_llm/AzureLLMInferenceTrace_2023_conv.csv"
    );
    let Ok(text) = fs::read_to_string(path) else {
        println!("SKIPPED: lengths and rate of the Azure trace: {path} is not there");
        return;
    };
    let taken = traced(&text);
    assert_eq!(taken.len(), 19_366);
    assert_eq!((taken.prompt.median, taken.output.median), (1020, 129));
    let rate = taken.per_second.expect("it has times");
    assert!((5.0..6.0).contains(&rate), "{rate}");
    assert!(taken.busiest_minute.expect("it is an hour long") > rate);
}

proptest! {
    #[test]
    fn what_is_drawn_is_recorded_and_its_means_are_kept(
        lengths in prop::collection::vec((1u32..20_000, 1u32..2_000), 1..60),
        seed in 0u64..1000,
    ) {
        let requests: Vec<Planned> = lengths
            .iter()
            .enumerate()
            .map(|(at, (prompt, output))| Planned::new(at as u64 * 1_000_000_000_000, *prompt, *output))
            .collect();
        let taken = TracedLoad::new(requests).expect("it has requests");
        for tokens in [taken.prompt, taken.output] {
            prop_assert!((f64::from(tokens.spread_evenly().mean()) - tokens.mean).abs() <= 1.0);
            prop_assert!(tokens.spread_evenly().shortest() >= 1);
        }
        let drawn = taken.drawn(500, 3.0, seed);
        prop_assert_eq!(drawn.clone(), taken.drawn(500, 3.0, seed));
        prop_assert!(drawn.windows(2).all(|pair| pair[0].at <= pair[1].at));
        prop_assert!(drawn.iter().all(|it| lengths.contains(&(it.prompt_tokens, it.output_tokens))));
        let engine = LinearEngine::default();
        let outcome = simulate(Traffic::Trace(drawn), &Fleet::aggregated(Pool::new(4, &engine))).expect("sound");
        prop_assert_eq!(outcome.requests, 500);
    }
}
