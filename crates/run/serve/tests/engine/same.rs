//! An answer is the same however it is computed.

use bedplate_batching::PreemptionMode;
use bedplate_serve::{Activations, Ask, Continuation, Engine, EngineOptions, Replica, Sampling};

use crate::fixture::{
    DEEPSEEK, GPT_OSS, LLAMA, MIXTRAL, QWEN3, Tiny, assert_nothing_left, engine, engine_with_draft, folder,
    greedy, kv_bytes, listen, options, prompts, tokens,
};

/// Asks for all prompts at once and gives the answers.
fn at_once(engine: &Engine, prompts: &[Vec<u32>], most: u32) -> Vec<Vec<u32>> {
    let answers: Vec<_> = prompts.iter().map(|prompt| engine.ask(greedy(prompt, most)).unwrap()).collect();
    let told = answers.into_iter().map(tokens).collect();
    assert_nothing_left(engine);
    told
}

#[test]
fn two_hundred_tokens_are_those_of_the_whole_text_computed_anew() {
    for config in [LLAMA, QWEN3, MIXTRAL, GPT_OSS, DEEPSEEK] {
        let (tiny, engine) = (Tiny::new(config), engine(config, &options()));
        let prompt = &prompts(1)[0];
        assert_eq!(tokens(engine.ask(greedy(prompt, 200)).unwrap()), tiny.continued(prompt, 200));
    }
}

/// Every way of computing an answer that must not change it.
pub(crate) fn ways(config: &str, base: &EngineOptions) -> Vec<(&'static str, EngineOptions)> {
    let few = kv_bytes(config, 26, base);
    vec![
        ("without prefixes", EngineOptions { keeps_prefixes: false, ..base.clone() }),
        ("in chunks of 5", EngineOptions { chunk_tokens: 5, token_budget: 11, ..base.clone() }),
        ("one at a time", EngineOptions { max_seqs: 1, ..base.clone() }),
        ("on two threads", EngineOptions { threads: 2, ..base.clone() }),
        ("preempted", EngineOptions { kv_bytes: few, ..base.clone() }),
        (
            "swapped",
            EngineOptions {
                kv_bytes: few,
                preemption: PreemptionMode::Swap,
                swap_bytes: 4 << 20,
                ..base.clone()
            },
        ),
        ("with speculative tokens", EngineOptions { draft_tokens: 5, ..base.clone() }),
        (
            "with speculative tokens, preempted",
            EngineOptions { draft_tokens: 5, kv_bytes: few, ..base.clone() },
        ),
        ("in blocks of 4", EngineOptions { block_tokens: 4, ..base.clone() }),
        ("spilled", EngineOptions { kv_bytes: few, spill_bytes: 1 << 20, ..base.clone() }),
    ]
}

#[test]
fn batching_chunks_preemption_swaps_and_speculation_change_nothing() {
    let prompts = prompts(6);
    for config in [LLAMA, QWEN3, MIXTRAL] {
        let tiny = Tiny::new(config);
        let expected: Vec<_> = prompts.iter().map(|prompt| tiny.continued(prompt, 60)).collect();
        for (way, options) in ways(config, &options()) {
            let engine = engine(config, &options);
            assert_eq!(at_once(&engine, &prompts, 60), expected, "{way}");
            let state = engine.state();
            match way {
                "preempted" | "swapped" => assert!(state.preemptions > 0, "{way}: {state:?}"),
                "with speculative tokens" => assert!(state.accepted_tokens > 0, "{way}: {state:?}"),
                _ => {}
            }
            // Once more, with what the first time left behind.
            assert_eq!(at_once(&engine, &prompts, 60), expected, "{way}, again");
        }
    }
}

#[test]
fn a_draft_model_changes_nothing_but_the_steps() {
    let prompts = prompts(6);
    for config in [LLAMA, MIXTRAL] {
        let tiny = Tiny::new(config);
        let expected: Vec<_> = prompts.iter().map(|prompt| tiny.continued(prompt, 60)).collect();
        for draft_tokens in [1, 4, 9] {
            let base = EngineOptions { draft_tokens, ..options() };
            let few = EngineOptions { kv_bytes: kv_bytes(config, 26, &base), ..base.clone() };
            // As its own draft the model is always right; another one next to nothing.
            let itself = engine_with_draft(config, 5, &base);
            assert_eq!(at_once(&itself, &prompts, 60), expected);
            let state = itself.state();
            assert_eq!(state.accepted_tokens, state.drafted_tokens, "{state:?}");
            assert!(state.drafted_tokens > 100, "{state:?}");
            for options in [base, few] {
                let stranger = engine_with_draft(config, 6, &options);
                assert_eq!(at_once(&stranger, &prompts, 60), expected);
                assert_eq!(at_once(&stranger, &prompts, 60), expected);
                assert!(stranger.state().drafted_tokens > stranger.state().accepted_tokens);
            }
        }
    }
}

