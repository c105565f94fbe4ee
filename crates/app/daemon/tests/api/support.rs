//! A daemon in a folder of its own, and a client that speaks just enough HTTP to misbehave.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use bedplate_catalog::Catalog;
use bedplate_daemon::{DaemonOptions, RunningDaemon, start};
use bedplate_topology::Cluster;
use serde_json::{Value, json};
use tempfile::TempDir;

pub(crate) const JOB: &str = "name = \"a\"\ncommand = [\"true\"]\nnodes = 1\ngpus_per_node = 8\n";

/// A folder that goes with the test.
pub(crate) struct Folder(TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(TempDir::with_prefix("bedplate-daemon-").unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

pub(crate) fn cluster() -> Cluster {
    Cluster::from_spec("p5.48xlarge:2", &Catalog::builtin()).unwrap()
}

/// Options for a test: a free port, where raw HTTP is understood, and nothing else unusual.
pub(crate) fn options(folder: &Folder) -> DaemonOptions {
    let mut options = DaemonOptions::new(folder.path().to_owned(), cluster());
    options.listen = SocketAddr::from(([127, 0, 0, 1], 0));
    options.tls = false;
    options.administrator = "root".into();
    options
}

pub(crate) struct Daemon {
    pub(crate) folder: Folder,
    pub(crate) running: Option<RunningDaemon>,
    pub(crate) address: SocketAddr,
}

impl Daemon {
    pub(crate) fn start() -> Self {
        Self::start_with(|_| {})
    }

    pub(crate) fn start_with(change: impl FnOnce(&mut DaemonOptions)) -> Self {
        let folder = Folder::new();
        let mut options = options(&folder);
        change(&mut options);
        let running = start(options).unwrap();
        let address = running.address();
        Self { folder, running: Some(running), address }
    }

    pub(crate) fn restart(&mut self) {
        self.running.take().unwrap().stop().unwrap();
        let running = start(options(&self.folder)).unwrap();
        self.address = running.address();
        self.running = Some(running);
    }

    pub(crate) fn admin(&self) -> Client {
        let token = std::fs::read_to_string(self.folder.path().join("admin.token")).unwrap();
        Client::connect(self.address, token.trim())
    }

    /// A client with a token of its own.
    pub(crate) fn client(&self, user: &str, role: &str) -> Client {
        let made = self.admin().post("/v1/tokens", &json!({ "user": user, "role": role }));
        assert_eq!(made.status, 201, "{}", made.text());
        Client::connect(self.address, made.json()["token"].as_str().unwrap())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            let _ = running.stop();
        }
    }
}

pub(crate) struct Client {
    pub(crate) stream: BufReader<TcpStream>,
    pub(crate) token: String,
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("not JSON: {}", self.text()))
    }

    /// The code of an error.
    pub(crate) fn code(&self) -> String {
        self.json()["error"]["code"].as_str().unwrap_or("").to_owned()
    }
}

impl Client {
    pub(crate) fn connect(address: SocketAddr, token: &str) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream: BufReader::new(stream), token: token.to_owned() }
    }

    pub(crate) fn again(&self) -> Self {
        Self::connect(self.stream.get_ref().peer_addr().unwrap(), &self.token)
    }

    pub(crate) fn get(&mut self, path: &str) -> Answer {
        self.ask("GET", path, &[], b"")
    }

    pub(crate) fn delete(&mut self, path: &str) -> Answer {
        self.ask("DELETE", path, &[], b"")
    }

    pub(crate) fn post(&mut self, path: &str, body: &Value) -> Answer {
        self.ask("POST", path, &[("Content-Type", "application/json")], body.to_string().as_bytes())
    }

    pub(crate) fn submit(&mut self, text: &str) -> Answer {
        self.ask("POST", "/v1/jobs", &[("Content-Type", "application/toml")], text.as_bytes())
    }

    pub(crate) fn ask(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        self.send(method, path, headers, body);
        self.read_answer()
    }

    pub(crate) fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) {
        let mut head =
            format!("{method} {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {}\r\n", body.len());
        if !self.token.is_empty() {
            head += &format!("Authorization: Bearer {}\r\n", self.token);
        }
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        head += "\r\n";
        let _ = self.stream.get_mut().write_all(&[head.as_bytes(), body].concat());
    }

    pub(crate) fn read_answer(&mut self) -> Answer {
        let mut answer = self.read_head();
        if answer.headers.get("transfer-encoding").is_some_and(|coding| coding == "chunked") {
            while let Some(chunk) = self.read_chunk() {
                answer.body.extend(chunk);
            }
        } else {
            let length = answer.headers.get("content-length").map_or(0, |length| length.parse().unwrap());
            answer.body = vec![0; length];
            self.stream.read_exact(&mut answer.body).unwrap();
        }
        answer
    }

    pub(crate) fn read_head(&mut self) -> Answer {
        let line = self.read_line().expect("the daemon answers");
        let status = line.split(' ').nth(1).unwrap_or_else(|| panic!("no status: {line}")).parse().unwrap();
        let mut headers = BTreeMap::new();
        while let Some(line) = self.read_line().filter(|line| !line.is_empty()) {
            let (name, value) = line.split_once(':').unwrap();
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        Answer { status, headers, body: Vec::new() }
    }

    pub(crate) fn read_line(&mut self) -> Option<String> {
        let mut line = String::new();
        let length = self.stream.read_line(&mut line).ok()?;
        (length > 0).then(|| line.trim_end_matches(['\r', '\n']).to_owned())
    }

    pub(crate) fn read_chunk(&mut self) -> Option<Vec<u8>> {
        let size = usize::from_str_radix(&self.read_line()?, 16).ok()?;
        let mut chunk = vec![0; size];
        self.stream.read_exact(&mut chunk).ok()?;
        self.read_line()?;
        (size > 0).then_some(chunk)
    }

    /// The next event of a stream: kind and data, comments left out.
    pub(crate) fn read_event(&mut self) -> Option<(String, Value)> {
        loop {
            let chunk = String::from_utf8(self.read_chunk()?).unwrap();
            let field =
                |name: &str| chunk.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
            if let (Some(kind), Some(data)) = (field("event: "), field("data: ")) {
                return Some((kind, serde_json::from_str(&data).unwrap()));
            }
        }
    }
}
