//! The simulator of `replay` predicts the engine: both run the same scheduler, so that equal times of steps give equal times of tokens.
//!
//! Time is that of a clock which each step moves on by what the simulated engine would take, on any machine.

use std::sync::Arc;

use bedplate_batching::StepShape;
use bedplate_diag::Source;
use bedplate_kernels::{Device, WeightFormat};
use bedplate_network::{Architecture, Network, PackedWeights, Weights};
use bedplate_random::Random;
use bedplate_replay::requests::{
    DecodeTime, Fleet, LinearEngine, Picoseconds, Planned, Pool, StepTime, Traffic, picoseconds, simulate,
};

use super::Core;
use crate::engine::{LoadedModel, Prepared};
use crate::{Activations, Answer, Ask, Continuation, EngineOptions, SampleEvent, Sampling};

const CONFIG: &str = r#"{"model_type": "llama", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 67, "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5, "hidden_act": "silu"}"#;

/// When the first and the last token of each request came, after its arrival.
type Times = Vec<(Picoseconds, Picoseconds)>;

fn core(options: &EngineOptions) -> Core<f32> {
    let device = Device::cpu(1);
    let architecture = Architecture::from_config(Source::new("config.json", CONFIG)).expect("it is valid");
    let network = Network::new(&device, architecture, 256).expect("it fits");
    let mut weights = Weights::<f32>::zeros(&device, &network);
    network.initialise(&device, 5, &mut weights);
    let weights = PackedWeights::of(&network, &device, &weights, WeightFormat::F32);
    let loaded = LoadedModel { device, network, weights };
    let prepared = Prepared::new(loaded, None, Vec::new(), &[], options, None).expect("there is room");
    Core::new(prepared.parts, Arc::default(), Arc::default())
}

fn load(seed: u64, between: f64) -> Vec<Planned> {
    let mut random = Random::new(seed);
    let mut at = 0.0;
    (0..80)
        .map(|_| {
            at += random.exponential(between);
            Planned::new(picoseconds(at), 1 + random.below(150) as u32, 1 + random.below(60) as u32)
        })
        .collect()
}

fn took(engine: &LinearEngine, shape: &StepShape) -> Picoseconds {
    if shape.prefill_tokens > 0 {
        return engine.prefill(shape);
    }
    let DecodeTime { base, slope } = engine.decode(shape.decodes);
    base + slope * shape.decode_context
}

fn ask(number: usize, of: &Planned) -> Ask {
    let mut random = Random::stream(9, number as u64);
    let prompt = (0..of.prompt_tokens).map(|_| random.below(67) as u32).collect();
    let continuation = Continuation {
        most: of.output_tokens,
        ignores_end: true,
        sampling: Sampling::greedy(),
        ..Continuation::default()
    };
    Ask::text(prompt, continuation)
}

/// The load by the engine itself.
fn played(options: &EngineOptions, times: &LinearEngine, load: &[Planned]) -> Times {
    let mut core = core(options);
    let (mut clock, mut answers, mut told) = (0, Vec::<Answer>::new(), vec![(0, 0); load.len()]);
    while answers.len() < load.len() || !core.is_empty() {
        if core.is_empty() {
            clock = clock.max(load[answers.len()].at);
        }
        while let Some(next) = load.get(answers.len()).filter(|next| next.at <= clock) {
            let (teller, answer) = Answer::new();
            core.submit(answers.len() as u64, ask(answers.len(), next), None, teller);
            answers.push(answer);
        }
        core.step();
        clock += took(times, &core.parts.scheduler.last_step().shape);
        for (number, answer) in answers.iter_mut().enumerate() {
            while let Some(event) = answer.try_next() {
                if let SampleEvent::Token { .. } = event {
                    let since = clock - load[number].at;
                    let first = if told[number].0 == 0 { since } else { told[number].0 };
                    told[number] = (first, since);
                }
            }
        }
    }
    told
}

fn simulated(options: &EngineOptions, times: &LinearEngine, load: &[Planned]) -> Times {
    let scheduler = core(options).parts.scheduler.options().clone();
    let fleet = Fleet::aggregated(Pool { scheduler, ..Pool::new(1, times) });
    let outcome =
        simulate(Traffic::Trace(load.to_vec()), &fleet).expect("the engine runs with these settings");
    outcome.records.iter().map(|record| (record.ttft(), record.end_to_end())).collect()
}

#[test]
fn first_and_last_tokens_come_when_the_simulator_says() {
    let times = LinearEngine::default();
    let usual = EngineOptions {
        activations: Activations::F32,
        kv_bytes: 4 << 20,
        token_budget: 96,
        chunk_tokens: 64,
        max_seqs: 6,
        ..EngineOptions::default()
    };
    // What was computed before a preemption would be found again, and the simulator is told of no prefixes here.
    let few_blocks = EngineOptions { keeps_prefixes: false, kv_bytes: 28 * 16 * 2 * 8 * 4, ..usual.clone() };
    let whole = EngineOptions { token_budget: 512, chunk_tokens: 512, max_seqs: 64, ..usual.clone() };
    for (seed, options) in [&usual, &few_blocks, &whole].into_iter().enumerate() {
        for between in [0.02, 0.2, 1.0] {
            let load = load(seed as u64, between);
            let is_same = played(options, &times, &load) == simulated(options, &times, &load);
            assert!(is_same, "load {seed}, a request every {between} s");
        }
    }
}
