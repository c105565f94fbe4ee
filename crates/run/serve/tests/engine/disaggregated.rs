//! Prompts that are computed by another engine.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use bedplate_serve::{Disaggregated, Engine, EngineOptions, KvServer, Replica, Secret, WorkerFlaw};

use crate::fixture::{
    DEEPSEEK, GPT_OSS, LLAMA, MIXTRAL, QWEN3, Tiny, assert_nothing_left, engine, greedy, kv_bytes, listen,
    options,
};

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

fn prompts() -> Vec<Vec<u32>> {
    (0..4).map(|of| (0..90 + of * 9).map(|at| (at * 3 + of * 11) % 131).collect()).collect()
}

/// A decode engine and what its prompts' blocks come from.
fn pair(config: &str, prefill: &EngineOptions, secret: &[u8]) -> (Arc<Engine>, Disaggregated, KvServer) {
    let server = KvServer::start(ANY, Arc::new(engine(config, prefill)), Secret::new(b"kv")).unwrap();
    let decode = Arc::new(engine(config, &options()));
    let both = Disaggregated::new(decode.clone(), vec![server.address()], Secret::new(secret), 32);
    (decode, both, server)
}

#[test]
fn prompts_computed_elsewhere_are_continued_as_if_they_had_been_computed_here() {
    for config in [LLAMA, QWEN3, MIXTRAL, GPT_OSS, DEEPSEEK] {
        let tiny = Tiny::new(config);
        let chunked = EngineOptions { chunk_tokens: 20, token_budget: 24, ..options() };
        let (decode, both, _server) = pair(config, &chunked, b"kv");
        let answers: Vec<_> = prompts().iter().map(|prompt| both.ask(greedy(prompt, 40)).unwrap()).collect();
        for (prompt, answer) in prompts().iter().zip(answers) {
            let told = listen(answer);
            assert_eq!(told.cached as usize, prompt.len() / 16 * 16, "its full blocks came");
            assert_eq!(told.samples[0].0, tiny.continued(prompt, 40));
        }
        assert!(both.transferred_blocks() > 0);
        assert_nothing_left(&decode);
    }
}

#[test]
fn a_worker_that_is_gone_a_stranger_or_of_another_kind_costs_no_answer() {
    let tiny = Tiny::new(LLAMA);
    let prompt = &prompts()[0];
    let expected = tiny.continued(prompt, 20);
    let other = EngineOptions { block_tokens: 8, ..options() };
    for (prefill, secret) in [(&other, &b"kv"[..]), (&options(), b"another")] {
        let (_, both, _server) = pair(LLAMA, prefill, secret);
        let told = listen(both.ask(greedy(prompt, 20)).unwrap());
        assert_eq!((told.cached, &told.samples[0].0), (0, &expected));
    }
    let (_, both, server) = pair(LLAMA, &options(), b"kv");
    drop(server);
    assert_eq!(listen(both.ask(greedy(prompt, 20)).unwrap()).samples[0].0, expected);
}

#[test]
fn a_wrong_secret_and_another_model_are_found_before_the_first_prompt() {
    let (_, both, _server) = pair(LLAMA, &options(), b"kv");
    assert_eq!(both.check(), []);
    let (_, both, server) = pair(LLAMA, &options(), b"another");
    assert_eq!(both.check(), [(server.address(), WorkerFlaw::WrongSecret)]);
    let (_, both, server) = pair(LLAMA, &EngineOptions { block_tokens: 8, ..options() }, b"kv");
    let flaws = both.check();
    assert!(
        matches!(&flaws[..], [(_, WorkerFlaw::Other(why))] if why.contains("another model")),
        "{flaws:?}"
    );
    drop(server);
    assert!(matches!(&both.check()[..], [(_, WorkerFlaw::Away(_))]));
}

/// It takes connections and says nothing for as long as the test runs; the client is dropped meanwhile.
#[test]
fn a_client_that_goes_away_while_blocks_come_leaves_nothing() {
    let silent = TcpListener::bind(ANY).unwrap();
    let decode = Arc::new(engine(LLAMA, &options()));
    let both = Disaggregated::new(decode.clone(), vec![silent.local_addr().unwrap()], Secret::new(b"kv"), 32);
    drop(both.ask(greedy(&prompts()[0], 20)).unwrap());
    assert_nothing_left(&decode);
}

/// A frozen worker takes connections too.
#[test]
fn a_worker_that_says_nothing_costs_no_answer() {
    let silent = TcpListener::bind(ANY).unwrap();
    let decode = Arc::new(engine(LLAMA, &options()));
    let both = Disaggregated::new(decode, vec![silent.local_addr().unwrap()], Secret::new(b"kv"), 32);
    let prompt = &prompts()[0];
    let expected = Tiny::new(LLAMA).continued(prompt, 20);
    assert_eq!(listen(both.ask(greedy(prompt, 20)).unwrap()).samples[0].0, expected);
}

#[test]
fn blocks_for_which_there_is_no_room_are_computed_here() {
    let tiny = Tiny::new(LLAMA);
    let server = KvServer::start(ANY, Arc::new(engine(LLAMA, &options())), Secret::new(b"kv")).unwrap();
    let few = EngineOptions { kv_bytes: kv_bytes(LLAMA, 21, &options()), ..options() };
    let decode = Arc::new(engine(LLAMA, &few));
    let both = Disaggregated::new(decode.clone(), vec![server.address()], Secret::new(b"kv"), 32);
    let answers: Vec<_> = prompts().iter().map(|prompt| both.ask(greedy(prompt, 40)).unwrap()).collect();
    for (prompt, answer) in prompts().iter().zip(answers) {
        assert_eq!(listen(answer).samples[0].0, tiny.continued(prompt, 40));
    }
    assert_nothing_left(&decode);
}

/// Bytes of strangers, whole messages among them: each connection ends, and the worker computes for its own afterwards.
#[test]
fn no_bytes_make_a_worker_fail() {
    let (_, both, server) = pair(LLAMA, &options(), b"kv");
    let mut random = bedplate_random::Random::scattered(7);
    let requests = std::env::var("BEDPLATE_FUZZ_REQUESTS").ok().and_then(|count| count.parse().ok());
    for _ in 0..requests.unwrap_or(300) {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        let mut bytes: Vec<u8> = Vec::new();
        for _ in 0..random.below(4) {
            let length = [0, 1, 32, 64, 65, u64::MAX][random.below(6)];
            bytes.extend(length.to_le_bytes());
            bytes.extend((0..length.min(80)).map(|_| random.below(256) as u8));
        }
        bytes.truncate(bytes.len().saturating_sub(random.below(9)));
        // It may have hung up.
        let _ = stream.write_all(&bytes).and_then(|()| stream.shutdown(Shutdown::Write));
        let _ = stream.read_to_end(&mut Vec::new());
    }
    assert_eq!(both.check(), []);
}
