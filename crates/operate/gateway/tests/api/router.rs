//! A router over replicas: gateways of made-up models, and servers that misbehave by a script.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bedplate_gateway::{Checks, ReplicaHealth, RouteOptions, RunningRouter, route};
use bedplate_testkit::wait_until;
use serde_json::{Value, json};

use crate::support::{Fixture, PATIENCE, Parrot, Reply, chat, exchange, request};

/// A router in front of some addresses.
struct Routed {
    routing: RunningRouter,
}

impl Routed {
    fn over(addresses: &[SocketAddr]) -> Self {
        Self::with(addresses, |_| {})
    }

    fn with(addresses: &[SocketAddr], change: impl FnOnce(&mut RouteOptions)) -> Self {
        let routed = Self::unsettled(addresses, change);
        for address in addresses {
            routed.stands(*address, ReplicaHealth::In);
        }
        routed
    }

    fn unsettled(addresses: &[SocketAddr], change: impl FnOnce(&mut RouteOptions)) -> Self {
        let mut options = RouteOptions {
            listen: "127.0.0.1:0".parse().unwrap(),
            replicas: addresses.iter().map(|address| address.to_string().parse().unwrap()).collect(),
            checks: Checks {
                interval: Duration::from_millis(50),
                timeout: Duration::from_secs(10),
                failures: 2,
                hang: PATIENCE,
            },
            ..RouteOptions::default()
        };
        change(&mut options);
        Self { routing: route(options).unwrap() }
    }

    fn stands(&self, address: SocketAddr, replica_health: ReplicaHealth) {
        let url = address.to_string().parse().unwrap();
        wait_until(&format!("{address} is {replica_health:?}"), || {
            self.routing.members().replica_health(&url) == Some(replica_health)
        });
    }

    fn get(&self, path: &str) -> Reply {
        exchange(self.routing.address(), &request("GET", path, &[], b""))
    }

    fn chat(&self, text: &str, more: Value) -> Reply {
        self.post(&[], &chat(text, more))
    }

    fn post(&self, headers: &[(&str, &str)], body: &Value) -> Reply {
        let body = body.to_string();
        exchange(self.routing.address(), &request("POST", "/v1/chat/completions", headers, body.as_bytes()))
    }

    fn metric(&self, line: &str) -> f64 {
        let text = self.get("/metrics").text();
        let found = text.lines().find_map(|candidate| candidate.strip_prefix(line));
        found.unwrap_or_else(|| panic!("no {line} in {text}")).trim().parse().unwrap()
    }
}

/// A server whose first requests to generate are treated by a script; checks are always passed.
struct Scripted {
    address: SocketAddr,
    asked: Arc<AtomicUsize>,
}

const READY: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";
const STREAM: &str =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

impl Scripted {
    /// Sends a text for each request and closes the connection.
    fn answering(text: &'static str) -> Self {
        Self::start(move |stream| drop(stream.write_all(text.as_bytes())))
    }

    fn start(treat: impl Fn(&mut TcpStream) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::new(AtomicUsize::new(0));
        let (count, treat) = (asked.clone(), Arc::new(treat));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, count, treat) = (stream.unwrap(), count.clone(), treat.clone());
                std::thread::spawn(move || {
                    let head = read_request(&mut stream);
                    if head.starts_with("POST") {
                        count.fetch_add(1, Ordering::SeqCst);
                        treat(&mut stream);
                    } else {
                        let _ = stream.write_all(READY.as_bytes());
                    }
                });
            }
        });
        Self { address, asked }
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

/// A request with its body.
fn read_request(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let whole = String::from_utf8_lossy(&text).into_owned();
        if let Some((head, body)) = whole.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .find_map(|line| line.to_lowercase().strip_prefix("content-length: ").map(str::to_owned));
            if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
                return whole;
            }
        }
        match stream.read(&mut buffer) {
            Ok(count @ 1..) => text.extend(&buffer[..count]),
            _ => return String::new(),
        }
    }
}

fn parrots(count: usize) -> Vec<Fixture> {
    (0..count).map(|at| Fixture::start(Parrot::new(move |_| format!("the garden {at}")))).collect()
}

fn addresses(fixtures: &[Fixture]) -> Vec<SocketAddr> {
    fixtures.iter().map(|fixture| fixture.address).collect()
}

