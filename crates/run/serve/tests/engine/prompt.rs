//! Log-probabilities of the prompt's own tokens, and answers without tokens.

use bedplate_serve::{Activations, Ask, Continuation, EndReason, EngineOptions, Logprobs, Replica, Sampling};

use crate::fixture::{
    LLAMA, MIXTRAL, QWEN3, Tiny, assert_nothing_left, engine, engine_with_draft, greedy, kv_bytes, listen,
    options, prompts,
};
use crate::same::ways;

fn scored(prompt: &[u32], most: u32) -> Ask {
    let text = Continuation {
        most,
        prompt_logprobs: Some(2),
        sampling: Sampling::greedy(),
        ..Continuation::default()
    };
    Ask::text(prompt.to_vec(), text)
}

/// What a prompt must be told with, from the whole text computed at once.
fn expected(tiny: &Tiny, prompt: &[u32]) -> Vec<(f64, u32, u32)> {
    let of_one = |(logits, token): (&Vec<f32>, &u32)| {
        let whole: f64 = logits.iter().map(|logit| f64::from(*logit).exp()).sum();
        let own = logits[*token as usize];
        let above = logits.iter().filter(|logit| **logit > own).count() as u32;
        let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let first = logits.iter().position(|logit| *logit == most).unwrap() as u32;
        (f64::from(own) - whole.ln(), above, first)
    };
    tiny.logits(prompt).iter().zip(&prompt[1..]).map(of_one).collect()
}

fn assert_told(told: &[Logprobs], expected: &[(f64, u32, u32)], way: &str) {
    assert_eq!(told.len(), expected.len(), "{way}");
    for (at, (told, (of_token, above, first))) in told.iter().zip(expected).enumerate() {
        assert!((f64::from(told.of_token) - of_token).abs() < 1e-4, "{way}, token {at}: {told:?} {of_token}");
        assert_eq!((told.above, told.top[0].0, told.top.len()), (*above, *first, 2), "{way}, token {at}");
    }
}

#[test]
fn prompts_are_scored_as_the_whole_text_however_they_are_computed() {
    let prompts = prompts(6);
    for config in [LLAMA, QWEN3, MIXTRAL] {
        let tiny = Tiny::new(config);
        let scores: Vec<_> = prompts.iter().map(|prompt| expected(&tiny, prompt)).collect();
        let continued: Vec<_> = prompts.iter().map(|prompt| tiny.continued(prompt, 40)).collect();
        for (way, options) in ways(config, &options()) {
            let engine = engine(config, &options);
            // The second time all prompts are cached.
            for _ in 0..2 {
                let answers: Vec<_> =
                    prompts.iter().map(|prompt| engine.ask(scored(prompt, 40)).unwrap()).collect();
                for ((answer, scores), continued) in answers.into_iter().zip(&scores).zip(&continued) {
                    let told = listen(answer);
                    assert_eq!((told.cached, &told.failed), (0, &None), "{way}");
                    assert_eq!(&told.samples[0].0, continued, "{way}");
                    assert_told(&told.prompt, scores, way);
                }
                assert_nothing_left(&engine);
            }
        }
    }
}

#[test]
fn scoring_leaves_a_prefix_for_others_and_takes_none() {
    let engine = engine(LLAMA, &options());
    let prompt: Vec<u32> = (0..150).map(|at| at * 3 % 131).collect();
    let first = listen(engine.ask(scored(&prompt, 0)).unwrap());
    assert_eq!(first.samples, [(Vec::new(), Some(EndReason::Length))]);
    let plain = listen(engine.ask(greedy(&prompt, 4)).unwrap());
    assert_eq!((plain.cached, plain.prompt.len()), (144, 0));
    let again = listen(engine.ask(scored(&prompt, 0)).unwrap());
    assert_eq!((again.cached, &again.prompt), (0, &first.prompt));
    let nothing = Continuation { most: 0, samples: 3, ..Continuation::default() };
    let told = listen(engine.ask(Ask::text(prompt.clone(), nothing)).unwrap());
    assert_eq!((told.samples, told.cached), (vec![(Vec::new(), Some(EndReason::Length)); 3], 144));
    assert_eq!(listen(engine.ask(scored(&[5], 1)).unwrap()).prompt, [], "the first token has none");
    assert_nothing_left(&engine);
}

#[test]
fn samples_share_the_scores_of_their_prompt_and_drafts_do_not_change_them() {
    let sampling = Sampling { seed: Some(3), temperature: 0.8, ..Sampling::default() };
    let prompt: Vec<u32> = (0..75).map(|at| at * 3 % 131).collect();
    let text = Continuation { most: 40, samples: 3, sampling, ..Continuation::default() };
    let wanted = Continuation { prompt_logprobs: Some(2), ..text.clone() };
    let scores = expected(&Tiny::new(LLAMA), &prompt);
    let few = EngineOptions { kv_bytes: kv_bytes(LLAMA, 21, &options()), ..options() };
    for options in [options(), few] {
        let engine = engine(LLAMA, &options);
        let plain = listen(engine.ask(Ask::text(prompt.clone(), text.clone())).unwrap());
        let told = listen(engine.ask(Ask::text(prompt.clone(), wanted.clone())).unwrap());
        assert_eq!(told.samples, plain.samples);
        assert_told(&told.prompt, &scores, "samples");
        assert_nothing_left(&engine);
    }
    let drafting = engine_with_draft(LLAMA, 5, &EngineOptions { draft_tokens: 4, ..options() });
    assert_told(&listen(drafting.ask(scored(&prompt, 20)).unwrap()).prompt, &scores, "drafts");
    assert!(drafting.state().accepted_tokens > 0);
}

/// In bf16 the tokens of neighbours do not change a score either.
#[test]
fn scores_in_bf16_do_not_depend_on_pieces_or_neighbours() {
    let base = EngineOptions { activations: Activations::Bf16, ..options() };
    let prompts = prompts(4);
    let alone = engine(QWEN3, &EngineOptions { max_seqs: 1, ..base.clone() });
    let score = |prompt: &Vec<u32>| listen(alone.ask(scored(prompt, 0)).unwrap()).prompt;
    let expected: Vec<_> = prompts.iter().map(score).collect();
    for options in [base.clone(), EngineOptions { chunk_tokens: 5, token_budget: 11, ..base }] {
        let engine = engine(QWEN3, &options);
        let answers: Vec<_> = prompts.iter().map(|prompt| engine.ask(scored(prompt, 0)).unwrap()).collect();
        for (answer, expected) in answers.into_iter().zip(&expected) {
            assert_eq!(&listen(answer).prompt, expected);
        }
    }
}
