//! As much of HTTP/1.1 as a scrape needs: one request per connection, bounded in size and time.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

/// The longest request line and headers that are read.
const MAX_HEAD: usize = 8 << 10;

/// How much of an oversized request is read and discarded.
const MAX_IGNORED: u64 = 1 << 20;

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Metrics { with_body: bool },
    Nothing(Refused),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refused {
    Malformed,
    UnknownPath,
    OtherMethod,
    TooLarge,
    TooSlow,
}

impl Refused {
    fn status(self) -> &'static str {
        match self {
            Refused::Malformed => "400 Bad Request",
            Refused::UnknownPath => "404 Not Found",
            Refused::OtherMethod => "405 Method Not Allowed",
            Refused::TooSlow => "408 Request Timeout",
            Refused::TooLarge => "431 Request Header Fields Too Large",
        }
    }
}

/// Answers the one request of a connection; the client may take `patience` for its request and again for reading the answer. An
/// error means that the client is gone.
pub(crate) fn answer(
    mut stream: TcpStream,
    patience: Duration,
    metrics: impl FnOnce() -> String,
) -> io::Result<()> {
    let asked = match read_head(&mut stream, Instant::now() + patience)? {
        Ok(head) => asked(&head),
        Err(refused) => Asked::Nothing(refused),
    };
    stream.set_write_timeout(Some(patience))?;
    stream.write_all(response(asked, metrics).as_bytes())?;
    stream.shutdown(Shutdown::Write)?;
    if asked == Asked::Nothing(Refused::TooLarge) {
        // Closing with unread bytes would reset the connection and lose the answer.
        stream.set_read_timeout(Some(patience))?;
        io::copy(&mut stream.take(MAX_IGNORED), &mut io::sink())?;
    }
    Ok(())
}

/// Reads up to the empty line that ends the headers.
fn read_head(stream: &mut TcpStream, deadline: Instant) -> io::Result<Result<Vec<u8>, Refused>> {
    let mut head = Vec::new();
    let mut piece = [0; 1024];
    while !head.windows(4).any(|four| four == b"\r\n\r\n") {
        if head.len() > MAX_HEAD {
            return Ok(Err(Refused::TooLarge));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(Err(Refused::TooSlow));
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut piece) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => head.extend(&piece[..count]),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Ok(head))
}

fn asked(head: &[u8]) -> Asked {
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let [method, target, version] = words[..] else { return Asked::Nothing(Refused::Malformed) };
    if !version.starts_with(b"HTTP/1.") {
        return Asked::Nothing(Refused::Malformed);
    }
    let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
    match (method, path) {
        (b"GET", b"/metrics") => Asked::Metrics { with_body: true },
        (b"HEAD", b"/metrics") => Asked::Metrics { with_body: false },
        (b"GET" | b"HEAD", _) => Asked::Nothing(Refused::UnknownPath),
        _ => Asked::Nothing(Refused::OtherMethod),
    }
}

fn response(asked: Asked, metrics: impl FnOnce() -> String) -> String {
    let (status, kind, body) = match asked {
        Asked::Metrics { .. } => ("200 OK", "text/plain; version=0.0.4; charset=utf-8", metrics()),
        Asked::Nothing(refused) => {
            (refused.status(), "text/plain; charset=utf-8", "GET /metrics\n".to_owned())
        }
    };
    let body_sent = if asked == (Asked::Metrics { with_body: false }) { "" } else { &body };
    let allow = if asked == Asked::Nothing(Refused::OtherMethod) { "Allow: GET, HEAD\r\n" } else { "" };
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{allow}Connection: close\r\n\r\n{body_sent}",
        body.len()
    )
}
