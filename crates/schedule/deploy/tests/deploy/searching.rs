//! What the search finds.

use bedplate_deploy::{OfferedLoad, Pattern, Plan, Pooling, Verdict, Workers, explain, search};
use bedplate_perf::serving::{Parallel, WeightFormat};
use bedplate_replay::requests::{Lengths, SharedPrefix, seconds};
use bedplate_transformer::Precision;
use expect_test::{Expect, expect};
use proptest::prelude::*;

use crate::support::{Question, question, rented};

fn check(question: &Question, expected: Expect) {
    let answer = search(&question.need(), question.supplies()).expect("some deployment holds");
    let best = &answer.best;
    let dollars = best.dollars_per_hour.unwrap_or_default();
    expected.assert_eq(&format!("{} | {} GPUs | ${dollars:.2}/h", best.plan, best.plan.gpus()));
    assert!(best.shown.share >= question.options.share);
}

/// Seven GPUs of a machine cost what the machine costs, so the eighth answers too.
#[test]
fn whole_machines_are_paid_and_used() {
    let mut question = question("llama-3.1-8b", "p5en.48xlarge:2", (2000, 300, 20.0), (1000.0, 25.0));
    question.supply = rented("p5en.48xlarge:2");
    let answer = search(&question.need(), question.supplies()).expect("it holds");
    let hourly = question.supply.dollars_of_units(1).expect("it has a price");
    let best = &answer.best;
    let units = question.supply.units_of(&best.plan);
    assert_eq!(best.dollars_per_hour, Some(hourly * f64::from(units)));
    assert_eq!(best.plan.gpus(), 8 * units, "{}", best.plan);
    let outcome = &best.shown.outcome;
    let million = outcome.dollars_per_million_output_tokens().expect("it has a price");
    let by_hand = best.dollars_per_hour.expect("priced") / 3600.0 / outcome.output_tokens_per_second() * 1e6;
    assert!((million / by_hand - 1.0).abs() < 0.05, "{million} or {by_hand}");
}

/// The units of a plan against placing its replicas one by one.
#[test]
fn units_hold_what_they_have_room_for() {
    let need = question("llama-3.1-8b", "p5en.48xlarge:8", (1, 1, 1.0), (0.0, 0.0));
    let supply = rented("p5en.48xlarge:8");
    let layout = |tensor: u32| {
        format!("tp{tensor}.bf16").parse::<Pattern>().expect("a pattern").first.completed(&need.need())
    };
    let workers = |tensor: u32, replicas: u32| Workers { layout: layout(tensor), replicas, max_seqs: 1 };
    for (plan, units) in [
        (Plan::Aggregated(workers(1, 7)), 1),
        (Plan::Aggregated(workers(4, 3)), 2),
        (Plan::Disaggregated { prefill: workers(1, 4), decode: workers(4, 1) }, 1),
        (Plan::Disaggregated { prefill: workers(4, 3), decode: workers(2, 3) }, 3),
        (Plan::Disaggregated { prefill: workers(2, 2), decode: workers(4, 3) }, 2),
    ] {
        assert_eq!(supply.units_of(&plan), units, "{plan}");
        assert_eq!(supply.filled(supply.filled(plan)), supply.filled(plan));
        assert_eq!(supply.units_of(&supply.filled(plan)), units, "{plan}");
    }
}

#[test]
fn a_small_model_at_a_low_rate_gets_one_gpu_in_its_own_format() {
    check(
        &question("llama-3.1-8b", "p5en.48xlarge:1", (1000, 200, 2.0), (500.0, 30.0)),
        expect!["1 x tp1 in bf16.kv-bf16 | 1 GPUs | $7.91/h"],
    );
}

#[test]
fn a_rate_beyond_one_replica_gets_several() {
    check(
        &question("llama-3.1-8b", "p5en.48xlarge:1", (2000, 300, 40.0), (500.0, 20.0)),
        expect!["2 x tp1 + 1 x tp1 in bf16.kv-fp8 | 3 GPUs | $23.74/h"],
    );
}

#[test]
fn a_large_model_is_cut() {
    check(
        &question("llama-3.3-70b", "p5en.48xlarge:2", (4000, 500, 4.0), (1000.0, 30.0)),
        expect!["2 x tp2 + 1 x tp4 in fp8.kv-bf16 | 8 GPUs | $63.30/h"],
    );
}

#[test]
fn pools_are_chosen_where_one_pool_cannot_keep_tokens_steady() {
    let mut question = question("llama-3.3-70b", "p5en.48xlarge:5", (4000, 500, 20.0), (600.0, 25.0));
    check(&question, expect!["6 x tp4 + 5 x tp2 in fp8.kv-bf16 | 34 GPUs | $269.01/h"]);
    question.options.pooling = Pooling::Aggregated;
    check(&question, expect!["9 x tp4 in fp8.kv-bf16 | 36 GPUs | $284.83/h"]);
}

#[test]
fn a_mixture_of_experts_is_served() {
    check(
        &question("deepseek-v3", "p5en.48xlarge:4", (2000, 500, 4.0), (3000.0, 60.0)),
        expect!["1 x tp4.ep8.adp2 in fp8.kv-bf16 | 8 GPUs | $63.30/h"],
    );
}

