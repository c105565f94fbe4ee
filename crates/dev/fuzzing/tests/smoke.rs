//! Every target survives its seeds and a fixed number of mutations of them.

use bedplate_fuzzing::{Mutator, TARGETS};

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
