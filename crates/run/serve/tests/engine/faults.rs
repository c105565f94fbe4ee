//! Clients that go away, and more of them than there is room for.

use std::sync::Arc;
use std::thread;

use bedplate_batching::PreemptionMode;
use bedplate_kernels::{Bf16, Device, KvFormat, WeightFormat};
use bedplate_network::{Network, PackedWeights};
use bedplate_random::Random;
use bedplate_serve::{
    Activations, Ask, Continuation, Engine, EngineOptions, Grammar, Parser, Refusal, Replica, SampleEvent,
    Sampling, ServeError,
};

use crate::fixture::{
    CONTEXT, LLAMA, architecture, assert_nothing_left, engine, greedy, kv_bytes, listen, options, prompts,
};

#[test]
fn an_answer_that_is_dropped_frees_its_blocks() {
    let engine = engine(LLAMA, &options());
    for tokens in [0, 1, 5, 30] {
        let mut answer = engine.ask(greedy(&prompts(3)[2], 200)).unwrap();
        for _ in 0..tokens {
            answer.wait();
        }
        drop(answer);
        assert_nothing_left(&engine);
    }
}

/// A bug in the engine's thread, planted where it samples.
#[derive(Debug)]
struct Broken;

impl Grammar for Broken {
    fn parser(&self) -> Box<dyn Parser> {
        Box::new(Broken)
    }
}

impl Parser for Broken {
    fn allow(&mut self, _: &mut [u32]) -> Result<(), String> {
        panic!("a planted bug")
    }

    fn accept(&mut self, _: u32) -> Result<(), String> {
        Ok(())
    }
}

#[test]
fn a_panic_of_the_engine_reaches_every_request_with_its_words() {
    let engine = engine(LLAMA, &options());
    let mut innocent = engine.ask(greedy(&prompts(1)[0], 250)).unwrap();
    let grammar: Arc<dyn Grammar> = Arc::new(Broken);
    let text = Continuation { most: 5, grammar: Some(grammar), ..Continuation::default() };
    let mut guilty = engine.ask(Ask::text(prompts(2)[1].clone(), text)).unwrap();
    for answer in [&mut guilty, &mut innocent] {
        let mut last = None;
        while let Some(event) = answer.wait() {
            last = Some(event);
        }
        let Some(SampleEvent::Failed(why)) = last else { panic!("it ended with {last:?}") };
        assert!(why.contains("a bug in its engine: a planted bug"), "{why}");
    }
    let Err(Refusal::Stopped { reason }) = engine.ask(greedy(&[1], 1)) else { panic!("it goes on") };
    assert!(reason.contains("a planted bug"), "{reason}");
}

#[test]
fn keys_and_values_of_fp8_are_refused_by_a_processor() {
    let device = Device::cpu(1);
    let network = Network::new(&device, architecture(LLAMA), CONTEXT).unwrap();
    let packed = PackedWeights::<Bf16>::random(&network, &device, 1, WeightFormat::Bf16);
    let options = EngineOptions { kv: KvFormat::Fp8, activations: Activations::Bf16, ..options() };
    let started = Engine::with_weights(device, network, packed, None, Vec::new(), &[], &options);
    assert!(matches!(started, Err(ServeError::KvFormat)));
}

/// A storm of requests of all kinds, of which many are given up; then the calm, in which nothing is left and answers are right.
#[test]
fn a_thousand_requests_with_random_disconnects_leak_nothing() {
    let kinds = [
        options(),
        EngineOptions { kv_bytes: kv_bytes(LLAMA, 24, &options()), draft_tokens: 3, ..options() },
        EngineOptions {
            kv_bytes: kv_bytes(LLAMA, 24, &options()),
            preemption: PreemptionMode::Swap,
            swap_bytes: 1 << 20,
            spill_bytes: 1 << 20,
            ..options()
        },
    ];
    for (kind, options) in kinds.into_iter().enumerate() {
        let engine = engine(LLAMA, &options);
        let prompts = prompts(5);
        let expected = listen(engine.ask(greedy(&prompts[3], 20)).unwrap());
        thread::scope(|scope| {
            for client in 0..8 {
                let (engine, prompts) = (&engine, &prompts);
                scope.spawn(move || {
                    let mut random = Random::stream(20_261_116, client);
                    for _ in 0..45 {
                        let text = Continuation {
                            most: 1 + random.below(30) as u32,
                            samples: 1 + random.below(3) as u16,
                            sampling: Sampling { temperature: 0.5, ..Sampling::default() },
                            ..Continuation::default()
                        };
                        let mut answer = engine
                            .ask(Ask::text(
                                random.pick(&[0, 1, 2, 3, 4].map(|at| prompts[at].as_slice())).to_vec(),
                                text,
                            ))
                            .unwrap();
                        if random.chance(50) {
                            let heard = random.below(20);
                            (0..heard).for_each(|_| drop(answer.wait()));
                        } else {
                            assert_eq!(listen(answer).failed, None);
                        }
                    }
                });
            }
        });
        assert_nothing_left(&engine);
        let again = listen(engine.ask(greedy(&prompts[3], 20)).unwrap());
        assert_eq!(again.samples, expected.samples, "of engine {kind}");
    }
}

#[test]
fn more_requests_than_may_wait_are_refused() {
    let engine = engine(LLAMA, &EngineOptions { waiting_limit: 3, ..options() });
    let answers: Vec<_> = (0..3).map(|_| engine.ask(greedy(&prompts(1)[0], 250)).unwrap()).collect();
    assert_eq!(engine.ask(greedy(&[1], 1)).expect_err("three are here"), Refusal::Full { limit: 3 });
    drop(answers);
    assert_nothing_left(&engine);
    assert!(engine.ask(greedy(&[1], 1)).is_ok());
}

#[test]
fn an_engine_that_is_dropped_ends_its_answers() {
    let engine = engine(LLAMA, &options());
    let answer = engine.ask(greedy(&prompts(1)[0], 250)).unwrap();
    drop(engine);
    let told = listen(answer);
    assert!(told.samples.iter().all(|(_, end)| end.is_none()), "{told:?}");
}