#[test]
fn a_deployment_must_keep_up_with_the_rate_even_where_no_first_token_is_asked_for() {
    let question = question("llama-3.1-8b", "p4de.24xlarge:1", (1000, 200, 10.0), (0.0, 20.0));
    let answer = search(&question.need(), question.supplies()).expect("some deployment holds");
    let outcome = &answer.best.shown.outcome;
    assert!(outcome.requests_per_second() > 9.0, "{}", outcome.requests_per_second());
    assert!(seconds(outcome.ttft.p99) < 5.0);
}

#[test]
fn formats_are_taken_only_from_those_allowed() {
    let mut question = question("llama-3.3-70b", "p5en.48xlarge:2", (1000, 200, 2.0), (1000.0, 40.0));
    question.options.weights = vec![WeightFormat::Bf16];
    let answer = search(&question.need(), question.supplies()).expect("some deployment holds");
    assert_eq!(answer.best.plan.decoders().layout.weights, WeightFormat::Bf16);
}

#[test]
fn the_cheaper_of_two_machines_is_taken() {
    let question = question("llama-3.1-8b", "p5en.48xlarge:1", (1000, 200, 5.0), (500.0, 30.0));
    let supplies = [question.supply.clone(), crate::support::supply("p5.48xlarge:1")];
    let answer = search(&question.need(), &supplies).expect("some deployment holds");
    let dollars = |index: usize| supplies[index].dollars_per_gpu_hour.expect("both have a price");
    let cheaper = usize::from(dollars(1) < dollars(0));
    assert_eq!(answer.best.supply, cheaper);
}

#[test]
fn the_front_trades_users_for_gpus() {
    let question = question("llama-3.3-70b", "p5en.48xlarge:2", (4000, 500, 2.0), (0.0, 50.0));
    let answer = search(&question.need(), question.supplies()).expect("some deployment holds");
    assert!(answer.front.len() > 5, "{}", answer.front.len());
    for pair in answer.front.windows(2) {
        assert!(pair[0].per_user > pair[1].per_user && pair[0].per_gpu < pair[1].per_gpu);
    }
    assert!(answer.front.iter().all(|point| point.plan.gpus() <= 16));
}

#[test]
fn everything_that_was_tried_says_what_became_of_it() {
    let question = question("llama-3.3-70b", "p5en.48xlarge:1", (4000, 500, 1.0), (1000.0, 30.0));
    let need = question.need();
    let answer = search(&need, question.supplies()).expect("some deployment holds");
    let told = |pattern: &str| {
        let pattern: Pattern = pattern.parse().expect("it is a pattern");
        let explanation = explain(&need, question.supplies(), &answer, &pattern);
        explanation.matches[0].verdict.to_string()
    };
    assert!(told("tp1.bf16").contains("exceed a GPU by"), "{}", told("tp1.bf16"));
    assert!(told("tp3").contains("do not divide 64 heads"));
    assert!(told("tp4.fp4").contains("no fp4 arithmetic"));
    assert!(told("tp2.ep2.fp8").contains("for models with experts"));
    assert!(told("tp16").contains("domain of 8 GPUs"));
    let chosen = answer.tried.iter().filter(|tried| matches!(tried.verdict, Verdict::Chosen { .. }));
    assert_eq!(chosen.count(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4))]

    #[test]
    fn what_is_found_holds_fits_and_is_found_again(
        input in 64u32..6000, output in 2u32..800, rate in 0.2f64..30.0, itl in 8.0f64..60.0, seed in any::<u64>(),
    ) {
        let mut question = question("llama-3.1-8b", "p5en.48xlarge:1", (input, output, rate), (2000.0, itl));
        question.options.seed = seed;
        let need = question.need();
        let first = search(&need, question.supplies());
        let second = search(&need, question.supplies());
        match (first, second) {
            (Ok(first), Ok(second)) => {
                prop_assert_eq!(first.best.plan, second.best.plan);
                prop_assert_eq!(first.best.shown.share, second.best.shown.share);
                prop_assert!(first.best.plan.gpus() <= question.supply.gpus());
                prop_assert!(first.best.shown.share >= need.options.share);
                let cost = |held: &bedplate_deploy::HeldPlan| held.dollars_per_hour.expect("priced");
                prop_assert!(first.others.iter().all(|other| cost(&other.held) >= cost(&first.best)));
                for tried in &first.tried {
                    prop_assert!(!tried.verdict.to_string().is_empty());
                }
            }
            (Err(first), Err(second)) => prop_assert_eq!(first, second),
            (first, second) => prop_assert!(false, "{:?} and {:?}", first.is_ok(), second.is_ok()),
        }
    }

    #[test]
    fn a_plan_within_fewer_gpus_is_the_same_kind_and_fits(replicas in 1u32..40, more in 1u32..40, gpus in 1u32..80) {
        let question = question("llama-3.1-8b", "p5en.48xlarge:1", (1000, 100, 1.0), (0.0, 0.0));
        let layout = |text: &str| text.parse::<Pattern>().expect("a pattern").first.completed(&question.need());
        let workers = |layout, replicas| bedplate_deploy::Workers { layout, replicas, max_seqs: 8 };
        let plan = Plan::Disaggregated {
            prefill: workers(layout("tp2"), replicas),
            decode: workers(layout("tp4"), more),
        };
        let mut supply = question.supply.clone();
        supply.hardware.gpus = gpus;
        match plan.within(&supply) {
            Some(smaller) => prop_assert!(smaller.gpus() <= gpus && smaller.gpus() <= plan.gpus()),
            None => prop_assert!(plan.gpus() > gpus),
        }
    }
}

