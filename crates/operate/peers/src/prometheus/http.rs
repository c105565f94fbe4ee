//! Queries in addresses, and a listener for what Alertmanager sends.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

pub(super) const PATIENCE: Duration = Duration::from_secs(30);
pub(super) const LARGEST: u64 = 64 << 20;

pub(super) fn percent_encoded(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    text.bytes().map(encode).collect()
}

/// What Alertmanager sent, and when it had arrived.
#[derive(Debug, Clone)]
pub struct SentAlert {
    pub body: String,
    pub at: Instant,
}

/// An address to which alerts are sent.
pub struct Webhook {
    address: SocketAddr,
    requests: Receiver<SentAlert>,
}

impl Webhook {
    /// Listens on a free port of loopback, until the process ends.
    pub fn listen() -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let (sender, requests) = channel();
        thread::spawn(move || serve(&listener, &sender));
        Ok(Self { address, requests })
    }

    pub fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// The next request; nothing when none comes in time.
    pub fn next(&self, patience: Duration) -> Option<SentAlert> {
        self.requests.recv_timeout(patience).ok()
    }
}

fn serve(listener: &TcpListener, sender: &Sender<SentAlert>) {
    for stream in listener.incoming().flatten() {
        if let Ok(body) = take(stream)
            && sender.send(SentAlert { body, at: Instant::now() }).is_err()
        {
            return;
        }
    }
}

fn take(mut stream: TcpStream) -> io::Result<String> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut bytes = Vec::new();
    let mut buffer = [0; 8192];
    loop {
        let count = stream.read(&mut buffer)?;
        bytes.extend_from_slice(&buffer[..count]);
        if count == 0 || is_whole(&bytes) || bytes.len() as u64 > LARGEST {
            break;
        }
    }
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
}

/// All that the head announces has arrived.
fn is_whole(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head
        .lines()
        .find_map(|line| line.to_lowercase().strip_prefix("content-length:")?.trim().parse::<usize>().ok());
    length.is_none_or(|length| body.len() >= length)
}