#[test]
fn in_bf16_and_with_few_bits_too_an_answer_does_not_depend_on_its_neighbours() {
    use bedplate_kernels::WeightFormat::{Bf16, F16, Fp8, Int4, Int8};
    let prompts = prompts(6);
    for weights in [Bf16, F16, Fp8, Int8, Int4] {
        let base = EngineOptions { activations: Activations::Bf16, weights: Some(weights), ..options() };
        let alone = EngineOptions { max_seqs: 1, keeps_prefixes: false, ..base.clone() };
        let expected = at_once(&engine(QWEN3, &alone), &prompts, 60);
        for (way, options) in ways(QWEN3, &base) {
            assert_eq!(at_once(&engine(QWEN3, &options), &prompts, 60), expected, "{weights:?} {way}");
        }
    }
}

#[test]
fn a_prefix_is_found_again_and_saves_its_tokens() {
    let engine = engine(LLAMA, &options());
    let long: Vec<u32> = (0..150).map(|at| at * 3 % 131).collect();
    let ask = || listen(engine.ask(greedy(&long, 4)).unwrap());
    let (first, second) = (ask(), ask());
    assert_eq!((first.cached, second.cached), (0, 144));
    assert_eq!(first.samples, second.samples);
}

#[test]
fn a_prefix_that_fell_out_of_the_pool_comes_back_from_memory_or_disk() {
    let prompts: Vec<Vec<u32>> =
        (0..6).map(|of| (0..100).map(|at| (at * 3 + of * 11) % 131).collect()).collect();
    let folder = folder("spill");
    let few = kv_bytes(LLAMA, 26, &options());
    let block = kv_bytes(LLAMA, 1, &options());
    let base = EngineOptions { kv_bytes: few, ..options() };
    let kinds = [
        EngineOptions { spill_bytes: 64 * block, ..base.clone() },
        EngineOptions { spill_folder: Some((folder.clone(), 64 * block)), ..base.clone() },
        EngineOptions { spill_bytes: 3 * block, spill_folder: Some((folder.clone(), 64 * block)), ..base },
    ];
    for options in kinds {
        let engine = engine(LLAMA, &options);
        let ask = |prompt: &Vec<u32>| listen(engine.ask(greedy(prompt, 8)).unwrap());
        let first: Vec<_> = prompts.iter().map(ask).collect();
        let second: Vec<_> = prompts.iter().map(ask).collect();
        for (first, second) in first.iter().zip(&second) {
            assert_eq!((first.cached, second.cached), (0, 96), "{options:?}");
            assert_eq!(first.samples, second.samples);
        }
        assert_nothing_left(&engine);
    }
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "its files are removed");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_prefix_that_left_for_samples_comes_back_as_it_was() {
    let block = kv_bytes(LLAMA, 1, &options());
    let engine =
        engine(LLAMA, &EngineOptions { kv_bytes: 26 * block, spill_bytes: 256 * block, ..options() });
    let prompt = |of: u32| -> Vec<u32> { (0..100).map(|at| (at * 3 + of * 11) % 131).collect() };
    let ask = |of: u32, samples: u16| {
        let text = Continuation { most: 8, samples, sampling: Sampling::greedy(), ..Continuation::default() };
        listen(engine.ask(Ask::text(prompt(of), text)).unwrap()).samples
    };
    let expected: Vec<_> = (0..6).map(|of| ask(of, 1)).collect();
    for samples in [3, 2, 4, 1] {
        for (of, expected) in (0..6).zip(&expected) {
            assert_eq!(
                ask(of, samples),
                vec![expected[0].clone(); usize::from(samples)],
                "{samples} of {of}"
            );
        }
    }
}

/// Every speculative token is right, so several tokens are told that the scheduler does not count yet when a sequence must make room.
#[test]
fn what_was_speculated_before_a_preemption_is_computed_again() {
    let prompts = prompts(6);
    let roomy = EngineOptions { draft_tokens: 6, ..options() };
    let expected = at_once(&engine_with_draft(LLAMA, 5, &roomy), &prompts, 90);
    let narrow = EngineOptions { kv_bytes: kv_bytes(LLAMA, 24, &options()), ..roomy };
    let engine = engine_with_draft(LLAMA, 5, &narrow);
    for _ in 0..4 {
        assert_eq!(at_once(&engine, &prompts, 90), expected);
    }
    let state = engine.state();
    assert!(state.preemptions > 0 && state.accepted_tokens > 0, "{state:?}");
}
