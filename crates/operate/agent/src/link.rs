//! The link to the control plane: one connection that is made again whenever it breaks.
//!
//! It begins as an HTTP request that asks for another protocol, so that one port serves people and agents, and then
//! carries JSON lines both ways. This module does not know what the messages mean.

use std::io;
use std::time::Duration;

use bedplate_control::agent::LinkLoss;
use bedplate_control::wire::{FromAgent, ToAgent};
use serde_json::Value;
use tokio::io::{
    AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader,
};
use tokio::net::TcpStream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tracing::warn;

use crate::event::AgentEvent;
use crate::fault_injection::FaultInjection;
use crate::options::AgentOptions;

/// The longest line of the protocol.
const LONGEST_LINE: u64 = 16 << 20;
/// The longest head of an HTTP response.
const LONGEST_HEAD: usize = 16 << 10;
const LONGEST_ERROR: u64 = 64 << 10;
/// How long a connection may take, a refusal apart. Shorter than the pauses between TCP's own attempts, which grow to
/// a minute while a network is cut.
const CONNECT_TIME: Duration = Duration::from_secs(2);
/// A link on which nothing was heard for this long is made again: heartbeats are answered twice a second.
const SILENCE: Duration = Duration::from_secs(5);

/// Why there is no link.
#[derive(Debug)]
enum Failure {
    /// Nothing listens there.
    Refused,
    Gone(io::Error),
    /// The control plane answers with an error.
    Status {
        status: u16,
        message: String,
    },
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Failure::Refused,
            _ => Failure::Gone(error),
        }
    }
}

/// A connection, encrypted or not.
trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}
type Stream = BufReader<Box<dyn Connection>>;

/// Keeps a link up for as long as its events have a receiver.
pub(crate) async fn keep(
    options: AgentOptions,
    tls: Option<TlsConnector>,
    fault_injection: FaultInjection,
    events: UnboundedSender<AgentEvent>,
) {
    let mut last_remark = String::new();
    for attempt in 0_u64.. {
        fault_injection.end_of_cut().await;
        let (loss, remark) = match connect_to_any(&options, tls.as_ref()).await {
            Ok(stream) => {
                last_remark.clear();
                let error = converse(stream, &fault_injection, &events).await;
                (LinkLoss::Gone, format!("the link to the control plane is lost: {error}"))
            }
            Err(Failure::Refused) => {
                (LinkLoss::Refused, format!("no control plane listens at {}", options.server))
            }
            Err(Failure::Gone(error)) => {
                (LinkLoss::Gone, format!("cannot reach the control plane at {}: {error}", options.server))
            }
            Err(Failure::Status { status, message }) => {
                if matches!(status, 401 | 403) {
                    let _ = events.send(AgentEvent::Refused { status, message });
                    return;
                }
                (LinkLoss::Gone, format!("the control plane answers with status {status}: {message}"))
            }
        };
        if remark != last_remark {
            warn!(node = options.node, "{remark}");
            last_remark = remark;
        }
        if events.send(AgentEvent::LinkLost(loss)).is_err() {
            return;
        }
        sleep(Duration::from_millis(pause_ms(&options.node, attempt))).await;
    }
}

/// Between 100 and 200 ms, different for every node, so that they do not all connect at once.
fn pause_ms(node: &str, attempt: u64) -> u64 {
    let seed = node
        .bytes()
        .fold(attempt, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3).rotate_left(7));
    100 + seed % 101
}

/// Tries each address in turn; its certificate says whether the control plane is there. That none runs is known only where every
/// host says so: behind one that is silent it may run and have given the node up.
async fn connect_to_any(options: &AgentOptions, tls: Option<&TlsConnector>) -> Result<Stream, Failure> {
    let mut failure = Failure::Refused;
    for server in options.server.split(',') {
        let silent = || io::Error::new(io::ErrorKind::TimedOut, format!("{server} does not answer"));
        let outcome = timeout(CONNECT_TIME, connect(server, options, tls)).await;
        match outcome.unwrap_or_else(|_| Err(Failure::Gone(silent()))) {
            Ok(stream) => return Ok(stream),
            Err(Failure::Refused) => {}
            // What a control plane itself says counts for more than that another address is silent.
            Err(other) if !matches!(failure, Failure::Status { .. }) => failure = other,
            Err(_) => {}
        }
    }
    Err(failure)
}

async fn connect(
    server: &str,
    options: &AgentOptions,
    tls: Option<&TlsConnector>,
) -> Result<Stream, Failure> {
    let socket = TcpStream::connect(server).await?;
    socket.set_nodelay(true)?;
    let connection: Box<dyn Connection> = match tls {
        None => Box::new(socket),
        Some(tls) => {
            // The fingerprint identifies the server; the name is not checked.
            let name = ServerName::try_from("bedplate").expect("it is a host name");
            Box::new(tls.connect(name, socket).await?)
        }
    };
    let mut stream = BufReader::new(connection);
    ask_for_link(&mut stream, options).await?;
    Ok(stream)
}

async fn ask_for_link(stream: &mut Stream, options: &AgentOptions) -> Result<(), Failure> {
    let request = format!(
        "POST /v1/agents/link HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nConnection: Upgrade\r\n\
         Upgrade: bedplate-link\r\nContent-Length: 0\r\n\r\n",
        options.server, options.token
    );
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await?;
    let head = read_head(stream).await?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse::<u16>().ok()).unwrap_or(0);
    match status {
        101 => Ok(()),
        _ => Err(Failure::Status { status, message: read_error(stream, &head).await }),
    }
}

