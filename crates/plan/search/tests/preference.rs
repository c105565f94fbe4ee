//! Which of nearly equal layouts is the answer.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use bedplate_calibrate::{Case, Cases};
use bedplate_catalog::Catalog;
use bedplate_layout::Sharding;
use bedplate_perf::{Constants, Fit, Stack};
use bedplate_search::{Axes, Doubt, doubts, regrets, search};
use support::bench;

#[test]
fn tight_layouts_stand_aside() {
    for (model, cluster, sequence, batch) in [
        ("llama-3-8b", "p5.48xlarge:2", 8192, 64),
        ("llama-3-70b", "p5.48xlarge:8", 8192, 128),
        ("llama-3.1-405b", "p5.48xlarge:64", 8192, 256),
        ("deepseek-v3", "p5en.48xlarge:32", 4096, 2048),
        ("qwen3-30b-a3b", "p5.48xlarge:2", 4096, 256),
    ] {
        let bench = bench(model, cluster, sequence, batch);
        let answer = search(&bench.setup(), &Axes::practical(8), 1).unwrap();
        assert!(matches!(answer.best[0].fit, Fit::Fits { .. }), "{model}: {:?}", answer.best[0]);
    }
}

#[test]
fn short_sequences_are_not_cut_unless_that_wins_clearly() {
    for (model, cluster, sequence, batch) in [
        ("llama-3-8b", "p5.48xlarge:4", 4096, 256),
        ("llama-3-8b", "p5.48xlarge:8", 8192, 512),
        ("llama-3-70b", "p5.48xlarge:16", 8192, 256),
        ("qwen3-30b-a3b", "p5.48xlarge:4", 4096, 512),
        ("deepseek-v3", "p5en.48xlarge:64", 4096, 4096),
    ] {
        let bench = bench(model, cluster, sequence, batch);
        let answer = search(&bench.setup(), &Axes::practical(8), 1).unwrap();
        assert_eq!(answer.best[0].layout.context, 1, "{model}: {}", answer.best[0].layout);
    }
}

#[test]
fn an_answer_has_only_what_the_stack_has() {
    let mut bench = bench("llama-3-70b", "p5.48xlarge:8", 8192, 128);
    for stack in [Stack::Megatron, Stack::Fsdp, Stack::Nanotron] {
        bench.workload.stack = stack;
        let setup = bench.setup();
        let best = search(&setup, &Axes::practical(8), 1).unwrap().best[0];
        let held = doubts(&best.layout, best.fit, &setup.question());
        assert!(!held.contains(&Doubt::NotInStack), "{stack:?}: {}", best.layout);
        if stack == Stack::Megatron && best.layout.pipeline > 1 {
            assert!(matches!(best.layout.sharding, Sharding::None | Sharding::Optimizer));
        }
    }
}

#[test]
fn what_tipped_the_choice_is_told() {
    let bench = bench("llama-3-8b", "p5.48xlarge:2", 8192, 32);
    let setup = bench.setup();
    let answer = search(&setup, &Axes::default(), 10).unwrap();
    let tipped = answer.tipped(&setup).unwrap();
    assert!(tipped.fastest.seconds < answer.best[0].seconds);
    assert!(!tipped.doubts.is_empty());
    // The preferred one is within what its doubts allow.
    let margin: f64 = tipped.doubts.iter().map(|each| 1.0 + each.margin()).product();
    assert!(answer.best[0].seconds / tipped.fastest.seconds <= margin);
}

/// A part of the table that `bedplate plan validate --regret` prints.
#[test]
fn published_recipes_are_within_a_tenth_of_the_answer_or_lack_a_feature() {
    let text = include_str!("../../../../data/training/measured.csv");
    let cases = Cases::read(text, &Catalog::builtin()).unwrap();
    let some: Vec<Case> = cases.used.into_iter().step_by(9).collect();
    let all = regrets(&some, &Constants::builtin()).unwrap();
    let within = all.iter().filter(|regret| regret.is_within()).count();
    let excused = all.iter().filter(|regret| !regret.is_within() && regret.excuse.is_some()).count();
    assert!(within * 10 >= all.len() * 7, "{within} of {}", all.len());
    assert!((within + excused) * 20 >= all.len() * 18, "{within} and {excused} of {}", all.len());
}