fn content(reply: &Reply) -> String {
    reply.json()["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
}

#[test]
fn requests_with_a_common_prefix_go_to_one_replica_and_others_spread() {
    let replicas = parrots(3);
    let routed = Routed::over(&addresses(&replicas));
    let long = "the lamp is in the garden ".repeat(40);
    let mut first = None;
    for turn in 0..6 {
        let reply = routed.chat(&format!("{long} {turn}"), json!({}));
        assert_eq!(reply.status, 200, "{}", reply.text());
        let answered = content(&reply);
        assert_eq!(first.get_or_insert(answered.clone()), &answered, "the prefix is there");
    }
    let mut seen: Vec<String> =
        (0..60).map(|turn| content(&routed.chat(&format!("{turn} ").repeat(60), json!({})))).collect();
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 3, "prompts that share nothing do not all go to one");
    let routed_by_prefix: f64 = routed
        .get("/metrics")
        .text()
        .lines()
        .filter(|line| line.starts_with("bedplate_router_routed_total") && line.contains("reason=\"prefix\""))
        .map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap())
        .sum();
    assert!(routed_by_prefix >= 5.0, "{routed_by_prefix}");
}

#[test]
fn a_stream_comes_through_as_it_is_written() {
    let replica = Fixture::start(Parrot::echoing().slow(Duration::from_millis(20)));
    let routed = Routed::over(&[replica.address]);
    let reply = routed
        .chat("the garden is green", json!({ "stream": true, "stream_options": { "include_usage": true } }));
    assert_eq!(reply.status, 200);
    assert_eq!(reply.headers["content-type"], "text/event-stream; charset=utf-8");
    let direct = replica
        .chat("the garden is green", json!({ "stream": true, "stream_options": { "include_usage": true } }));
    let shape = |reply: &Reply| -> Vec<Value> {
        reply
            .events()
            .into_iter()
            .map(|mut event| {
                ["id", "created"].iter().for_each(|key| event[key] = Value::Null);
                event
            })
            .collect()
    };
    assert_eq!(shape(&reply), shape(&direct));
}

#[test]
fn the_first_token_is_passed_on_before_the_last_is_there() {
    let replica = Scripted::start(|stream| {
        stream.write_all(STREAM.as_bytes()).unwrap();
        stream.write_all(b"9\r\ndata: 1\n\n\r\n").unwrap();
        // Nothing more until the router goes away.
        let _ = stream.read(&mut [0; 16]);
    });
    let routed = Routed::over(&[replica.address]);
    let mut stream = TcpStream::connect(routed.routing.address()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&request("POST", "/v1/completions", &[], b"{}")).unwrap();
    let mut text = String::new();
    while !text.contains("data: 1\n\n") {
        let mut buffer = [0; 256];
        let count = stream.read(&mut buffer).unwrap();
        assert_ne!(count, 0, "{text}");
        text.push_str(std::str::from_utf8(&buffer[..count]).unwrap());
    }
}

#[test]
fn a_client_that_goes_away_ends_the_request_on_the_replica() {
    for more in [json!({ "stream": true }), json!({})] {
        let parrot = Parrot::new(|_| "the garden ".repeat(500)).slow(Duration::from_millis(5));
        let cancelled = parrot.cancelled.clone();
        let replica = Fixture::start(parrot);
        let routed = Routed::over(&[replica.address]);
        let mut stream = TcpStream::connect(routed.routing.address()).unwrap();
        let body = chat("x", more).to_string();
        stream.write_all(&request("POST", "/v1/chat/completions", &[], body.as_bytes())).unwrap();
        wait_until("the replica has begun", || {
            replica.get("/metrics").text().contains("vllm:num_requests_running{model_name=\"parrot\"} 1")
        });
        drop(stream);
        wait_until("it is cancelled", || cancelled.load(Ordering::Relaxed) == 1);
        wait_until("it is no load any more", || routed.routing.members().sequences() == 0);
    }
}

#[test]
fn a_replica_that_is_lost_before_its_first_byte_is_replaced_by_another() {
    for script in
        ["", "HTTP/1.1 200 OK\r\n", STREAM, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"half\":"]
    {
        let (bad, good) = (Scripted::answering(script), parrots(1));
        // The one that fails is preferred: the other one has work.
        let routed = Routed::with(&[bad.address, good[0].address], |options| {
            options.policy.policy = bedplate_batching::RoutingPolicy::RoundRobin;
        });
        for _ in 0..4 {
            let reply = routed.chat("x", json!({}));
            assert_eq!((reply.status, content(&reply).as_str()), (200, "the garden 0"), "{script}");
        }
        assert!(bad.asked() >= 1, "{script}");
        let lost = format!("bedplate_router_failures_total{{replica=\"http://{}\"}}", bad.address);
        assert_eq!(routed.metric(&lost) as usize, bad.asked());
        assert_eq!(routed.metric("bedplate_router_retries_total") as usize, bad.asked());
    }
}

