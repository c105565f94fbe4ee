//! The engine's steps are the scheduler's: what `replay` simulates is what runs.

use bedplate_batching::{BlockKey, Request, Scheduler, SchedulerOptions, StepShape};
use bedplate_serve::{EngineOptions, Replica};

use crate::fixture::{LLAMA, engine, greedy, listen, options};

/// Requests one after the other, so that nothing depends on when they come; every second begins like the one before it.
#[test]
fn steps_of_the_engine_are_those_that_the_scheduler_plans_in_virtual_time() {
    let options = EngineOptions { chunk_tokens: 24, ..options() };
    let engine = engine(LLAMA, &options);
    let requests: Vec<(Vec<u32>, u32)> = (0..6)
        .map(|of| ((0..40 + of * 8).map(|at| (at * 3 + of / 2 * 31) % 131).collect(), 3 + of))
        .collect();
    let about = engine.about();
    let mut scheduler = Scheduler::new(SchedulerOptions {
        block_tokens: about.block_tokens,
        blocks: about.blocks,
        token_budget: options.token_budget,
        chunk_tokens: options.chunk_tokens,
        max_seqs: options.max_seqs,
        context_limit: about.context_limit,
        watermark_blocks: (about.blocks / 100).min(160),
        ..SchedulerOptions::default()
    })
    .unwrap();
    let keys = |prompt: &[u32]| {
        let mut last = BlockKey(1);
        prompt
            .chunks_exact(16)
            .map(|block| {
                last = block.iter().fold(last, |key, token| key.then(u64::from(*token)));
                last
            })
            .collect()
    };
    engine.take_steps();
    for (number, (prompt, most)) in requests.iter().enumerate() {
        listen(engine.ask(greedy(prompt, *most)).unwrap());
        let request =
            Request { keys: keys(prompt), ..Request::new(number as u64, prompt.len() as u32, *most) };
        scheduler.submit(request, 0).unwrap();
        let mut planned: Vec<StepShape> = Vec::new();
        while !scheduler.is_empty() {
            planned.push(scheduler.step(0, 1).shape);
            scheduler.complete(1);
        }
        // The last answer has come when its step is being logged.
        let mut run = Vec::new();
        while run.len() < planned.len() {
            run.extend(engine.take_steps().iter().map(|step| step.shape));
        }
        assert_eq!(run, planned, "request {number}");
    }
}
