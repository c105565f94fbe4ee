//! An encrypted link goes to the control plane whose certificate was named, and to no other.
//!
//! `encrypted/` holds a certificate and key made for this test with openssl.

#![allow(clippy::unwrap_used, reason = "helpers fail as the test does")]

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use bedplate_agent::{AgentError, AgentOptions};
use bedplate_testkit::{has_logged, keep_logs, wait_until};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned};

const CERTIFICATE: &[u8] = include_bytes!("encrypted/certificate.der");
const KEY: &[u8] = include_bytes!("encrypted/key.der");
const LIMIT: Duration = Duration::from_secs(60);

fn fingerprint() -> String {
    let digest = ::ring::digest::digest(&::ring::digest::SHA256, CERTIFICATE);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn server() -> Arc<ServerConfig> {
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![CertificateDer::from(CERTIFICATE)], PrivateKeyDer::try_from(KEY).unwrap());
    Arc::new(config.unwrap())
}

/// Accepts connections; the first message of each that gets so far comes out.
fn listen() -> (String, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (heard, messages) = channel();
    let config = server();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (config, heard) = (Arc::clone(&config), heard.clone());
            std::thread::spawn(move || {
                if let Ok(message) = first_message(stream, config) {
                    let _ = heard.send(message);
                }
            });
        }
    });
    (address, messages)
}

fn first_message(stream: TcpStream, config: Arc<ServerConfig>) -> std::io::Result<String> {
    let connection = ServerConnection::new(config).map_err(std::io::Error::other)?;
    let mut reading = BufReader::new(StreamOwned::new(connection, stream));
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reading.read_line(&mut head)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
    reading.get_mut().write_all(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")?;
    let mut line = String::new();
    reading.read_line(&mut line)?;
    Ok(line)
}

/// An agent in this process.
fn start_agent(server: &str, node: &str, fingerprint: &str) {
    let state: PathBuf =
        std::env::temp_dir().join(format!("bedplate-encrypted-{}-{node}", std::process::id()));
    let mut options = AgentOptions::new(server, "secret", node, state);
    options.program = Some(env!("CARGO_BIN_EXE_bedplate-node").into());
    options.fingerprint = Some(fingerprint.to_owned());
    std::thread::spawn(move || bedplate_agent::run(options));
}

#[test]
fn the_named_certificate_is_trusted_and_no_other() {
    let (address, messages) = listen();
    keep_logs();
    start_agent(&address, "stranger", &"00".repeat(32));
    wait_until("the agent says why it cannot join", || has_logged("invalid peer certificate"));
    assert!(messages.try_recv().is_err());
    start_agent(&address, "friend", &fingerprint());
    let hello = messages.recv_timeout(LIMIT).unwrap();
    assert!(hello.starts_with("{\"type\":\"hello\",\"node\":\"friend\""), "{hello}");
}

#[test]
fn an_agent_follows_the_control_plane_to_another_address_and_passes_an_impostor_by() {
    let impostor = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = impostor.local_addr().unwrap();
    let (sent, heard) = channel();
    std::thread::spawn(move || {
        for mut stream in impostor.incoming().flatten() {
            let mut bytes = vec![0; 4096];
            let count = std::io::Read::read(&mut stream, &mut bytes).unwrap_or(0);
            let _ = sent.send(bytes[..count].to_vec());
        }
    });
    let (address, messages) = listen();
    start_agent(&format!("127.0.0.1:1,{taken},{address}"), "follower", &fingerprint());
    let hello = messages.recv_timeout(LIMIT).unwrap();
    assert!(hello.starts_with("{\"type\":\"hello\",\"node\":\"follower\""), "{hello}");
    let told = heard.recv_timeout(LIMIT).unwrap();
    assert!(
        told.starts_with(&[0x16]) && !told.windows(6).any(|part| part == b"secret"),
        "a TLS greeting only"
    );
}

#[test]
fn a_fingerprint_that_is_none_is_refused_at_once() {
    let mut options = AgentOptions::new("127.0.0.1:1", "secret", "n1", std::env::temp_dir());
    options.fingerprint = Some("abc".to_owned());
    assert!(matches!(bedplate_agent::run(options), Err(AgentError::Fingerprint { .. })));
}