#[test]
fn what_a_cut_is_called_is_understood() {
    let question = question("deepseek-v3", "p5en.48xlarge:2", (1000, 100, 1.0), (0.0, 0.0));
    let need = question.need();
    for text in [
        "tp4.pp2.fp8.kv-fp8.chunk2048",
        "tp1.ep16.adp16.fp8.kv-bf16.chunk8192",
        "tp8.bf16.kv-bf16.chunk16384",
    ] {
        let pattern: Pattern = text.parse().expect("it is a pattern");
        assert_eq!(pattern.first.completed(&need).to_string(), text);
    }
    for wrong in ["", "tp", "tp0", "fp5", "tp4.", "pp4+"] {
        assert!(wrong.parse::<Pattern>().is_err(), "{wrong}");
    }
}

#[test]
fn shared_prefixes_and_shorter_lengths_need_fewer_gpus() {
    let mut question = question("llama-3.3-70b", "p5en.48xlarge:8", (8000, 200, 20.0), (1500.0, 50.0));
    question.options.weights = vec![WeightFormat::Fp8];
    question.options.kv = vec![Precision::Fp8];
    question.options.chunks = vec![8192];
    question.options.pooling = Pooling::Aggregated;
    let gpus = |question: &Question| {
        let answer = search(&question.need(), question.supplies()).expect("there is a plan");
        answer.best.plan.gpus()
    };
    let all = gpus(&question);
    question.load.shared = Some(SharedPrefix { percent: 80, groups: 4 });
    let shared = gpus(&question);
    // Prefixes that nobody can keep are computed again and again.
    question.load.shared = Some(SharedPrefix { percent: 80, groups: 1_000_000 });
    let unkept = gpus(&question);
    question.load.shared = None;
    question.load = OfferedLoad::drawn(Lengths::Between(500, 2500), Lengths::Between(50, 350), 20.0);
    let shorter = gpus(&question);
    assert!(shared < all && shared < unkept && shorter < all, "{all} {shared} {unkept} {shorter}");
}

/// 256 experts on 72 GPUs have 288 places, as DeepSeek's own decode workers on 144 do.
#[test]
fn experts_spread_over_whole_nvlink_domains_with_copies() {
    let question = question("deepseek-v3", "u-p6e-gb200x72:1", (2000, 500, 40.0), (4000.0, 40.0));
    let layout: Pattern = "tp1.ep72.adp72.fp8.kv-fp8".parse().expect("it is a pattern");
    let answer = search(&question.need(), question.supplies()).expect("there is a plan");
    let explanation = explain(&question.need(), question.supplies(), &answer, &layout);
    assert!(!explanation.matches.is_empty(), "72 ranks are tried");
    let parallel = Parallel { attention_data: 72, expert: 72, ..Parallel::ONE };
    assert_eq!(parallel.expert_places(256), 288);
    assert!(explanation.matches.iter().all(|tried| !matches!(tried.verdict, Verdict::Refused(_))));
}

#[test]
fn requests_days_apart_are_answered() {
    for per_second in [1e-4, 1e-7] {
        let question = question("llama-3.1-8b", "p5en.48xlarge:1", (1000, 200, per_second), (500.0, 30.0));
        check(&question, expect!["1 x tp1 in bf16.kv-bf16 | 1 GPUs | $7.91/h"]);
    }
}

/// The host launches the kernels of a step once, however many prompts it holds.
#[test]
fn short_prompts_share_steps() {
    let mut question = question("llama-3.1-8b", "p5en.48xlarge:8", (50, 50, 600.0), (1000.0, 40.0));
    question.options.weights = vec![WeightFormat::Bf16];
    question.options.kv = vec![Precision::Bf16];
    question.options.chunks = vec![8192];
    question.options.pooling = Pooling::Aggregated;
    check(&question, expect!["2 x tp1 in bf16.kv-bf16 | 2 GPUs | $15.82/h"]);
}

#[test]
fn the_front_has_the_pools_that_were_asked_for() {
    for (pooling, is_one) in [(Pooling::Aggregated, true), (Pooling::Disaggregated, false)] {
        let mut question = question("llama-3.3-70b", "p5en.48xlarge:2", (4000, 500, 2.0), (0.0, 50.0));
        question.options.pooling = pooling;
        let answer = search(&question.need(), question.supplies()).expect("some deployment holds");
        assert!(!answer.front.is_empty());
        assert!(answer.front.iter().all(|point| matches!(point.plan, Plan::Aggregated(_)) == is_one));
    }
}
