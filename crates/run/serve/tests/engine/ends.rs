//! When answers end, and what they may be.

use std::sync::Arc;

use bedplate_serve::{Ask, Continuation, EndReason, Grammar, Parser, Refusal, Replica, Sampling, Wants};

use crate::fixture::{
    CONTEXT, LLAMA, assert_nothing_left, engine, engine_ending, greedy, listen, options, prompts, tokens,
};

#[test]
fn an_end_token_ends_an_answer_and_is_not_part_of_it() {
    let prompt = &prompts(1)[0];
    let free = tokens(engine(LLAMA, &options()).ask(greedy(prompt, 60)).unwrap());
    let at = (10..60).find(|at| !free[..*at].contains(&free[*at])).unwrap();
    let (end, before) = (free[at], free[..at].to_vec());
    let engine = engine_ending(LLAMA, &[end], &options());
    let told = listen(engine.ask(greedy(prompt, 60)).unwrap());
    assert_eq!(told.samples, [(before.clone(), Some(EndReason::Stop))]);
    let with = |change: &dyn Fn(&mut Continuation)| {
        let mut text = Continuation { most: 60, sampling: Sampling::greedy(), ..Continuation::default() };
        change(&mut text);
        listen(engine.ask(Ask::text(prompt.clone(), text)).unwrap()).samples
    };
    assert_eq!(with(&|text| text.ignores_end = true), [(free.clone(), Some(EndReason::Length))]);
    let later = with(&|text| text.least = 60);
    assert_eq!((later[0].0.len(), later[0].0[..at].to_vec()), (60, before));
    assert!(!later[0].0.contains(&end));
    assert_eq!(with(&|text| text.stop_tokens = vec![free[3]]), [(free[..3].to_vec(), Some(EndReason::Stop))]);
    assert_nothing_left(&engine);
}

/// Every third number counts, and after five of them nothing but the end.
#[derive(Debug)]
struct Thirds;

struct ThirdsParser(usize);

impl Grammar for Thirds {
    fn parser(&self) -> Box<dyn Parser> {
        Box::new(ThirdsParser(0))
    }
}

impl Parser for ThirdsParser {
    fn allow(&mut self, mask: &mut [u32]) -> Result<(), String> {
        let allowed: Vec<u32> = if self.0 < 5 { (0..131).step_by(3).collect() } else { vec![130] };
        allowed.iter().for_each(|token| mask[*token as usize / 32] |= 1 << (token % 32));
        Ok(())
    }

    fn accept(&mut self, _: u32) -> Result<(), String> {
        self.0 += 1;
        Ok(())
    }
}

#[test]
fn a_grammar_decides_what_may_be_sampled() {
    let engine =
        engine_ending(LLAMA, &[130], &bedplate_serve::EngineOptions { draft_tokens: 4, ..options() });
    let text =
        Continuation { most: 60, samples: 2, grammar: Some(Arc::new(Thirds)), ..Continuation::default() };
    let told = listen(engine.ask(Ask::text(prompts(1)[0].clone(), text)).unwrap());
    for (tokens, end) in told.samples {
        assert_eq!((tokens.len(), end), (5, Some(EndReason::Stop)));
        assert!(tokens.iter().all(|token| token % 3 == 0), "{tokens:?}");
    }
    assert_nothing_left(&engine);
}

#[test]
fn what_can_never_be_answered_is_refused_with_the_reason() {
    let engine = engine(LLAMA, &options());
    let refused = |ask: Ask| engine.ask(ask).expect_err("it cannot be answered");
    assert_eq!(
        refused(greedy(&vec![1; CONTEXT], 1)).to_string(),
        "prompt and output have 321 tokens, but the context holds at most 320"
    );
    assert_eq!(refused(greedy(&[131], 1)), Refusal::NoSuchToken { token: 131, vocabulary: 131 });
    assert!(matches!(refused(greedy(&[], 1)), Refusal::Never(_)));
    let adapted = Ask { adapter: Some("none".into()), ..greedy(&[1], 1) };
    assert_eq!(refused(adapted), Refusal::NoSuchAdapter { name: "none".into() });
    engine.drain();
    assert_eq!(refused(greedy(&[1], 1)), Refusal::Draining);
}

#[test]
fn the_whole_context_can_be_used() {
    let engine = engine(LLAMA, &options());
    let prompt = vec![1; CONTEXT - 20];
    assert_eq!(tokens(engine.ask(greedy(&prompt, 20)).unwrap()).len(), 20);
    assert_nothing_left(&engine);
}

#[test]
fn an_embedding_has_length_one_and_follows_from_the_prompt() {
    let engine = engine(LLAMA, &options());
    let embed = |prompt: &[u32]| {
        let ask = Ask { wants: Wants::Embedding, ..greedy(prompt, 1) };
        listen(engine.ask(ask).unwrap()).embedding
    };
    let prompts = prompts(2);
    let (first, again, other) = (embed(&prompts[0]), embed(&prompts[0]), embed(&prompts[1]));
    assert_eq!(first.len(), 48);
    assert!((first.iter().map(|number| number * number).sum::<f32>() - 1.0).abs() < 1e-5);
    assert_eq!(first, again);
    assert_ne!(first, other);
    assert_nothing_left(&engine);
}
