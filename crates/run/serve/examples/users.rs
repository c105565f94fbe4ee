//! Users who decode at the same time on a GPU, with random weights of a built-in shape and tokens sampled as each way of sampling says, and a prompt of its own:
//! `cargo run --release -p bedplate-serve --example users -- [MODEL] [bf16|fp8|int8|int4] [SEQUENCES,…] [PROMPT] [TOKENS] [all]`
//! Without `all` tokens are greedy.
#![expect(clippy::print_stdout, reason = "a program for people")]

use std::error::Error;
use std::thread;
use std::time::Instant;

use bedplate_kernels::{Bf16, DeviceChoice, WeightFormat};
use bedplate_network::{Architecture, Network, PackedWeights};
use bedplate_serve::{Ask, Continuation, Engine, EngineOptions, Replica, SampleEvent, Sampling};

/// Tokens of the prompt that is timed alone.
const LONG: u32 = 8192;

fn main() -> Result<(), Box<dyn Error>> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let word = |at: usize, usual: &'static str| given.get(at).map_or(usual, String::as_str);
    let format = WeightFormat::ALL.into_iter().find(|format| format.name() == word(1, "bf16"));
    let format = format.ok_or("no such format")?;
    let loads: Vec<u32> = word(2, "64").split(',').map(str::parse).collect::<Result<_, _>>()?;
    let (prompt, tokens): (u32, u32) = (word(3, "352").parse()?, word(4, "64").parse()?);
    let choice = DeviceChoice::Cuda(0);
    let device = choice.open(1)?;
    let architecture = Architecture::from_shape(bedplate_transformer::builtin(word(0, "llama-3.1-8b"))?)?;
    let network = Network::new(&device, architecture, LONG as usize + 64)?;
    let weights = PackedWeights::<Bf16>::random(&network, &device, 1, format);
    let options = EngineOptions {
        device: choice,
        weights: Some(format),
        context_limit: LONG + 64,
        kv_bytes: 40 << 30,
        token_budget: 2048,
        chunk_tokens: 2048,
        max_seqs: loads.iter().copied().max().unwrap_or(0).max(64),
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
    let mut ways = vec![("greedy", Sampling::greedy())];
    if word(5, "") == "all" {
        ways.extend([
            ("temperature 1", plain.clone()),
            ("top-p 0.9", Sampling { top_p: 0.9, ..plain.clone() }),
            (
                "top-k 50, top-p 0.9, temperature 0.7",
                Sampling { top_k: 50, top_p: 0.9, temperature: 0.7, ..plain },
            ),
        ]);
    }
    for long in [1024, LONG] {
        first_token(&engine, long, 1_000_000);
        let took = first_token(&engine, long, 2_000_000);
        println!("a prompt of {long}: {:.1} ms, {:.0} tokens/s", 1e3 * took, f64::from(long) / took);
    }
    for sequences in loads {
        for (at, (name, sampling)) in ways.iter().enumerate() {
            // Kernels are compiled and the step is captured.
            decode(&engine, sequences, 64, 16 + sequences / 32, sampling, 3_000_000);
            // Those that have been prompted decode while others are.
            let more = tokens + sequences * prompt / options.token_budget;
            let rate = decode(&engine, sequences, prompt, more, sampling, at as u64 * 10_000);
            let step = 1e3 * f64::from(sequences) / rate;
            println!(
                "{sequences} sequences behind {prompt} tokens, {name}: {rate:.0} tokens/s, {step:.3} ms a step"
            );
        }
    }
    Ok(())
}

/// Seconds until a request's first token.
fn first_token(engine: &Engine, prompt: u32, stream: u64) -> f64 {
    let began = Instant::now();
    let mut answer = engine.ask(ask(prompt, 1, Sampling::greedy(), stream)).expect("it fits");
    while let Some(event) = answer.wait() {
        if let SampleEvent::Token { .. } = event {
            return began.elapsed().as_secs_f64();
        }
    }
    f64::NAN
}

fn ask(prompt: u32, most: u32, sampling: Sampling, stream: u64) -> Ask {
    let mut random = bedplate_random::Random::stream(7, stream);
    let prompt = (0..prompt).map(|_| random.below(100_000) as u32).collect();
    Ask::text(prompt, Continuation { most, ignores_end: true, sampling, ..Continuation::default() })
}

/// Tokens per second while all sequences decode: from the last first token to the first last one.
fn decode(engine: &Engine, sequences: u32, prompt: u32, tokens: u32, sampling: &Sampling, first: u64) -> f64 {
    let began = Instant::now();
    let asked = |number| ask(prompt, tokens, sampling.clone(), first + number);
    let answers: Vec<_> =
        (0..u64::from(sequences)).map(|number| engine.ask(asked(number)).expect("it fits")).collect();
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
