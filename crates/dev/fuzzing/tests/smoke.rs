//! Every target survives its seeds and a fixed number of mutations of them.
//!
//! Without a toolchain for coverage, `BEDPLATE_FUZZ_SECONDS=300 BEDPLATE_FUZZ_TARGETS=job_toml,log_text cargo test -p bedplate-fuzzing --test smoke wander -- --nocapture`
//! wanders further: mutations of mutations, for as long as that on each target.

#![expect(clippy::print_stdout, reason = "long runs say what they did")]

use std::time::{Duration, Instant};

use bedplate_fuzzing::{TARGETS, Target};
use bedplate_host::memory::own_resident_bytes;
use bedplate_testkit::Mutator;

#[test]
fn no_input_makes_a_parser_panic() {
    for target in TARGETS {
        let mut mutator = Mutator::new(0x5eed);
        for seed in target.seeds {
            (target.run)(seed.as_bytes());
        }
        for round in 0..target.rounds {
            let seed = target.seeds[round % target.seeds.len()];
            let input = mutator.mutate(seed.as_bytes());
            let outcome = std::panic::catch_unwind(|| (target.run)(&input));
            let shown = String::from_utf8_lossy(&input);
            assert!(outcome.is_ok(), "target {} fails in round {round} on:\n{shown}", target.name);
        }
    }
}

#[test]
fn hostile_shapes_are_refused_quickly() {
    let deep = "[".repeat(200_000);
    let wide = "a".repeat(5_000_000);
    let lines = "x\n".repeat(1_000_000);
    for target in TARGETS {
        for input in [&deep, &wide, &lines] {
            (target.run)(input.as_bytes());
        }
    }
}

/// Inputs that mutations start from: the seeds, and what came of them lately.
const MOST_KEPT: usize = 64;
/// No seed has to grow beyond this to reach all of a parser.
const LONGEST: usize = 64 << 10;
const FEW_ROUNDS: usize = 30;

#[test]
fn mutations_of_mutations_wander_into_no_panic() {
    let named = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let time =
        named("BEDPLATE_FUZZ_SECONDS").and_then(|seconds| seconds.parse().ok()).map(Duration::from_secs);
    let wanted = named("BEDPLATE_FUZZ_TARGETS");
    let is_wanted = |target: &&Target| {
        wanted.as_ref().is_none_or(|names| names.split(',').any(|name| name == target.name))
    };
    for target in TARGETS.iter().filter(is_wanted) {
        wander(target, time);
    }
}

fn wander(target: &Target, time: Option<Duration>) {
    let mut kept: Vec<Vec<u8>> = target.seeds.iter().map(|seed| seed.as_bytes().to_vec()).collect();
    let seeds = kept.len();
    // Another way each time it is asked for long runs.
    let mut mutator =
        Mutator::new(time.map_or(0x0005_eed5, |_| u64::from(std::process::id()) << 20 | 0x5eed));
    let (began, mut rounds, mut most_bytes) = (Instant::now(), 0_u64, 0);
    while time.map_or(rounds < FEW_ROUNDS as u64, |time| began.elapsed() < time) {
        let at = mutator.below(kept.len());
        let input = mutator.mutate(&kept[at]);
        let outcome = std::panic::catch_unwind(|| (target.run)(&input));
        assert!(outcome.is_ok(), "target {} fails on:\n{:?}", target.name, String::from_utf8_lossy(&input));
        if (1..LONGEST).contains(&input.len()) && mutator.below(4) == 0 {
            if kept.len() < seeds + MOST_KEPT {
                kept.push(input);
            } else {
                let place = seeds + mutator.below(MOST_KEPT);
                kept[place] = input;
            }
        }
        rounds += 1;
        if rounds.is_multiple_of(256) {
            most_bytes = most_bytes.max(own_resident_bytes().unwrap_or(0));
        }
    }
    if time.is_some() {
        let (seconds, mebibytes) = (began.elapsed().as_secs(), most_bytes >> 20);
        println!("{}: {rounds} inputs in {seconds} s, at most {mebibytes} MiB resident", target.name);
    }
}
