//! Metrics that ranks offer themselves: vLLM, SGLang, `bedplate train`, or any program with a Prometheus endpoint.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use bedplate_record::Exposition;

use crate::error::ExportError;
use crate::foreign::Families;

/// How long one endpoint may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest answer that is read.
const LONGEST: u64 = 8 << 20;

/// An endpoint, and whose it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// `host:port`.
    pub address: String,
    pub path: String,
    pub job: Option<String>,
    pub rank: Option<String>,
}

impl Target {
    /// Reads `http://host:port/path`, `host:port/path` or `host:port`, with `,job=…` and `,rank=…` behind it.
    pub fn parse(text: &str) -> Result<Self, ExportError> {
        let refuse = |why: &'static str| ExportError::Target { text: text.to_owned(), why };
        let mut parts = text.split(',');
        let url = parts.next().unwrap_or("");
        if url.starts_with("https://") {
            return Err(refuse("only http is supported: ranks are on this host"));
        }
        let url = url.strip_prefix("http://").unwrap_or(url);
        let (address, path) = url.split_once('/').unwrap_or((url, "metrics"));
        let has_port = address
            .rsplit_once(':')
            .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0));
        if !has_port || url.contains([' ', '\r', '\n']) {
            return Err(refuse("it is not of the form http://host:port/metrics"));
        }
        let mut target =
            Self { address: address.to_owned(), path: format!("/{path}"), job: None, rank: None };
        for part in parts {
            match part.split_once('=') {
                Some(("job", job)) => target.job = Some(job.to_owned()),
                Some(("rank", rank)) => target.rank = Some(rank.to_owned()),
                _ => return Err(refuse("only `job=` and `rank=` may follow the address")),
            }
        }
        Ok(target)
    }

    /// The labels that its series get.
    pub(crate) fn labels(&self) -> String {
        let pairs = [("hpc_job", &self.job), ("rank", &self.rank)];
        let known = pairs.into_iter().filter_map(|(key, value)| Some((key, value.as_ref()?)));
        let labels: Vec<String> =
            known.map(|(key, value)| format!("{key}=\"{}\"", Exposition::escape(value))).collect();
        labels.join(",")
    }

    pub(crate) fn fetch(&self, host_label: &str) -> Option<Families> {
        let text = get(&self.address, &self.path)?;
        let labels = self.labels();
        let labels = if labels.is_empty() { host_label.to_owned() } else { format!("{labels},{host_label}") };
        Some(Families::read(&text, &labels))
    }
}

/// The body of an answer with status 200. HTTP/1.0, so that the body ends with the connection and comes in one piece.
fn get(address: &str, path: &str) -> Option<String> {
    let deadline = Instant::now() + PATIENCE;
    let reachable = address.to_socket_addrs().ok()?.next()?;
    let mut stream = TcpStream::connect_timeout(&reachable, PATIENCE).ok()?;
    stream.set_write_timeout(Some(PATIENCE)).ok()?;
    let request = format!(
        "GET {path} HTTP/1.0\r\nHost: {address}\r\nAccept: text/plain;version=0.0.4\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).ok()?;
    let answer = read_until(&mut stream, deadline)?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split_whitespace().nth(1)?;
    (status == "200").then(|| body.to_owned())
}

fn read_until(stream: &mut TcpStream, deadline: Instant) -> Option<String> {
    let mut answer = Vec::new();
    let mut piece = [0; 16 << 10];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || answer.len() as u64 > LONGEST {
            return None;
        }
        stream.set_read_timeout(Some(left)).ok()?;
        match stream.read(&mut piece) {
            Ok(0) => return Some(String::from_utf8_lossy(&answer).into_owned()),
            Ok(count) => answer.extend(&piece[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_with_job_and_rank() {
        let target = Target::parse("http://127.0.0.1:8000/metrics,job=7,rank=3").unwrap();
        assert_eq!((target.address.as_str(), target.path.as_str()), ("127.0.0.1:8000", "/metrics"));
        assert_eq!(target.labels(), "hpc_job=\"7\",rank=\"3\"");
        assert_eq!(Target::parse("localhost:9100").unwrap().path, "/metrics");
        for wrong in ["", "localhost", "https://x:1", "x:0", "x:1,colour=red", ":80", "a b:1"] {
            assert!(Target::parse(wrong).is_err(), "{wrong}");
        }
    }
}
