//! Requests that nobody would send, to a gateway and to a router in front of one: each is answered, none by a failure, and both go on.
//!
//! `BEDPLATE_FUZZ_REQUESTS=100000 cargo test -p bedplate-gateway --test api fuzz -- --nocapture` sends as many to each.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

use bedplate_gateway::{ReplicaHealth, RouteOptions, route};
use bedplate_host::memory::own_resident_bytes;
use bedplate_testkit::{Mutator, wait_until};

use crate::support::{Fixture, PATIENCE, Parrot};

/// Of the ordinary test, to each server.
const REQUESTS: usize = 1500;

const SEEDS: [(&str, &str); 10] = [
    (
        "POST /v1/chat/completions",
        r#"{"model":"parrot","max_tokens":8,"messages":[{"role":"user","content":"x"}],"stream":true,"stream_options":{"include_usage":true}}"#,
    ),
    (
        "POST /v1/chat/completions",
        r#"{"model":"parrot","max_tokens":8,"messages":[{"role":"user","content":[{"type":"text","text":"é"}]},{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","content":"1","tool_call_id":"1"}],"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"a":{"type":"string"}}}}}],"tool_choice":"required"}"#,
    ),
    (
        "POST /v1/chat/completions",
        r#"{"model":"parrot","max_tokens":8,"messages":[{"role":"user","content":"x"}],"response_format":{"type":"json_schema","json_schema":{"schema":{"type":"object","required":["a"],"properties":{"a":{"enum":[1,"b",null]}}}}}}"#,
    ),
    (
        "POST /v1/chat/completions",
        r#"{"model":"parrot","max_tokens":8,"messages":[{"role":"user","content":"x"}],"guided_regex":"(a|b)+[0-9]{2,3}","logprobs":true,"top_logprobs":3,"n":2,"seed":-1,"logit_bias":{"3":5}}"#,
    ),
    (
        "POST /v1/completions",
        r#"{"model":"parrot","prompt":["a",[1,2,3]],"max_tokens":3,"echo":true,"stop":["b"],"best_of":2,"temperature":0.5,"top_p":0.9,"min_p":0.1}"#,
    ),
    (
        "POST /v1/completions",
        r#"{"model":"parrot","prompt":"a","max_tokens":3,"guided_grammar":"start: \"a\" (\"b\" | start)","ignore_eos":true,"min_tokens":2}"#,
    ),
    (
        "POST /v1/responses",
        r#"{"model":"parrot","input":[{"role":"user","content":"x"}],"max_output_tokens":8,"stream":true}"#,
    ),
    (
        "POST /v1/embeddings",
        r#"{"model":"parrot","input":["a","b"],"encoding_format":"base64","dimensions":4}"#,
    ),
    ("POST /tokenize", r#"{"model":"parrot","prompt":"a b","return_token_strs":true}"#),
    ("POST /detokenize", r#"{"model":"parrot","tokens":[1,2,399]}"#),
];

/// What trips readers of HTTP and of JSON's strings.
const TROUBLE: [&[u8]; 6] =
    [b"\\u0000", b"\\ud800", b"\r\n", b"\r\n\r\n", b"true", b"Transfer-Encoding: chunked\r\n"];

/// A request with up to four changes, mostly in its body, whose length is then said as it is; and whether its head has one too.
fn broken_request(mutator: &mut Mutator) -> (Vec<u8>, bool) {
    let (line, body) = SEEDS[mutator.below(SEEDS.len())];
    let body = match mutator.below(5) {
        0 => body.as_bytes().to_vec(),
        _ => mutator.mutate(body.as_bytes()),
    };
    let head =
        format!("{line} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len())
            .into_bytes();
    let has_broken_head = mutator.below(5) == 0;
    let head = if has_broken_head { mutator.mutate(&head) } else { head };
    ([head, body].concat(), has_broken_head)
}

/// What a server says to some bytes; nothing where it only hangs up, as it may on who has no more to say.
fn status(address: SocketAddr, bytes: &[u8], is_all: bool) -> Option<u16> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // It may have answered and hung up before it has read everything.
    let _ = stream.write_all(bytes);
    if is_all {
        let _ = stream.shutdown(Shutdown::Write);
    }
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let line = String::from_utf8_lossy(answer.get(..32.min(answer.len()))?).into_owned();
    line.strip_prefix("HTTP/1.")?.get(2..5)?.parse().ok()
}

#[test]
fn no_request_makes_a_server_fail() {
    let requests =
        std::env::var("BEDPLATE_FUZZ_REQUESTS").ok().and_then(|count| count.parse().ok()).unwrap_or(REQUESTS);
    let gateway = Fixture::start(Parrot::echoing());
    let url = gateway.address.to_string().parse().unwrap();
    let options = RouteOptions {
        listen: "127.0.0.1:0".parse().unwrap(),
        replicas: vec![url],
        ..RouteOptions::default()
    };
    let router = route(options).unwrap();
    let url = gateway.address.to_string().parse().unwrap();
    wait_until("the replica to be in service", || {
        router.members().replica_health(&url) == Some(ReplicaHealth::In)
    });
    for (name, address) in [("gateway", gateway.address), ("router", router.address())] {
        let mut counts = std::collections::BTreeMap::<u16, usize>::new();
        let mut mutator = Mutator::new(0x5eed).with(&TROUBLE);
        for number in 0..requests {
            let (request, has_broken_head) = broken_request(&mut mutator);
            let status = status(address, &request, has_broken_head).unwrap_or_default();
            *counts.entry(status).or_default() += 1;
            assert!(has_broken_head || status >= 200, "{name}, request {number} has no answer");
            assert!(
                status < 500,
                "{name}, request {number} got {status}: {}",
                String::from_utf8_lossy(&request)
            );
        }
        assert_eq!(gateway.chat("x", serde_json::json!({})).status, 200);
        println!(
            "{name}: {requests} requests, by status {counts:?}, {} bytes of memory",
            own_resident_bytes().unwrap_or(0)
        );
    }
}
