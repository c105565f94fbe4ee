//! Several samples of one prompt, and how tokens are sampled.

use std::collections::BTreeSet;

use bedplate_serve::{Ask, Continuation, EngineOptions, Replica, SampleEvent, Sampling};

use crate::fixture::{
    LLAMA, QWEN3, assert_nothing_left, engine, engine_ending, kv_bytes, listen, options, prompts,
};

fn ask(prompt: &[u32], samples: u16, sampling: Sampling, most: u32) -> Ask {
    Ask::text(prompt.to_vec(), Continuation { most, samples, sampling, ..Continuation::default() })
}

/// Of 17 tokens: each sample continues in a block that the prompt fills in part.
#[test]
fn samples_that_share_a_prompt_are_what_each_would_be_alone() {
    let sampling = Sampling { seed: Some(3), temperature: 0.8, ..Sampling::default() };
    for config in [LLAMA, QWEN3] {
        for len in [17, 32] {
            let prompt: Vec<u32> = (0..len).map(|at| at * 3 % 131).collect();
            let roomy = engine(config, &options());
            let together = listen(roomy.ask(ask(&prompt, 4, sampling.clone(), 40)).unwrap());
            assert_eq!(together.samples.len(), 4);
            let distinct: BTreeSet<_> = together.samples.iter().map(|(tokens, _)| tokens.clone()).collect();
            assert_eq!(distinct.len(), 4, "samples differ");
            assert_nothing_left(&roomy);
            // Where blocks are short, samples wait, start alone or are computed again.
            let few = EngineOptions { kv_bytes: kv_bytes(config, 21, &options()), ..options() };
            let narrow = engine(config, &few);
            assert_eq!(
                listen(narrow.ask(ask(&prompt, 4, sampling.clone(), 40)).unwrap()).samples,
                together.samples
            );
            assert_nothing_left(&narrow);
        }
    }
}

#[test]
fn a_seed_gives_the_same_answer_whatever_else_runs() {
    let engine = engine(LLAMA, &options());
    let seeded = Sampling { seed: Some(9), ..Sampling::default() };
    let prompts = prompts(4);
    let alone = listen(engine.ask(ask(&prompts[1], 1, seeded.clone(), 30)).unwrap());
    let others: Vec<_> =
        prompts.iter().map(|prompt| engine.ask(ask(prompt, 1, Sampling::default(), 50)).unwrap()).collect();
    let among = listen(engine.ask(ask(&prompts[1], 1, seeded, 30)).unwrap());
    assert_eq!(alone.samples, among.samples);
    drop(others);
    assert_nothing_left(&engine);
}

#[test]
fn speculative_tokens_come_from_the_same_distribution_as_without() {
    let sampling =
        Sampling { seed: Some(4), temperature: 0.3, repetition_penalty: 1.1, ..Sampling::default() };
    let prompt: Vec<u32> = (0..60).map(|at| at % 7).collect();
    let without = listen(engine(LLAMA, &options()).ask(ask(&prompt, 1, sampling.clone(), 80)).unwrap());
    let speculating = engine(LLAMA, &EngineOptions { draft_tokens: 6, ..options() });
    let with = listen(speculating.ask(ask(&prompt, 1, sampling, 80)).unwrap());
    assert_eq!(without.samples, with.samples);
    assert!(speculating.state().drafted_tokens > 0);
}

#[test]
fn tokens_that_are_not_allowed_and_ends_of_bad_words_are_never_sampled() {
    for options in [options(), EngineOptions { draft_tokens: 5, ..options() }] {
        let engine = engine(LLAMA, &options);
        let prompt = &prompts(1)[0];
        let told = |text: Continuation| listen(engine.ask(Ask::text(prompt.clone(), text)).unwrap()).samples;
        let plain = Continuation { most: 30, sampling: Sampling::greedy(), ..Continuation::default() };
        let mut mask = vec![0; 5];
        mask[1] = 0b1011;
        let only = told(Continuation { allowed: Some(mask.into()), ..plain.clone() });
        assert!(
            only[0].0.len() == 30 && only[0].0.iter().all(|token| [32, 33, 35].contains(token)),
            "{only:?}"
        );
        let free = told(plain.clone());
        let run = free[0].0[4..7].to_vec();
        let single = vec![free[0].0[0]];
        let kept = told(Continuation { bad_words: vec![run.clone(), single.clone()], ..plain });
        assert!(!kept[0].0.contains(&single[0]));
        assert!(kept[0].0.windows(3).all(|three| three != run));
        assert_nothing_left(&engine);
    }
}