#[test]
fn a_stream_that_breaks_ends_with_an_error_and_is_never_begun_again() {
    let broken = || {
        Scripted::start(|stream| {
            stream.write_all(STREAM.as_bytes()).unwrap();
            stream.write_all(b"9\r\ndata: 1\n\n\r\n").unwrap();
            stream.write_all(b"e\r\ndata: {\"half\": \r\n").unwrap();
        })
    };
    let (one, other) = (broken(), broken());
    let routed = Routed::over(&[one.address, other.address]);
    let reply = routed.chat("x", json!({ "stream": true }));
    assert_eq!(reply.status, 200);
    let events = reply.events();
    assert_eq!(events[0], json!(1));
    assert_eq!(events.len(), 2, "no half event: {events:?}");
    assert_eq!(events[1]["error"]["code"], "replica_lost");
    assert_eq!(events[1]["error"]["type"], "server_error");
    assert_eq!(one.asked() + other.asked(), 1);
}

#[test]
fn a_replica_that_refuses_is_passed_over_and_its_refusal_shown_only_if_all_do() {
    const FULL: &str = "HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json\r\nContent-Length: 16\r\nConnection: close\r\n\r\n{\"error\":\"full\"}";
    let (full, good) = (Scripted::answering(FULL), parrots(1));
    let routed = Routed::with(&[full.address, good[0].address], |options| {
        options.policy.policy = bedplate_batching::RoutingPolicy::RoundRobin;
    });
    for _ in 0..4 {
        assert_eq!(routed.chat("x", json!({})).status, 200);
    }
    assert!(full.asked() >= 1);
    let routed = Routed::over(&[full.address]);
    let reply = routed.chat("x", json!({}));
    assert_eq!((reply.status, reply.text().as_str()), (429, "{\"error\":\"full\"}"));
    routed.stands(full.address, ReplicaHealth::In);
}

#[test]
fn errors_of_a_replica_are_passed_on_and_not_tried_again() {
    let replicas = parrots(2);
    let routed = Routed::over(&addresses(&replicas));
    let reply = routed.post(&[], &json!({ "model": "parrot", "messages": [] }));
    assert_eq!(reply.error(), (400, "invalid_request_error".into(), String::new(), "messages".into()));
    assert_eq!(routed.metric("bedplate_router_retries_total"), 0.0);
}

#[test]
fn a_replica_is_out_after_failed_checks_and_back_after_one_that_it_passes() {
    let mut replicas = parrots(2);
    let routed = Routed::over(&addresses(&replicas));
    let gone = replicas.remove(0);
    let address = gone.address;
    drop(gone);
    routed.stands(address, ReplicaHealth::Out);
    for _ in 0..5 {
        assert_eq!(content(&routed.chat("x", json!({}))), "the garden 1");
    }
    assert_eq!(routed.metric(&format!("bedplate_router_replica_up{{replica=\"http://{address}\"}}")), 0.0);
    let again = Fixture::start_with(Parrot::new(|_| "back".into()), |options| options.listen = address);
    routed.stands(again.address, ReplicaHealth::In);
}

#[test]
fn a_replica_that_says_nothing_loses_its_requests_to_another() {
    // It answers checks until it is asked to generate; from then on it is silent, like a stopped process.
    let silent = Arc::new(AtomicUsize::new(0));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let is_silent = silent.clone();
    std::thread::spawn(move || {
        let mut held = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            if is_silent.load(Ordering::SeqCst) == 0 && read_request(&mut stream).starts_with("GET") {
                let _ = stream.write_all(READY.as_bytes());
                continue;
            }
            is_silent.store(1, Ordering::SeqCst);
            held.push(stream);
        }
    });
    let good = parrots(1);
    let routed = Routed::with(&[address, good[0].address], |options| {
        options.policy.policy = bedplate_batching::RoutingPolicy::RoundRobin;
        options.checks.timeout = Duration::from_millis(300);
    });
    for _ in 0..3 {
        assert_eq!(content(&routed.chat("x", json!({}))), "the garden 0");
    }
    assert_eq!(silent.load(Ordering::SeqCst), 1, "it was asked");
    routed.stands(address, ReplicaHealth::Out);
}

