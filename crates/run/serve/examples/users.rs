//! Users who decode at the same time on a GPU, with random weights of Llama 3.1 8B's shape and tokens sampled as each way of sampling says:
//! `cargo run --release -p bedplate-serve --example users -- [bf16|fp8|int8] [SEQUENCES] [PROMPT] [TOKENS]`
#![expect(clippy::print_stdout, reason = "a program for people")]

use std::error::Error;
use std::thread;
use std::time::Instant;

use bedplate_kernels::{Bf16, DeviceChoice, WeightFormat};
use bedplate_network::{Architecture, Network, PackedWeights};
use bedplate_serve::{Ask, Continuation, Engine, EngineOptions, Replica, SampleEvent, Sampling};

fn main() -> Result<(), Box<dyn Error>> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, usual: u32| given.get(at).map_or(Ok(usual), |text| text.parse());
    let name = given.first().map_or("bf16", String::as_str);
    let format =
        WeightFormat::ALL.into_iter().find(|format| format.name() == name).ok_or("no such format")?;
    let (sequences, prompt, tokens) = (number(1, 64)?, number(2, 352)?, number(3, 64)?);
    let choice = DeviceChoice::Cuda(0);
    let device = choice.open(1)?;
    let architecture = Architecture::from_shape(bedplate_transformer::builtin("llama-3.1-8b")?)?;
    let network = Network::new(&device, architecture, 4096)?;
    let weights = PackedWeights::<Bf16>::random(&network, &device, 1, format);
    let options = EngineOptions {
        device: choice,
        weights: Some(format),
        context_limit: 4096,
        kv_bytes: 48 << 30,
        token_budget: 2048,
        chunk_tokens: 2048,
        max_seqs: sequences.max(64),
        ..EngineOptions::default()
    };
    let (engine, memory) = Engine::with_weights(device, network, weights, None, Vec::new(), &[], &options)?;
    println!(
        "{}, weights {:.2} GB in {}",
        memory.instructions,
        memory.weights as f64 / 1e9,
        memory.weight_format
    );
    let plain = Sampling { seed: Some(1), ..Sampling::default() };
    let ways = [
        ("greedy", Sampling::greedy()),
        ("temperature 1", plain.clone()),
        ("top-p 0.9", Sampling { top_p: 0.9, ..plain.clone() }),
        (
            "top-k 50, top-p 0.9, temperature 0.7",
            Sampling { top_k: 50, top_p: 0.9, temperature: 0.7, ..plain },
        ),
    ];
    // Kernels are compiled and the step is recorded.
    decode(&engine, sequences, 64, 16 + sequences / 32, &ways[1].1, 1_000_000);
    for (at, (name, sampling)) in ways.iter().enumerate() {
        // Those that have been prompted decode while others are.
        let more = tokens + sequences * prompt / options.token_budget;
        let rate = decode(&engine, sequences, prompt, more, sampling, at as u64 * 10_000);
        let step = 1e3 * f64::from(sequences) / rate;
        println!(
            "{sequences} sequences behind {prompt} tokens, {name}: {rate:.0} tokens/s, {step:.3} ms a step"
        );
    }
    Ok(())
}

/// Tokens per second while all sequences decode: from the last first token to the first last one.
fn decode(engine: &Engine, sequences: u32, prompt: u32, tokens: u32, sampling: &Sampling, first: u64) -> f64 {
    let began = Instant::now();
    let ask = |number: u64| {
        let mut random = bedplate_random::Random::stream(7, first + number);
        let prompt = (0..prompt).map(|_| random.below(128_000) as u32).collect();
        let continuation = Continuation {
            most: tokens,
            ignores_end: true,
            sampling: sampling.clone(),
            ..Continuation::default()
        };
        engine.ask(Ask::text(prompt, continuation)).expect("it fits")
    };
    let answers: Vec<_> = (0..u64::from(sequences)).map(ask).collect();
    let moments: Vec<Vec<f64>> = thread::scope(|scope| {
        let listen = |mut answer: bedplate_serve::Answer| {
            scope.spawn(move || {
                let mut moments = Vec::new();
                while let Some(event) = answer.wait() {
                    if let SampleEvent::Token { .. } = event {
                        moments.push(began.elapsed().as_secs_f64());
                    }
                }
                moments
            })
        };
        let threads: Vec<_> = answers.into_iter().map(listen).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_default()).collect()
    });
    let edge = |of: fn(&Vec<f64>) -> Option<&f64>| moments.iter().filter_map(of).copied();
    let from = edge(|of| of.first()).fold(f64::NEG_INFINITY, f64::max);
    let until = edge(|of| of.last()).fold(f64::INFINITY, f64::min);
    moments.iter().flatten().filter(|moment| (from..until).contains(*moment)).count() as f64 / (until - from)
}
