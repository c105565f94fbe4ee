//! Closed and open loops against servers that answer, refuse and break off.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bedplate_http::{Answer, Background, Body, Limits, Request, StatusCode, json, read_body, typed};
use bedplate_load::{Api, LoadError, LoadSummary, LoadTarget, NullServer, Plan, measure};
use bedplate_replay::requests::{Arrivals, GeneratedLoad, Lengths, Planned, Prefix, SharedPrefix};
use serde_json::{Value, json};

fn load() -> GeneratedLoad {
    GeneratedLoad {
        requests: 40,
        prompt: Lengths::Between(8, 32),
        output: Lengths::Fixed(5),
        ..GeneratedLoad::default()
    }
}

fn at(server: &Background) -> LoadTarget {
    LoadTarget::parse(&format!("http://{}", server.address())).unwrap().with_model(Some("m".into()))
}

#[test]
fn a_closed_and_an_open_loop_measure_every_request() {
    let server = NullServer::start().unwrap();
    let target = LoadTarget::parse(&server.url()).unwrap();
    let fast = GeneratedLoad { arrivals: Arrivals::Poisson { per_second: 2000.0 }, ..load() };
    let chat = Plan { api: Api::Chat, ..Plan::closed(load().planned(), 3) };
    for plan in [Plan::closed(load().planned(), 4), Plan::open(fast.planned(), 1.0), chat] {
        let LoadSummary {
            model,
            requests,
            finished,
            failures,
            output_tokens,
            first_token,
            between,
            whole,
            per_token,
            ..
        } = measure(&target, &plan).unwrap();
        assert_eq!((model.as_str(), requests, finished, failures.len()), ("null", 40, 40, 0));
        assert_eq!(
            (output_tokens, first_token.count, between.count, whole.count, per_token.count),
            (200, 40, 160, 40, 40)
        );
        assert!(
            first_token.p50 > 0.0 && first_token.p50 <= first_token.p99 && first_token.p99 <= whole.highest
        );
    }
}

/// A server that keeps the bodies it gets and answers in some way.
fn listening(answer: fn() -> Answer) -> (Background, Arc<Mutex<Vec<Value>>>) {
    let bodies: Arc<Mutex<Vec<Value>>> = Arc::default();
    let kept = bodies.clone();
    let handler = move |request: Request| {
        let kept = kept.clone();
        async move {
            let (head, mut body) = request.into_parts();
            let body = read_body(&head.headers, &mut body, &Limits::default()).await.unwrap();
            kept.lock().unwrap().push(serde_json::from_slice(&body).unwrap());
            answer()
        }
    };
    (Background::start("127.0.0.1:0".parse().unwrap(), Limits::default(), handler).unwrap(), bodies)
}

fn one_token() -> Answer {
    let text = "data: {\"choices\":[{\"text\":\"a\"}],\"usage\":{\"completion_tokens\":1,\"prompt_tokens\":2}}\n\ndata: [DONE]\n\n";
    typed(StatusCode::OK, "text/event-stream", Body::whole(text))
}

#[test]
fn prompts_share_what_the_load_says_they_share() {
    let (server, bodies) = listening(one_token);
    let shared = GeneratedLoad {
        prompt: Lengths::Fixed(32),
        shared: Some(SharedPrefix { percent: 50, groups: 2 }),
        ..load()
    };
    measure(&at(&server), &Plan::closed(shared.planned(), 2)).unwrap();
    let bodies = std::mem::take(&mut *bodies.lock().unwrap());
    let prompts: Vec<Vec<u64>> = bodies
        .iter()
        .map(|body| body["prompt"].as_array().unwrap().iter().map(|token| token.as_u64().unwrap()).collect())
        .collect();
    let beginnings: BTreeSet<&[u64]> = prompts.iter().map(|prompt| &prompt[..16]).collect();
    let wholes: BTreeSet<&[u64]> = prompts.iter().map(|prompt| &prompt[..]).collect();
    assert_eq!((prompts.len(), beginnings.len(), wholes.len()), (40, 2, 40));
    assert_eq!((&bodies[0]["max_tokens"], &bodies[0]["ignore_eos"]), (&json!(5), &json!(true)));
    let hashes = |hashes: &[u64]| Planned {
        prefix: Prefix::Hashes { block_tokens: 4, hashes: hashes.to_vec() },
        ..Planned::new(0, 10, 1)
    };
    let (server, bodies) = listening(one_token);
    measure(&at(&server), &Plan::closed(vec![hashes(&[7, 8]), hashes(&[7, 9])], 1)).unwrap();
    let bodies = bodies.lock().unwrap();
    let prompt = |number: usize| bodies[number]["prompt"].as_array().unwrap().clone();
    assert_eq!(prompt(0)[..4], prompt(1)[..4]);
    assert_ne!(prompt(0)[4..8], prompt(1)[4..8]);
}

#[test]
fn failures_are_counted_by_what_was_said() {
    fn full() -> Answer {
        json(StatusCode::TOO_MANY_REQUESTS, &json!({ "error": { "message": "come back\nlater" } }))
    }
    fn broken() -> Answer {
        typed(StatusCode::OK, "text/event-stream", Body::whole("data: {\"choices\":[{\"text\":\"a\"}]}\n\n"))
    }
    fn failing() -> Answer {
        typed(
            StatusCode::OK,
            "text/event-stream",
            Body::whole("data: {\"error\":{\"message\":\"no memory\"}}\n\ndata: [DONE]\n\n"),
        )
    }
    for (answer, expected) in [
        (full as fn() -> Answer, "status 429: come back later"),
        (broken, "the answer ended without [DONE]"),
        (failing, "no memory"),
    ] {
        let (server, _) = listening(answer);
        let error = measure(&at(&server), &Plan::closed(load().planned(), 8)).unwrap_err();
        let LoadError::NothingFinished { requests: 40, why, .. } = error else { panic!("{error}") };
        assert_eq!(why, expected);
    }
}

#[test]
fn a_silent_or_absent_server_is_given_up() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let target = LoadTarget::parse(&url).unwrap().with_model(Some("m".into()));
    let patience = Duration::from_millis(100);
    let plan = Plan { patience, ..Plan::closed(vec![Planned::new(0, 4, 1)], 1) };
    let error = measure(&target, &plan).unwrap_err();
    assert!(error.to_string().contains("no end after"), "{error}");
    drop(listener);
    let error = measure(&LoadTarget::parse(&url).unwrap(), &plan).unwrap_err();
    assert!(matches!(error, LoadError::Unreachable { .. }), "{error}");
}