/// As one does that drains: it takes no more connections and finishes what it has.
#[test]
fn a_replica_that_refuses_connections_may_finish_its_answer() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (go_on, may_answer) = std::sync::mpsc::channel::<()>();
    std::thread::spawn(move || {
        let mut asked = loop {
            let (mut stream, _) = listener.accept().unwrap();
            if !read_request(&mut stream).starts_with("GET") {
                break stream;
            }
            let _ = stream.write_all(READY.as_bytes());
        };
        drop(listener);
        let _ = may_answer.recv();
        let body = "{\"late\":true}";
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length:";
        let _ = asked.write_all(format!("{head} {}\r\n\r\n{body}", body.len()).as_bytes());
    });
    let routed = Routed::over(&[address]);
    std::thread::scope(|scope| {
        let reply = scope.spawn(|| routed.chat("x", json!({})));
        routed.stands(address, ReplicaHealth::Out);
        go_on.send(()).unwrap();
        let reply = reply.join().unwrap();
        assert_eq!((reply.status, reply.text().as_str()), (200, "{\"late\":true}"));
    });
}

#[test]
fn without_a_replica_requests_are_refused_until_one_is_there() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let routed = Routed::unsettled(&[address], |_| {});
    let reply = routed.chat("x", json!({}));
    assert_eq!(reply.error(), (503, "server_error".into(), "service_unavailable".into(), String::new()));
    assert_eq!(reply.headers["retry-after"], "1");
    assert_eq!((routed.get("/health").status, routed.get("/ready").status), (200, 503));
    let _late = Fixture::start_with(Parrot::echoing(), |options| options.listen = address);
    routed.stands(address, ReplicaHealth::In);
    assert_eq!((routed.chat("x", json!({})).status, routed.get("/ready").status), (200, 200));
}

#[test]
fn keys_are_checked_at_the_router_and_replicas_are_shown_their_own() {
    let replica = Fixture::start_with(Parrot::echoing(), |options| options.keys = vec!["inner".into()]);
    let routed = Routed::with(&[replica.address], |options| {
        options.keys = vec!["outer".into()];
        options.replica_key = Some("inner".into());
    });
    let status = |headers: &[(&str, &str)]| routed.post(headers, &chat("x", json!({}))).status;
    assert_eq!(status(&[]), 401);
    assert_eq!(status(&[("Authorization", "Bearer inner")]), 401);
    assert_eq!(status(&[("Authorization", "Bearer outer")]), 200);
    assert_eq!(routed.get("/v1/models").status, 401);
    // Without a key of its own, the router shows the client's.
    let routed = Routed::over(&[replica.address]);
    let status = |headers: &[(&str, &str)]| routed.post(headers, &chat("x", json!({}))).status;
    assert_eq!(status(&[]), 401);
    assert_eq!(status(&[("Authorization", "Bearer inner")]), 200);
}

#[test]
fn models_of_all_replicas_are_listed_once_and_requests_go_to_those_that_have_theirs() {
    let parrot = parrots(2);
    let other = {
        let model = bedplate_gateway::ServedModel::new(
            "owl",
            vec![Arc::new(Parrot::new(|_| "hoo".into()))],
            crate::support::TOKENIZER.clone(),
        );
        let options =
            bedplate_gateway::GatewayOptions { listen: "127.0.0.1:0".parse().unwrap(), ..Default::default() };
        bedplate_gateway::start(vec![model.unwrap()], options).unwrap()
    };
    let routed = Routed::over(&[parrot[0].address, parrot[1].address, other.address()]);
    let listed = routed.get("/v1/models").json();
    let names: Vec<&str> =
        listed["data"].as_array().unwrap().iter().map(|entry| entry["id"].as_str().unwrap()).collect();
    assert_eq!(names, ["parrot", "gpt-4o", "parrot-lora", "owl"]);
    assert_eq!(routed.get("/v1/models/owl").json()["id"], "owl");
    assert_eq!(routed.get("/v1/models/eagle").status, 404);
    for _ in 0..5 {
        assert_eq!(content(&routed.chat("x", json!({ "model": "owl" }))), "hoo");
    }
    let reply = routed.chat("x", json!({ "model": "owls" }));
    assert_eq!(
        reply.error(),
        (404, "invalid_request_error".into(), "model_not_found".into(), "model".into())
    );
    assert!(reply.text().contains("did you mean `owl`"), "{}", reply.text());
}

