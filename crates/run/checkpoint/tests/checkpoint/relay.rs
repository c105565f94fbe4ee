//! A relay in front of an object store that makes trouble: it cuts, shortens, stalls and refuses requests, or loses their answers.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// What happens to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The connection breaks when half of the body has been passed on.
    Cut,
    /// Half of the body is passed on as all of it.
    Shorten,
    /// The server never hears of it.
    Unavailable,
    /// It is carried out, and the connection breaks before the answer.
    LoseAnswer,
    /// Nothing happens for a while, then the connection breaks.
    Stall,
}

/// Which requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Requests {
    Parts,
    Completions,
    Manifests,
    Deletions,
    All,
}

impl Requests {
    fn has(self, line: &str) -> bool {
        match self {
            Requests::Parts => line.starts_with("PUT ") && !line.contains("manifest.json"),
            Requests::Completions => line.starts_with("POST ") && line.contains("uploadId="),
            Requests::Manifests => line.starts_with("PUT ") && line.contains("manifest.json"),
            // One by one, or many at once.
            Requests::Deletions => {
                line.starts_with("DELETE ") || line.starts_with("POST ") && line.contains("?delete")
            }
            Requests::All => true,
        }
    }
}

/// The trouble to make, and how often.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) trouble: Trouble,
    pub(crate) requests: Requests,
    pub(crate) times: usize,
}

#[derive(Clone)]
pub(crate) struct Relay {
    plan: Arc<Mutex<Option<Plan>>>,
    server: SocketAddr,
}

impl Relay {
    pub(crate) fn start(at: SocketAddr, server: SocketAddr) -> Self {
        let relay = Self { plan: Arc::default(), server };
        let listener = TcpListener::bind(at).unwrap();
        let relaying = relay.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let relay = relaying.clone();
                thread::spawn(move || relay.pass(stream));
            }
        });
        relay
    }

    /// What happens from now on; says how often the trouble before was still to be made.
    pub(crate) fn make(&self, plan: Option<Plan>) -> usize {
        let mut current = self.plan.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *current, plan).map_or(0, |plan| plan.times)
    }

    fn trouble_with(&self, line: &str) -> Option<Trouble> {
        let mut plan = self.plan.lock().unwrap_or_else(PoisonError::into_inner);
        let plan = plan.as_mut().filter(|plan| plan.times > 0 && plan.requests.has(line))?;
        plan.times -= 1;
        Some(plan.trouble)
    }

    /// One request on a connection, in both directions.
    fn pass(&self, client: TcpStream) -> io::Result<()> {
        let mut reader = BufReader::new(client.try_clone()?);
        let (mut head, mut length) = (Vec::new(), 0);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            if line == "\r\n" {
                break;
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap_or(0);
            } else {
                head.push(line);
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let trouble = self.trouble_with(&head[0]);
        let half = length / 2;
        match trouble {
            Some(Trouble::Unavailable) => {
                let refusal =
                    b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".as_slice();
                return (&client).write_all(refusal);
            }
            Some(Trouble::Stall) => {
                thread::sleep(Duration::from_secs(2));
                return Ok(());
            }
            Some(Trouble::Shorten) => body.truncate(half),
            Some(Trouble::Cut | Trouble::LoseAnswer) | None => {}
        }
        let mut server = TcpStream::connect(self.server)?;
        head.push(format!("Content-Length: {}\r\nConnection: close\r\n\r\n", body.len()));
        server.write_all(head.concat().as_bytes())?;
        if trouble == Some(Trouble::Cut) {
            return server.write_all(&body[..half]);
        }
        server.write_all(&body)?;
        let mut answer = Vec::new();
        server.read_to_end(&mut answer)?;
        match trouble {
            Some(Trouble::LoseAnswer) => Ok(()),
            _ => (&client).write_all(&answer),
        }
    }
}
