//! What wrong, excessive and hostile requests get.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bedplate_testkit::{wait_to_see, wait_until};
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use tokio::net::TcpSocket;

use crate::support::{Fixture, Parrot, chat};

#[test]
fn a_wrong_field_is_named() {
    let fixture = Fixture::start(Parrot::echoing());
    let cases = [
        (json!({ "temperature": "hot" }), "temperature"),
        (json!({ "temperature": 3 }), "temperature"),
        (json!({ "n": 0 }), "n"),
        (json!({ "n": 100_000 }), "n"),
        (json!({ "max_tokens": -1 }), "max_tokens"),
        (json!({ "max_completion_tokens": 1.5 }), "max_completion_tokens"),
        (json!({ "stop": 1 }), "stop"),
        (json!({ "stop": ["a", ""] }), "stop[1]"),
        (json!({ "stop": vec!["x"; 100] }), "stop"),
        (json!({ "logit_bias": { "x": 1 } }), "logit_bias.x"),
        (json!({ "logit_bias": { "1": 1000 } }), "logit_bias.1"),
        (json!({ "logit_bias": { "99999": 1 } }), "logit_bias.99999"),
        (json!({ "bad_words": [" "] }), "bad_words[0]"),
        (json!({ "allowed_token_ids": [] }), "allowed_token_ids"),
        (json!({ "allowed_token_ids": [1, 99999] }), "allowed_token_ids[1]"),
        (json!({ "use_beam_search": true }), "use_beam_search"),
        (json!({ "functions": [{ "name": "f" }] }), "functions"),
        (json!({ "truncate_prompt_tokens": 0 }), "truncate_prompt_tokens"),
        (json!({ "truncate_prompt_tokens": 99999 }), "truncate_prompt_tokens"),
        (json!({ "prompt_logprobs": -1 }), "prompt_logprobs"),
        (json!({ "echo": true }), "echo"),
        (json!({ "continue_final_message": true, "add_generation_prompt": true }), "continue_final_message"),
        (
            json!({ "continue_final_message": true, "messages": [{ "role": "user", "content": " " }] }),
            "continue_final_message",
        ),
        (json!({ "messages": [] }), "messages"),
        (json!({ "messages": [{ "content": "x" }] }), "messages[0].role"),
        (json!({ "messages": [{ "role": "user" }] }), "messages[0].content"),
        (
            json!({ "messages": [{ "role": "user", "content": [{ "type": "image_url" }] }] }),
            "messages[0].content[0].type",
        ),
        (json!({ "messages": [{ "role": "user", "content": 1 }] }), "messages[0].content"),
        (json!({ "stream": "yes" }), "stream"),
        (json!({ "stream_options": { "include_usage": true } }), "stream_options"),
        (json!({ "top_logprobs": 5 }), "top_logprobs"),
        (json!({ "tools": [{ "type": "function" }] }), "tools[0].function"),
        (json!({ "tool_choice": "required" }), "tool_choice"),
        (json!({ "response_format": { "type": "xml" } }), "response_format.type"),
        (json!({ "response_format": { "type": "json_schema" } }), "response_format.json_schema"),
        (json!({ "guided_regex": "(" }), "guided_regex"),
        (json!({ "guided_json": { "type": "nonsense" } }), "guided_json"),
        (json!({ "guided_json": "{" }), "guided_json"),
        (json!({ "guided_grammar": "start: nothing" }), "guided_grammar"),
        (json!({ "guided_choice": [] }), "guided_choice"),
        (json!({ "guided_choice": ["a"], "guided_regex": "b" }), "guided_choice"),
    ];
    for (more, param) in cases {
        let error = fixture.chat("x", more.clone()).error();
        assert_eq!(error, (400, "invalid_request_error".into(), String::new(), param.into()), "{more}");
    }
    let unknown = fixture.chat("x", json!({ "unknown_field": { "a": 1 }, "temperature": null, "bad_words": [], "use_beam_search": false }));
    assert_eq!(unknown.status, 200, "unknown fields are ignored, null counts as absent");
}