#[test]
fn a_file_of_replicas_is_followed_and_a_bad_one_changes_nothing() {
    let replicas = parrots(2);
    let folder = std::env::temp_dir().join(format!("bedplate-router-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("replicas");
    let write = |text: String| std::fs::write(&file, text).unwrap();
    write(format!("# one\nhttp://{}\n", replicas[0].address));
    bedplate_testkit::keep_logs();
    let routed = Routed::unsettled(&[], |options| {
        options.replicas_file = Some(file.clone());
    });
    routed.stands(replicas[0].address, ReplicaHealth::In);
    write(format!("http://{}/v1\n", replicas[1].address));
    routed.stands(replicas[1].address, ReplicaHealth::In);
    let first = replicas[0].address.to_string().parse().unwrap();
    assert_eq!(routed.routing.members().replica_health(&first), None);
    write("https://example.org\n".into());
    wait_until("the file is refused", || {
        bedplate_testkit::has_logged("replicas:1: `https://example.org` is encrypted")
    });
    assert_eq!(content(&routed.chat("x", json!({}))), "the garden 1");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_router_does_not_start_with_a_file_that_it_cannot_read() {
    let options = |file: &str| RouteOptions {
        listen: "127.0.0.1:0".parse().unwrap(),
        replicas_file: Some(file.into()),
        ..RouteOptions::default()
    };
    assert!(
        route(options("/no/such/file"))
            .is_err_and(|error| error.to_string() == "cannot read the replicas in /no/such/file")
    );
    assert!(route(options("/dev/zero")).is_err());
}

#[test]
fn a_removed_replica_finishes_what_it_has() {
    let replica = Fixture::start(Parrot::echoing().slow(Duration::from_millis(50)));
    let routed = Routed::over(&[replica.address]);
    std::thread::scope(|scope| {
        let asking =
            scope.spawn(|| routed.chat("the garden is green and the lamp", json!({ "stream": true })));
        wait_until("it runs", || routed.routing.members().sequences() == 1);
        routed.routing.members().remove(&replica.address.to_string().parse().unwrap());
        let events = asking.join().unwrap().events();
        assert!(events.iter().all(|event| event.get("error").is_none()), "{events:?}");
    });
    assert_eq!(routed.chat("x", json!({})).status, 503);
}

#[test]
fn paths_that_no_server_has_are_not_passed_on() {
    let replica = Scripted::answering(READY);
    let routed = Routed::over(&[replica.address]);
    assert_eq!(routed.get("/v1/chat/completions").status, 405);
    assert_eq!(routed.get("/nothing").status, 404);
    assert_eq!(exchange(routed.routing.address(), &request("POST", "/admin", &[], b"{}")).status, 404);
    assert_eq!(replica.asked(), 0);
    let large =
        exchange(routed.routing.address(), &request("POST", "/v1/completions", &[], &vec![b' '; 17 << 20]));
    assert_eq!(large.status, 413);
}

/// It passes every check and holds every request, until it is healed.
#[test]
fn a_replica_that_passes_its_checks_and_hangs_is_found_by_its_requests() {
    let is_healed = Arc::new(AtomicUsize::new(0));
    let healed = is_healed.clone();
    let hanging = Scripted::start(move |stream| {
        if healed.load(Ordering::SeqCst) == 0 {
            // Until the router gives up.
            let _ = stream.read(&mut [0]);
        }
        let _ = stream.write_all(READY.as_bytes());
    });
    let good = Fixture::start(Parrot::echoing());
    let routed = Routed::with(&[hanging.address, good.address], |options| {
        options.checks.hang = Duration::from_millis(300);
    });
    std::thread::scope(|scope| {
        let routed = &routed;
        let ask = move |number: usize| routed.chat(&format!("question {number}"), json!({})).status;
        let asked: Vec<_> = (0..8).map(|number| scope.spawn(move || ask(number))).collect();
        let statuses: Vec<u16> = asked.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert_eq!(statuses, [200; 8]);
    });
    assert!(hanging.asked() > 0, "none was sent there");
    routed.stands(hanging.address, ReplicaHealth::Out);
    assert_eq!(routed.chat("x", json!({})).status, 200);
    is_healed.store(1, Ordering::SeqCst);
    routed.stands(hanging.address, ReplicaHealth::In);
}

/// Its answers take longer than a hanging replica is given, and it computes all the while.
#[test]
fn a_replica_that_is_slow_is_not_taken_for_one_that_hangs() {
    let slow = Fixture::start(Parrot::echoing().slow(Duration::from_millis(150)));
    let routed = Routed::with(&[slow.address], |options| options.checks.hang = Duration::from_millis(400));
    let reply = routed.chat("the garden is green and the lamp is in the garden", json!({}));
    assert_eq!((reply.status, reply.json()["choices"][0]["finish_reason"].as_str()), (200, Some("stop")));
}
