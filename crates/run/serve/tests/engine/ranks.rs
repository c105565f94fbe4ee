//! A model that is cut over ranks answers as one that is whole.

use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use bedplate_comm::{Rendezvous, World, WorldOptions};
use bedplate_kernels::WeightFormat;
use bedplate_serve::{Activations, Engine, EngineOptions, Model, Replica, WorkerGroup, follow};

use crate::fixture::{
    GPT_OSS, LLAMA, MIXTRAL, QWEN3, Tiny, assert_nothing_left, folder, greedy, kv_bytes, listen, options,
    prompts, tokens,
};

/// A model's folder with the weights of [`Tiny`], for as long as it is used.
struct Saved {
    model: Model,
}

impl Saved {
    fn new(config: &str) -> Self {
        let Tiny { device, network, weights } = Tiny::new(config);
        let folder = folder("ranks");
        bedplate_network::save(&network, &device, &weights, &folder).unwrap();
        Self { model: Model::open(&folder).unwrap() }
    }
}

impl Drop for Saved {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.model.folder);
    }
}

fn group(rank: u32, ranks: u32, port: u16) -> WorkerGroup {
    let rendezvous = Rendezvous::on_this_machine(rank, ranks, port, b"a secret of the tests");
    let (join, patience, deadline) =
        (Duration::from_secs(120), Duration::from_secs(120), Duration::from_secs(60));
    let options = WorldOptions { join, patience, deadline, ..WorldOptions::default() };
    WorkerGroup::new(World::join(&rendezvous, &options).unwrap()).unwrap()
}

/// Runs `work` with an engine on so many ranks.
fn on_ranks(model: &Model, ranks: u32, options: &EngineOptions, work: impl FnOnce(&Engine)) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    thread::scope(|scope| {
        for rank in 1..ranks {
            scope.spawn(move || follow(model, group(rank, ranks, port), options).unwrap());
        }
        let (engine, _) = Engine::lead(model, group(0, ranks, port), options).unwrap();
        work(&engine);
        assert_nothing_left(&engine);
    });
}

#[test]
fn two_ranks_give_the_tokens_of_the_whole_model_however_they_are_computed() {
    for config in [LLAMA, QWEN3, MIXTRAL, GPT_OSS] {
        let (tiny, saved) = (Tiny::new(config), Saved::new(config));
        let expected: Vec<_> = prompts(4).iter().map(|prompt| tiny.continued(prompt, 60)).collect();
        let few = kv_bytes(config, 26, &options()) / 2;
        let ways = [
            options(),
            EngineOptions { chunk_tokens: 5, token_budget: 11, ..options() },
            EngineOptions { kv_bytes: few, ..options() },
            EngineOptions { draft_tokens: 5, ..options() },
        ];
        for way in ways {
            on_ranks(&saved.model, 2, &way, |engine| {
                let asked: Vec<_> =
                    prompts(4).iter().map(|prompt| engine.ask(greedy(prompt, 60)).unwrap()).collect();
                let told: Vec<_> = asked.into_iter().map(tokens).collect();
                assert_eq!(told, expected);
            });
        }
    }
}

#[test]
fn samples_share_a_prompt_on_all_ranks() {
    let saved = Saved::new(LLAMA);
    let mut ask = greedy(&prompts(1)[0], 20);
    if let bedplate_serve::Wants::Text(text) = &mut ask.wants {
        text.samples = 3;
    }
    let expected = Tiny::new(LLAMA).continued(&prompts(1)[0], 20);
    on_ranks(&saved.model, 2, &options(), |engine| {
        let told = listen(engine.ask(ask).unwrap());
        assert_eq!(told.samples.len(), 3);
        assert!(told.samples.iter().all(|(tokens, _)| *tokens == expected));
    });
}

#[test]
fn whole_numbers_and_bf16_work_on_ranks_too() {
    let saved = Saved::new(LLAMA);
    for weights in [WeightFormat::Bf16, WeightFormat::Int8] {
        let options = EngineOptions { activations: Activations::Bf16, weights: Some(weights), ..options() };
        on_ranks(&saved.model, 2, &options, |engine| {
            let prompt = &prompts(1)[0];
            let first = tokens(engine.ask(greedy(prompt, 40)).unwrap());
            let again = tokens(engine.ask(greedy(prompt, 40)).unwrap());
            assert_eq!(first, again);
        });
    }
}

#[test]
fn heads_that_ranks_do_not_divide_are_refused_by_name() {
    let saved = Saved::new(LLAMA);
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let refused = |rank| match Engine::lead(&saved.model, group(rank, 4, port), &options()) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("two key and value heads were shared by four ranks"),
    };
    thread::scope(|scope| {
        let ranks: Vec<_> = (0..4).map(|rank| scope.spawn(move || refused(rank))).collect();
        for rank in ranks {
            let said = rank.join().unwrap();
            assert!(said.contains("heads"), "{said}");
        }
    });
}

#[test]
fn an_engine_whose_rank_is_gone_says_so_and_stops() {
    let saved = Saved::new(LLAMA);
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let gone = thread::spawn(move || drop(group(1, 2, port)));
    let (engine, _) = Engine::lead(&saved.model, group(0, 2, port), &options()).unwrap();
    gone.join().unwrap();
    let refusal = loop {
        match engine.ask(greedy(&prompts(1)[0], 5)) {
            Ok(answer) => drop(listen(answer)),
            Err(refusal) => break refusal.to_string(),
        }
    };
    assert!(refusal.contains("rank 1"), "{refusal}");
}
