//! The endpoint with well-behaved and hostile clients.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::*;
use crate::StepRecord;

fn start() -> Endpoint {
    Endpoint::start("127.0.0.1:0".parse().unwrap(), Exposure::Loopback).unwrap()
}

fn ask(endpoint: &Endpoint, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(endpoint.address()).unwrap();
    stream.write_all(request).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

const GET: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: here\r\nAccept: */*\r\n\r\n";

#[test]
fn a_scrape_gets_what_the_training_thread_has_set() {
    let endpoint = start();
    for step in [1, 2] {
        endpoint.metrics().set_step(&StepRecord { step, ..StepRecord::default() });
        let answer = ask(&endpoint, GET);
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4"), "{head}");
        assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{head}");
        assert!(body.contains(&format!("bedplate_train_steps_total {step}\n")), "{body}");
    }
}

#[test]
fn other_requests_are_refused_by_their_status() {
    let endpoint = start();
    let long = [b"GET /metrics HTTP/1.1\r\nX: ".to_vec(), vec![b'x'; 20_000], b"\r\n\r\n".to_vec()].concat();
    let cases: [(&[u8], &str); 7] = [
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", "200 OK"),
        (b"GET /metrics?name=x HTTP/1.0\r\n\r\n", "200 OK"),
        (b"GET / HTTP/1.1\r\n\r\n", "404 Not Found"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", "405 Method Not Allowed"),
        (b"GET /metrics\r\n\r\n", "400 Bad Request"),
        (b"\x16\x03\x01\x02\x00 \xff\xfe HTTP/2\r\n\r\n", "400 Bad Request"),
        (&long, "431 Request Header Fields Too Large"),
    ];
    for (request, status) in cases {
        let answer = ask(&endpoint, request);
        // Old clients are answered in their own version.
        let version = if request.ends_with(b"HTTP/1.0\r\n\r\n") { "HTTP/1.0" } else { "HTTP/1.1" };
        assert!(answer.starts_with(&format!("{version} {status}\r\n")), "{answer}");
    }
    assert!(ask(&endpoint, cases[0].0).ends_with("\r\n\r\n"), "HEAD has no body");
}

#[test]
fn slow_or_vanished_clients_do_not_keep_others_waiting() {
    let address = "127.0.0.1:0".parse().unwrap();
    let endpoint = Endpoint::start_with(address, Exposure::Loopback, Duration::from_millis(50)).unwrap();
    let silent = ask(&endpoint, b"GET /met");
    assert!(silent.starts_with("HTTP/1.1 408 "), "{silent}");
    drop(TcpStream::connect(endpoint.address()).unwrap());
    let _never_asks = TcpStream::connect(endpoint.address()).unwrap();
    assert!(ask(&endpoint, GET).starts_with("HTTP/1.1 200 OK"));
}

#[test]
fn clients_that_say_nothing_hold_nobody_up() {
    let address = "127.0.0.1:0".parse().unwrap();
    let endpoint = Endpoint::start_with(address, Exposure::Loopback, Duration::from_secs(120)).unwrap();
    let silent: Vec<TcpStream> = (0..10).map(|_| TcpStream::connect(endpoint.address()).unwrap()).collect();
    assert!(ask(&endpoint, GET).starts_with("HTTP/1.1 200 OK"));
    drop(silent);
}

#[test]
fn an_address_for_other_machines_is_refused_unless_that_is_meant() {
    let everywhere = "0.0.0.0:0".parse().unwrap();
    let error = Endpoint::start(everywhere, Exposure::Loopback).err().unwrap();
    assert!(matches!(error, RecordError::NotLoopback { .. }));
    let endpoint = Endpoint::start(everywhere, Exposure::Anybody).unwrap();
    assert_ne!(endpoint.address().port(), 0);
}

#[test]
fn a_port_that_is_taken_is_an_error_and_a_dropped_endpoint_frees_its_own() {
    let first = start();
    let address = first.address();
    let error = Endpoint::start(address, Exposure::Loopback).err().unwrap();
    assert!(matches!(error, RecordError::Listen { .. }), "{error}");
    drop(first);
    assert!(TcpStream::connect(address).is_err());
}