#[test]
fn log_probabilities_come_with_tokens_that_asked_for_them() {
    let engine = engine(LLAMA, &options());
    let text =
        Continuation { most: 5, logprobs: Some(3), sampling: Sampling::greedy(), ..Continuation::default() };
    let mut answer = engine.ask(Ask::text(prompts(1)[0].clone(), text)).unwrap();
    let mut seen = 0;
    while let Some(event) = answer.wait() {
        if let SampleEvent::Token { token, logprobs, .. } = event {
            let logprobs = logprobs.unwrap();
            assert_eq!(logprobs.top.len(), 3);
            assert_eq!(logprobs.top[0], (token, logprobs.of_token), "the greedy token is the most likely");
            assert!(logprobs.top[0].1 >= logprobs.top[1].1 && logprobs.top[0].1 <= 0.0);
            seen += 1;
        }
    }
    assert_eq!(seen, 5);
}

#[test]
fn a_sample_that_is_ended_gets_no_more_tokens_and_the_others_are_what_they_would_have_been() {
    let sampling = Sampling { seed: Some(3), temperature: 0.8, ..Sampling::default() };
    let engine = engine(LLAMA, &options());
    let prompt = &prompts(1)[0];
    let whole = listen(engine.ask(ask(prompt, 3, sampling.clone(), 200)).unwrap());
    assert_nothing_left(&engine);
    let before = engine.state().generated_tokens;
    let mut answer = engine.ask(ask(prompt, 3, sampling, 200)).unwrap();
    let mut told = vec![Vec::new(); 3];
    while let Some(event) = answer.wait() {
        if let SampleEvent::Token { sample, token, .. } = event {
            told[usize::from(sample)].push(token);
            if sample == 1 && told[1].len() == 5 {
                answer.ender().end(1);
            }
        }
    }
    let expected: Vec<_> = whole.samples.into_iter().map(|(tokens, _)| tokens).collect();
    assert_eq!((&told[0], &told[2]), (&expected[0], &expected[2]));
    // How many more come depends on how soon the engine looks.
    assert!(expected[1].starts_with(&told[1]) && told[1].len() >= 5);
    assert_nothing_left(&engine);
    let sampled: usize = told.iter().map(Vec::len).sum();
    assert_eq!(engine.state().generated_tokens - before, sampled as u64);
}

/// The first sample ends with its first token: the others still have their copy of the block that the prompt fills in part.
#[test]
fn a_sample_that_ends_at_once_leaves_the_prompt_to_the_others() {
    let sampling = Sampling { seed: Some(11), temperature: 1.5, ..Sampling::default() };
    for len in [17, 23, 31] {
        let prompt: Vec<u32> = (0..len).map(|at| (at * 3 + len) % 131).collect();
        let free = engine(LLAMA, &options());
        let expected = listen(free.ask(ask(&prompt, 4, sampling.clone(), 20)).unwrap());
        let end = expected.samples[0].0[0];
        let engine = engine_ending(LLAMA, &[end], &options());
        // Blocks that others have written to.
        (0..6).for_each(|of| drop(listen(engine.ask(ask(&[of; 40], 1, sampling.clone(), 60)).unwrap())));
        let told = listen(engine.ask(ask(&prompt, 4, sampling.clone(), 20)).unwrap());
        assert!(told.samples[0].0.is_empty(), "it ends at once");
        for (sample, whole) in told.samples.iter().zip(&expected.samples) {
            let until_end: Vec<u32> = whole.0.iter().copied().take_while(|token| *token != end).collect();
            assert_eq!(sample.0, until_end);
        }
    }
}
