//! The server with well-behaved, slow and hostile clients.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bedplate_http::{Answer, Background, Body, Limits, Request, StatusCode, json, read_body, typed};
use bedplate_testkit::wait_until;
use tokio::sync::mpsc;

/// Longer than any of these tests takes, on any machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn limits() -> Limits {
    Limits { body_bytes: 1 << 16, grace: PATIENCE, ..Limits::default() }
}

/// `/bug` panics, `/echo` answers with the length of the body, `/endless` with bytes for as long as the client reads, `/slow` after a while. That `/slow` began
/// and that `/endless` ended is noted.
async fn answer(request: Request, limits: Limits, noted: Arc<AtomicUsize>) -> Answer {
    let (head, mut body) = request.into_parts();
    match head.uri.path() {
        "/echo" => match read_body(&head.headers, &mut body, &limits).await {
            Ok(body) => json(StatusCode::OK, &body.len()),
            Err(error) => json(error.status(), &error.to_string()),
        },
        "/bug" => panic!("a planted bug"),
        "/slow" => {
            noted.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(300)).await;
            json(StatusCode::OK, &"slow")
        }
        _ => typed(StatusCode::OK, "text/plain", endless(noted)),
    }
}

fn endless(ended: Arc<AtomicUsize>) -> Body {
    let (sender, receiver) = mpsc::channel(4);
    tokio::spawn(async move {
        while sender.send(vec![b'x'; 1 << 16].into()).await.is_ok() {}
        ended.fetch_add(1, Ordering::Relaxed);
    });
    Body::stream(receiver)
}

fn start(limits: Limits) -> (Background, Arc<AtomicUsize>) {
    let ended = Arc::new(AtomicUsize::new(0));
    let (given, told) = (limits.clone(), ended.clone());
    let handler = move |request: Request| answer(request, given.clone(), told.clone());
    (Background::start("127.0.0.1:0".parse().unwrap(), limits, handler).unwrap(), ended)
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn ask(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = connect(address);
    // A server that has answered already may not take the rest.
    let _ = stream.write_all(request);
    status(&mut stream)
}

fn status(stream: &mut TcpStream) -> String {
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

fn post(length: usize, body: &[u8]) -> Vec<u8> {
    let head = format!("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
    [head.as_bytes(), body].concat()
}

#[test]
fn bodies_and_heads_beyond_their_limits_are_answered_and_not_just_cut_off() {
    let (server, _) = start(limits());
    let large = vec![b'x'; 1 << 20];
    let long_head = [b"GET /echo HTTP/1.1\r\nX: ", &large[..40_000], b"\r\n\r\n"].concat();
    let chunked = [
        b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n100000\r\n",
        &large[..],
        b"\r\n0\r\n\r\n",
    ]
    .concat();
    for (request, expected) in [
        (post(5, b"hello"), "HTTP/1.1 200 OK"),
        (post(1 << 20, &large), "HTTP/1.1 413 Payload Too Large"),
        (chunked, "HTTP/1.1 413 Payload Too Large"),
        (long_head, "HTTP/1.1 431 Request Header Fields Too Large"),
        (b"nonsense\r\n\r\n".to_vec(), "HTTP/1.1 400 Bad Request"),
    ] {
        assert_eq!(ask(server.address(), &request), expected);
    }
}

#[test]
fn slow_heads_and_bodies_are_answered_with_408() {
    let soon = Duration::from_millis(100);
    let (server, _) = start(Limits { head: soon, body: soon, idle: soon, ..limits() });
    assert_eq!(ask(server.address(), b"GET /ec"), "HTTP/1.1 408 Request Timeout");
    assert_eq!(ask(server.address(), &post(100, b"he")), "HTTP/1.1 408 Request Timeout");
    let mut rest = String::new();
    connect(server.address()).read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "", "a client that says nothing is not answered");
}

#[test]
fn a_client_that_does_not_read_is_cut_off_and_its_answer_ends() {
    let (server, ended) = start(Limits { stall: Duration::from_millis(200), ..limits() });
    let mut idle = connect(server.address());
    idle.write_all(b"GET /endless HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    wait_until("the end of the answer", || ended.load(Ordering::Relaxed) == 1);
}

/// It reads a byte ten times as often as it would have to, and never what a client reads that wants the answer.
#[test]
fn a_client_that_reads_byte_by_byte_is_cut_off() {
    let (server, ended) = start(Limits { stall: Duration::from_millis(500), ..limits() });
    let mut slow = connect(server.address());
    slow.write_all(b"GET /endless HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    wait_until("the end of the answer", || {
        let mut byte = [0];
        let _ = slow.read(&mut byte);
        ended.load(Ordering::Relaxed) == 1
    });
}

#[test]
fn a_body_that_trickles_in_ends_before_its_whole_time_is_over() {
    let (server, _) = start(Limits { body_trickle: Duration::from_millis(300), ..limits() });
    let mut slow = connect(server.address());
    slow.write_all(&post(1 << 15, b"he")).unwrap();
    let trickle = slow.try_clone().unwrap();
    std::thread::spawn(move || {
        let mut trickle = trickle;
        while trickle.write_all(b"l").is_ok() {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    assert_eq!(status(&mut slow), "HTTP/1.1 408 Request Timeout");
}

#[test]
fn the_answer_ends_when_its_client_goes_away() {
    let (server, ended) = start(limits());
    let mut client = connect(server.address());
    client.write_all(b"GET /endless HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert_eq!(status(&mut client), "HTTP/1.1 200 OK");
    drop(client);
    wait_until("the end of the answer", || ended.load(Ordering::Relaxed) == 1);
}

#[test]
fn connections_beyond_the_limit_are_told_so() {
    let (server, _) = start(Limits { connections: 2, ..limits() });
    let held: Vec<TcpStream> = (0..2).map(|_| connect(server.address())).collect();
    assert_eq!(status(&mut connect(server.address())), "HTTP/1.1 503 Service Unavailable");
    drop(held);
    wait_until("room for a client", || ask(server.address(), &post(1, b"x")).ends_with("200 OK"));
}

#[test]
fn a_server_that_ends_finishes_what_it_was_asked() {
    let (server, arrived) = start(limits());
    let address = server.address();
    let mut client = connect(address);
    client.write_all(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    wait_until("the request", || arrived.load(Ordering::Relaxed) == 1);
    drop(server);
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("\"slow\""), "{answer}");
    assert!(TcpStream::connect(address).is_err(), "it listens no more");
}

#[test]
fn a_task_of_another_runtime_can_start_and_end_a_server_of_its_own() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (server, _) = start(Limits::default());
        let taken = server.address();
        let handler =
            |_: Request| std::future::ready(typed(StatusCode::OK, "text/plain", Body::whole("never")));
        assert!(Background::start(taken, Limits::default(), handler).is_err(), "{taken} is taken");
    });
}

#[test]
fn a_handler_that_panics_answers_with_its_words_and_the_server_goes_on() {
    let (server, _) = start(limits());
    let mut stream = connect(server.address());
    stream.write_all(b"GET /bug HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let mut told = String::new();
    stream.read_to_string(&mut told).unwrap();
    assert!(
        told.starts_with("HTTP/1.1 500") && told.contains("a bug in this program: a planted bug"),
        "{told}"
    );
    let told = ask(server.address(), &post(3, b"abc"));
    assert!(told.starts_with("HTTP/1.1 200"), "{told}");
}
