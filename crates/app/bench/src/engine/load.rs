//! Requests to an engine, and when their tokens came.

use std::thread;
use std::time::{Duration, Instant};

use bedplate_serve::{Answer, Ask, Continuation, Engine, Replica, SampleEvent, Sampling};
use bedplate_terminal::Console;

use super::prompt;

/// When the tokens of one request came, since it was asked.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Times {
    pub(super) first: f64,
    pub(super) last: f64,
    pub(super) tokens: u32,
}

impl Times {
    /// Mean time between tokens.
    pub(super) fn between(&self) -> Option<f64> {
        (self.tokens > 1).then(|| (self.last - self.first) / f64::from(self.tokens - 1))
    }
}

pub(super) fn ask(engine: &Engine, prompt: Vec<u32>, tokens: u32) -> Answer {
    let continuation = Continuation {
        most: tokens,
        ignores_end: true,
        sampling: Sampling::greedy(),
        ..Continuation::default()
    };
    engine.ask(Ask::text(prompt, continuation)).expect("it fits")
}

pub(super) fn times(began: Instant, mut answer: Answer) -> Times {
    let mut times = Times::default();
    while let Some(event) = answer.wait() {
        if let SampleEvent::Token { .. } = event {
            times.last = began.elapsed().as_secs_f64();
            if times.tokens == 0 {
                times.first = times.last;
            }
            times.tokens += 1;
        }
    }
    times
}

/// Tokens of the prompts before what is decoded where nothing else is said, and of what is decoded.
pub(super) const PROMPT: u32 = 32;
pub(super) const TOKENS: u32 = 64;

/// Tokens per second in the ways that users meet.
pub(super) struct Speed {
    /// Tokens of the prompts before what is decoded.
    pub(super) prompt: u32,
    /// Sequences at once, and tokens per second of all of them.
    pub(super) decodes: Vec<(u32, f64)>,
    pub(super) prefill: f64,
    pub(super) cold_first: f64,
    pub(super) cached_first: f64,
    /// What of the steps of many sequences was not computing.
    pub(super) host_share: f64,
}

impl Speed {
    /// Of so many sequences each, behind prompts of which a step computes `at_once` tokens.
    pub(super) fn measure(
        engine: &Engine,
        counts: &[u32],
        before: u32,
        at_once: u32,
        console: &Console,
    ) -> Self {
        let mut number = 0;
        let mut fresh = |tokens| {
            number += 1;
            prompt(engine, number, tokens)
        };
        // Pages are touched and caches are warm.
        times(Instant::now(), ask(engine, fresh(64), 8));
        let mut decodes = Vec::new();
        let begun = engine.state();
        for sequences in counts.iter().copied() {
            console.say(&format!("{sequences} sequences at once"));
            let prompts: Vec<_> = (0..sequences).map(|_| fresh(before)).collect();
            // Those that have been prompted decode while others are, a token for each step that this takes.
            let tokens = TOKENS + sequences * before / at_once;
            decodes.push((sequences, together(engine, prompts, tokens)));
        }
        let after = engine.state();
        let share = |of: fn(&bedplate_serve::EngineState) -> u64| (of(&after) - of(&begun)) as f64;
        let host_share =
            share(|state| state.host_nanoseconds) / share(|state| state.step_nanoseconds).max(1.0);
        console.say("prompts");
        let first = |prompt| first(engine, prompt);
        let prefill = 1024.0 / (0..3).map(|_| first(fresh(1024))).fold(f64::INFINITY, f64::min);
        let long = fresh(2000);
        let cold_first = first(long.clone());
        let cached_first = (0..3).map(|_| first(long.clone())).fold(f64::INFINITY, f64::min);
        Self { prompt: before, decodes, prefill, cold_first, cached_first, host_share }
    }
}

/// Seconds to the first token after a prompt.
pub(super) fn first(engine: &Engine, prompt: Vec<u32>) -> f64 {
    times(Instant::now(), ask(engine, prompt, 1)).first
}

/// Tokens per second while all sequences decode: from the last first token to the first last one.
pub(super) fn together(engine: &Engine, prompts: Vec<Vec<u32>>, tokens: u32) -> f64 {
    let began = Instant::now();
    let answers: Vec<_> = prompts.into_iter().map(|prompt| ask(engine, prompt, tokens)).collect();
    let moments: Vec<Vec<f64>> = thread::scope(|scope| {
        let threads: Vec<_> =
            answers.into_iter().map(|answer| scope.spawn(move || moments(began, answer))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_default()).collect()
    });
    let edge = |of: fn(&Vec<f64>) -> Option<&f64>| moments.iter().filter_map(of).copied();
    let from = edge(|of| of.first()).fold(f64::NEG_INFINITY, f64::max);
    let until = edge(|of| of.last()).fold(f64::INFINITY, f64::min);
    let within = moments.iter().flatten().filter(|moment| (from..until).contains(*moment)).count();
    within as f64 / (until - from)
}

/// When each token came.
fn moments(began: Instant, mut answer: Answer) -> Vec<f64> {
    let mut moments = Vec::new();
    while let Some(event) = answer.wait() {
        if let SampleEvent::Token { .. } = event {
            moments.push(began.elapsed().as_secs_f64());
        }
    }
    moments
}

/// Sends requests when they are due and gives their times, in the same order.
pub(super) fn play(engine: &Engine, due: &[(f64, Vec<u32>, u32)]) -> Vec<Times> {
    let began = Instant::now();
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for (at, prompt, tokens) in due {
            let wait = *at - began.elapsed().as_secs_f64();
            if wait > 0.0 {
                thread::sleep(Duration::from_secs_f64(wait));
            }
            let asked = Instant::now();
            let answer = ask(engine, prompt.clone(), *tokens);
            threads.push(scope.spawn(move || times(asked, answer)));
        }
        threads.into_iter().map(|thread| thread.join().unwrap_or_default()).collect()
    })
}
