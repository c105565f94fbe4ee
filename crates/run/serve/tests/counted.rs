//! What a decoded token costs the engine: allocations, and work started on a GPU, counted, so that slow decay shows.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

#[expect(dead_code, reason = "the other tests need more of it")]
#[path = "engine/fixture.rs"]
mod fixture;

use bedplate_fakenvml::{launches, on_stand_in};
use bedplate_kernels::{Bf16, Device, WeightFormat};
use bedplate_network::{Network, PackedWeights, Weights};
use bedplate_serve::{Activations, Engine, EngineOptions, Replica};
use bedplate_testkit::counting::{self, CountingAllocator, assert_at_most};

use fixture::{CONTEXT, QWEN3, architecture, assert_nothing_left, engine, greedy, options, prompts, tokens};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Some answers at once, each so many tokens long.
fn answer(engine: &Engine, answers: u32, each: u32) {
    let answers: Vec<_> =
        prompts(answers).iter().map(|prompt| engine.ask(greedy(prompt, each)).unwrap()).collect();
    answers.into_iter().for_each(|answer| assert_eq!(tokens(answer).len(), each as usize));
    assert_nothing_left(engine);
}

/// What 100 more tokens for each of some answers cost, of what `count` counts while it does some work.
fn cost_of_100_steps(engine: &Engine, answers: u32, count: impl Fn(&dyn Fn()) -> u64) -> u64 {
    answer(engine, answers, 200);
    let [few, many] = [100, 200].map(|each| count(&|| answer(engine, answers, each)));
    many - few
}

#[test]
fn a_decoded_token_costs_few_allocations_and_launches() {
    let engine = engine(QWEN3, &options());
    let allocations = cost_of_100_steps(&engine, 4, |work| counting::of_process(work).1.count);
    assert_at_most("allocations per decoded token", allocations.div_ceil(400), 4);
    let (said, calls) = on_stand_in("tokens_on_the_stand_in", "").unwrap();
    assert!(said.contains("1 passed"), "{said}");
    let begun = calls.iter().rposition(|call| call == "cuStreamBeginCapture_v2").expect("a step is captured");
    let graph = calls[begun..].iter().take_while(|call| *call != "cuStreamEndCapture");
    let kernels = graph.filter(|call| *call == "cuLaunchKernelEx" || *call == "cublasLtMatmul").count();
    assert_at_most("kernels in the graph of a step of decoding", kernels, 29);
}

/// In a process of its own, whose GPU computes nothing; elsewhere it has nothing to do.
#[test]
fn tokens_on_the_stand_in() {
    if std::env::var_os("BEDPLATE_TEST_CHILD").is_none() {
        return;
    }
    let device = Device::cuda(0).unwrap();
    let network = Network::new(&device, architecture(QWEN3), CONTEXT).unwrap();
    let weights = Weights::<f32>::zeros(&device, &network);
    let packed = PackedWeights::<Bf16>::of(&network, &device, &weights, WeightFormat::Bf16);
    let options = EngineOptions { activations: Activations::Bf16, ..options() };
    let engine = Engine::with_weights(device, network, packed, None, Vec::new(), &[], &options).unwrap().0;
    let started = cost_of_100_steps(&engine, 1, |work| {
        let before = launches().unwrap();
        work();
        launches().unwrap() - before
    });
    assert_at_most("launches of 100 steps of decoding", started, 100);
}