#[test]
fn what_is_not_there_is_not_found() {
    let fixture = Fixture::start(Parrot::echoing());
    let wrong = fixture.post("/v1/chat/completions", &json!({ "model": "parot", "messages": [] }));
    assert_eq!(
        wrong.error(),
        (404, "invalid_request_error".into(), "model_not_found".into(), "model".into())
    );
    assert!(wrong.text().contains("did you mean `parrot`?"), "{}", wrong.text());
    assert_eq!(fixture.get("/v1/models/none").error().0, 404);
    assert_eq!(fixture.get("/v2/models").error().0, 404);
    assert_eq!(fixture.get("/v1/chat/completions").error().0, 405);
    assert_eq!(fixture.post("/v1/models", &json!({})).error().0, 405);
}

#[test]
fn prompts_beyond_the_context_are_refused_with_numbers() {
    let fixture = Fixture::start(Parrot::echoing());
    let long = fixture.chat(&"x!".repeat(3000), json!({}));
    assert_eq!(
        long.error(),
        (400, "invalid_request_error".into(), "context_length_exceeded".into(), "messages".into())
    );
    assert!(long.text().contains("2048 tokens"), "{}", long.text());
    let wide = fixture.chat("x", json!({ "max_tokens": 2048 })).error();
    assert_eq!(wide.2, "context_length_exceeded");
    let embedded =
        fixture.post("/v1/embeddings", &json!({ "model": "parrot", "input": vec![1; 3000] })).error();
    assert_eq!(embedded.2, "context_length_exceeded");
}

#[test]
fn bodies_that_are_no_json_are_refused() {
    let fixture = Fixture::start_with(Parrot::echoing(), |options| options.bounds.body_bytes = 1 << 20);
    let deep = "[".repeat(200_000);
    let nested = format!("{{\"model\":\"parrot\",\"messages\":{}1{}}}", "[".repeat(100), "]".repeat(100));
    let cases: [(&[u8], u16); 8] = [
        (b"", 400),
        (b"{", 400),
        (b"\xff\xfe", 400),
        (b"{\"model\": \"\xff\"}", 400),
        (b"[1]", 400),
        (b"null", 400),
        (deep.as_bytes(), 400),
        (nested.as_bytes(), 400),
    ];
    for (body, status) in cases {
        let shown = String::from_utf8_lossy(&body[..body.len().min(40)]).into_owned();
        assert_eq!(fixture.send("POST", "/v1/chat/completions", &[], body).error().0, status, "{shown}");
    }
    let huge = fixture.send("POST", "/v1/chat/completions", &[], &vec![b' '; 3 << 20]);
    assert_eq!(
        huge.error(),
        (413, "invalid_request_error".into(), "request_too_large".into(), String::new())
    );
}