async fn read_head(stream: &mut Stream) -> io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let length = stream.take((LONGEST_HEAD - head.len()) as u64).read_until(b'\n', &mut head).await?;
        if length == 0 || head.len() >= LONGEST_HEAD {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the answer is not HTTP"));
        }
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

/// The message of an error in JSON, or the text as it is.
async fn read_error(stream: &mut Stream, head: &str) -> String {
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<u64>().ok())?
    });
    let mut body = Vec::new();
    let _ = stream.take(length.unwrap_or(0).min(LONGEST_ERROR)).read_to_end(&mut body).await;
    let value: Value = serde_json::from_slice(&body).unwrap_or_default();
    let message = value.get("message").or_else(|| value.get("error")?.get("message")).and_then(Value::as_str);
    message.map_or_else(|| String::from_utf8_lossy(&body).trim().to_owned(), str::to_owned)
}

/// Carries messages until the connection breaks; says why it did.
async fn converse(
    stream: Stream,
    fault_injection: &FaultInjection,
    events: &UnboundedSender<AgentEvent>,
) -> io::Error {
    let (reading, writing) = tokio::io::split(stream);
    let (outgoing, messages) = unbounded_channel();
    let (arrived, arrivals) = unbounded_channel();
    if events.send(AgentEvent::Linked(outgoing)).is_err() {
        return io::ErrorKind::BrokenPipe.into();
    }
    let closed = || io::Error::new(io::ErrorKind::ConnectionAborted, "closed on this side");
    tokio::select! {
        error = read_messages(BufReader::new(reading), fault_injection, arrived) => error,
        error = write_messages(writing, fault_injection, messages) => error.unwrap_or_else(closed),
        () = deliver(arrivals, events) => closed(),
    }
}

async fn read_messages(
    mut reading: impl AsyncBufRead + Unpin,
    fault_injection: &FaultInjection,
    arrived: UnboundedSender<(Instant, ToAgent)>,
) -> io::Error {
    loop {
        fault_injection.end_of_cut().await;
        let message = match timeout(SILENCE, read_line(&mut reading)).await {
            Ok(Ok(message)) => message,
            Ok(Err(error)) => return error,
            Err(_) => {
                return io::Error::new(io::ErrorKind::TimedOut, "nothing is heard of the control plane");
            }
        };
        // The cut may have begun while nothing was there to read.
        let due = fault_injection.cut_until().max(fault_injection.delayed(Instant::now()));
        if arrived.send((due, message)).is_err() {
            return io::ErrorKind::BrokenPipe.into();
        }
    }
}

async fn read_line(reading: &mut (impl AsyncBufRead + Unpin)) -> io::Result<ToAgent> {
    let mut line = Vec::new();
    reading.take(LONGEST_LINE).read_until(b'\n', &mut line).await?;
    if line.is_empty() {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "closed by the control plane"));
    }
    if !line.ends_with(b"\n") {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a line was cut off or is too long"));
    }
    serde_json::from_slice(&line).map_err(|error| {
        io::Error::new(io::ErrorKind::InvalidData, format!("a line is not a message: {error}"))
    })
}

async fn deliver(mut arrivals: UnboundedReceiver<(Instant, ToAgent)>, events: &UnboundedSender<AgentEvent>) {
    while let Some((due, message)) = arrivals.recv().await {
        if due > Instant::now() {
            sleep_until(due).await;
        }
        if events.send(AgentEvent::Told(message)).is_err() {
            return;
        }
    }
}

/// Writes until the other end closes or all senders are gone (`None`).
async fn write_messages(
    mut writing: impl AsyncWrite + Unpin,
    fault_injection: &FaultInjection,
    mut messages: UnboundedReceiver<FromAgent>,
) -> Option<io::Error> {
    let mut batch = Vec::new();
    while messages.recv_many(&mut batch, 256).await > 0 {
        let due = fault_injection.cut_until().max(fault_injection.delayed(Instant::now()));
        if due > Instant::now() {
            sleep_until(due).await;
        }
        let mut bytes = Vec::new();
        for message in batch.drain(..) {
            serde_json::to_writer(&mut bytes, &message).expect("a message is plain data");
            bytes.push(b'\n');
        }
        let written = async {
            writing.write_all(&bytes).await?;
            writing.flush().await
        };
        if let Err(error) = written.await {
            return Some(error);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_between_a_tenth_and_a_fifth_of_a_second_and_differ() {
        let pauses: Vec<u64> = (0..50).map(|attempt| pause_ms("n1", attempt)).collect();
        assert!(pauses.iter().all(|pause| (100..=200).contains(pause)), "{pauses:?}");
        assert!(pauses.windows(2).any(|pair| pair[0] != pair[1]));
        assert_ne!(pauses, (0..50).map(|attempt| pause_ms("n2", attempt)).collect::<Vec<u64>>());
    }

    #[tokio::test]
    async fn a_line_that_is_no_message_or_was_cut_off_ends_the_link() {
        for (text, told) in [
            ("{}\n", "a line is not a message"),
            ("{\"type\":\"alive\",\"sequence\":1}", "a line was cut off"),
            ("", "closed by the control plane"),
        ] {
            let error = read_line(&mut text.as_bytes()).await.unwrap_err().to_string();
            assert!(error.starts_with(told), "{error}");
        }
        let mut good = "{\"type\":\"alive\",\"sequence\":1}\n".as_bytes();
        assert_eq!(read_line(&mut good).await.unwrap(), ToAgent::Alive { sequence: 1 });
    }
}
