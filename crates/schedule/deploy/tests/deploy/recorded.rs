//! Loads that are taken from a trace.

use bedplate_deploy::{DeployError, Longer, OfferedLoad, search};
use bedplate_perf::serving::WeightFormat;
use bedplate_replay::requests::{Planned, Prefix, TracedLoad, picoseconds};

use crate::support::{Question, question};

fn asked(requests: Vec<Planned>) -> Question {
    let mut question = question("llama-3.1-8b", "p5en.48xlarge:1", (1, 1, 1.0), (1000.0, 25.0));
    let traced = TracedLoad::new(requests).expect("it has requests");
    question.load = OfferedLoad::recorded(&traced, traced.per_second.expect("it has a rate"));
    question.traced = Some(traced);
    question.options.weights = vec![WeightFormat::Fp8];
    question
}

/// Prompts of 6,000 tokens that begin with the same `shared` blocks of 512.
fn requests(shared: usize) -> Vec<Planned> {
    let request = |at: u64| {
        let hashes =
            (0..11).map(|block| if block < shared { block as u64 } else { at * 1000 + block as u64 });
        Planned {
            prefix: Prefix::Hashes { block_tokens: 512, hashes: hashes.collect() },
            ..Planned::new(at * picoseconds(0.02), 6000, 100)
        }
    };
    (1..400).map(request).collect()
}

#[test]
fn what_a_trace_shares_saves_gpus() {
    let gpus = |shared: usize| {
        let question = asked(requests(shared));
        let answer = search(&question.need(), question.supplies()).expect("it holds");
        assert!(answer.best.shown.outcome.requests >= 2000);
        answer.best.plan.gpus()
    };
    let (alone, alike) = (gpus(0), gpus(10));
    assert!(alike < alone, "{alike} GPUs with shared prefixes, {alone} without");
}

#[test]
fn replays_are_made_of_recorded_requests() {
    let trace = (0..100).map(|at| {
        let prompt = if at % 10 == 0 { 5000 } else { 300 };
        Planned::new(at * picoseconds(0.1), prompt, 50)
    });
    let question = asked(trace.collect());
    assert_eq!(
        (question.load.input, question.load.context(), question.load.longest_prompt()),
        (770, 5050, 5000)
    );
    let answer = search(&question.need(), question.supplies()).expect("it holds");
    let records = &answer.best.shown.outcome.records;
    let long = records.iter().filter(|record| record.prompt_tokens == 5000).count() as f64;
    let share = long / records.len() as f64;
    assert!((0.07..0.13).contains(&share), "{share}");
    assert!(records.iter().all(|record| [300, 5000].contains(&record.prompt_tokens)));
}

#[test]
fn requests_beyond_the_context_are_counted_in_the_refusal() {
    let trace = (0..10).map(|at| Planned::new(at * picoseconds(1.0), if at < 3 { 500_000 } else { 100 }, 10));
    let question = asked(trace.collect());
    let error = search(&question.need(), question.supplies()).expect_err("it is too long");
    let expected = Some(Longer { requests: 3, of: 10 });
    assert!(
        matches!(error, DeployError::ContextTooLong { longer, asked: 500_010, .. } if longer == expected)
    );
}