#[test]
fn a_key_is_needed_where_there_are_keys() {
    let folder = std::env::temp_dir().join(format!("bedplate-gateway-keys-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("keys");
    std::fs::write(&path, "# people\nalpha-key\n\n beta-key \n").unwrap();
    let fixture = Fixture::start_with(Parrot::echoing(), |options| options.key_file = Some(path.clone()));
    let body = chat("x", json!({})).to_string();
    let status = |key: &str| {
        let header = format!("Bearer {key}");
        fixture.send("POST", "/v1/chat/completions", &[("Authorization", &header)], body.as_bytes()).status
    };
    assert_eq!([status("alpha-key"), status("beta-key")], [200, 200]);
    assert_eq!([status("alpha-ke"), status("alpha-keyy"), status("# people"), status("")], [401; 4]);
    assert_eq!(
        fixture.chat("x", json!({})).error(),
        (401, "authentication_error".into(), "invalid_api_key".into(), String::new())
    );
    assert_eq!(fixture.get("/v1/models").status, 401);
    assert_eq!(
        [fixture.get("/health").status, fixture.get("/metrics").status, fixture.get("/").status],
        [200; 3]
    );
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn more_requests_than_fit_are_told_to_come_back() {
    let slow = || Parrot::echoing().slow(Duration::from_millis(200));
    for fixture in [
        Fixture::start_with(slow(), |options| options.bounds.requests = 1),
        Fixture::start(slow().max_seqs(1)),
    ] {
        let statuses: Vec<u16> = std::thread::scope(|scope| {
            let ask = || {
                let reply = fixture.chat("the garden is green", json!({}));
                if reply.status == 429 {
                    assert_eq!(reply.headers["retry-after"], "1");
                    assert_eq!(reply.error().2, "rate_limit_exceeded");
                }
                reply.status
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(statuses.contains(&200) && statuses.contains(&429), "{statuses:?}");
    }
}

#[test]
fn a_body_that_has_not_come_yet_holds_no_slot() {
    let fixture = Fixture::start_with(Parrot::echoing(), |options| options.bounds.requests = 1);
    let mut slow = fixture.connect();
    slow.write_all(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 90000\r\n\r\n{")
        .unwrap();
    assert_eq!(fixture.chat("x", json!({})).status, 200);
}

#[test]
fn one_key_cannot_take_the_slots_of_another() {
    let slow = Parrot::echoing().slow(Duration::from_millis(300));
    let fixture = Fixture::start_with(slow, |options| {
        options.bounds.requests = 8;
        options.keys = vec!["greedy".into(), "modest".into()];
    });
    let ask = |key: &str, text: &str| {
        let header = format!("Bearer {key}");
        let body = chat(text, json!({})).to_string();
        fixture.send("POST", "/v1/chat/completions", &[("Authorization", &header)], body.as_bytes()).status
    };
    let refused = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..12 {
            scope.spawn(|| {
                if ask("greedy", "the garden is green and the lamp is in the garden") == 429 {
                    refused.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        wait_until("the greedy one has all that it may have", || refused.load(Ordering::Relaxed) > 0);
        assert_eq!(ask("modest", "x"), 200);
    });
}

/// A connection from another address of this host.
fn connect_from(own: [u8; 4], to: SocketAddr) -> TcpStream {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let stream = runtime.block_on(async {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from((own, 0))).unwrap();
        socket.connect(to).await.unwrap().into_std().unwrap()
    });
    stream.set_nonblocking(false).unwrap();
    stream
}

#[test]
fn one_address_cannot_take_the_slots_of_another_where_all_have_one_key() {
    let slow = Parrot::echoing().slow(Duration::from_millis(300));
    let fixture = Fixture::start_with(slow, |options| {
        options.bounds.requests = 8;
        options.keys = vec!["everybody".into()];
    });
    let ask = |own: [u8; 4], text: &str| {
        let body = chat(text, json!({})).to_string();
        let length = body.len();
        let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer everybody\r\nConnection: close";
        let mut stream = connect_from(own, fixture.address);
        stream.write_all(format!("{head}\r\nContent-Length: {length}\r\n\r\n{body}").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer[9..12].parse::<u16>().unwrap()
    };
    let (refused, answered) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..12 {
            scope.spawn(|| {
                let status = ask([127, 0, 0, 1], "the garden is green and the lamp is in the garden");
                let count = if status == 429 { &refused } else { &answered };
                count.fetch_add(1, Ordering::Relaxed);
            });
        }
        wait_until("the greedy one has all that it may have", || refused.load(Ordering::Relaxed) == 4);
        assert_eq!(ask([127, 0, 0, 2], "x"), 200);
    });
    assert_eq!(answered.load(Ordering::Relaxed), 8, "who is alone has all slots");
}

#[test]
fn grammars_of_clients_that_have_gone_leave_room_for_others() {
    let fixture = Fixture::start(Parrot::echoing());
    for number in 0..64 {
        let costly = format!("((a{{{}}}){{1000}}){{1000}}", 900 + number);
        let body = chat("x", json!({ "guided_regex": costly })).to_string();
        let mut stream = fixture.connect();
        let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length:";
        stream.write_all(format!("{head} {}\r\n\r\n{body}", body.len()).as_bytes()).unwrap();
        drop(stream);
    }
    let polite = || fixture.chat("yes", json!({ "guided_choice": ["yes", "no"] })).status;
    wait_to_see("another grammar is compiled", polite, |status| *status == 200);
}

/// The text is far beyond what the model takes, in a form for which the general engine would be needed.
#[test]
fn a_prompt_is_counted_before_all_of_it_is_encoded() {
    let fixture = Fixture::start(Parrot::echoing());
    for text in ["x".repeat(8 << 20), "é<|im_end|> ".repeat(1 << 19)] {
        let reply = fixture.post("/v1/completions", &json!({ "model": "parrot", "prompt": text }));
        assert_eq!(reply.error().2, "context_length_exceeded");
    }
    let listed = fixture.post("/v1/completions", &json!({ "model": "parrot", "prompt": vec![1; 1 << 20] }));
    assert_eq!(listed.error().2, "context_length_exceeded");
}

#[test]
fn pages_of_other_origins_are_served_only_where_they_are_named() {
    let ask = [("Origin", "https://a.example"), ("Access-Control-Request-Method", "POST")];
    let closed = Fixture::start(Parrot::echoing());
    let refused = closed.send("OPTIONS", "/v1/chat/completions", &ask, b"");
    assert_eq!((refused.status, refused.headers.contains_key("access-control-allow-origin")), (405, false));
    let open =
        Fixture::start_with(Parrot::echoing(), |options| options.origins = vec!["https://a.example".into()]);
    let allowed = open.send("OPTIONS", "/v1/chat/completions", &ask, b"");
    assert_eq!(
        (allowed.status, allowed.headers["access-control-allow-origin"].as_str()),
        (204, "https://a.example")
    );
    let other = open.send("GET", "/v1/models", &[("Origin", "https://b.example")], b"");
    assert!(!other.headers.contains_key("access-control-allow-origin"));
}

static ANY: LazyLock<Fixture> = LazyLock::new(|| Fixture::start(Parrot::echoing()));

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,8}".prop_map(Value::from),
        prop_oneof![
            Just("text"),
            Just("json_schema"),
            Just("auto"),
            Just("required"),
            Just("user"),
            Just("function")
        ]
        .prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let key = prop_oneof![
            Just("type"),
            Just("role"),
            Just("content"),
            Just("function"),
            Just("name"),
            Just("parameters"),
            Just("json_schema"),
            Just("schema"),
            Just("properties"),
            Just("items"),
            Just("pattern"),
            Just("tool_calls"),
            Just("arguments"),
            Just("$ref"),
        ];
        let object = proptest::collection::vec((key, inner.clone()), 0..4).prop_map(|entries| {
            Value::Object(
                entries
                    .into_iter()
                    .map(|(key, value)| (key.to_owned(), value))
                    .collect::<Map<String, Value>>(),
            )
        });
        prop_oneof![proptest::collection::vec(inner, 0..4).prop_map(Value::from), object]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn any_json_is_answered_and_never_fails(
        entries in proptest::collection::vec((prop_oneof![
            Just("messages"), Just("prompt"), Just("input"), Just("temperature"), Just("n"), Just("stop"), Just("tools"),
            Just("tool_choice"), Just("response_format"), Just("logit_bias"), Just("logprobs"), Just("top_logprobs"), Just("stream"),
            Just("guided_json"), Just("guided_regex"), Just("guided_grammar"), Just("guided_choice"), Just("max_tokens"), Just("seed"),
            Just("echo"), Just("best_of"), Just("tokens"), Just("chat_template_kwargs"), Just("stop_token_ids"),
        ], any_value()), 0..6),
        is_valid in any::<bool>(),
        path in prop_oneof![Just("/v1/chat/completions"), Just("/v1/completions"), Just("/v1/responses"), Just("/v1/embeddings"), Just("/tokenize"), Just("/detokenize")],
    ) {
        let mut body = json!({ "model": "parrot", "max_tokens": 8 });
        if is_valid {
            body["messages"] = json!([{ "role": "user", "content": "x" }]);
            body["prompt"] = json!("x");
        }
        for (key, value) in entries {
            body[key] = value;
        }
        let reply = ANY.post(path, &body);
        prop_assert!([200, 400].contains(&reply.status), "{} {body}\n{}", reply.status, reply.text());
    }
}
