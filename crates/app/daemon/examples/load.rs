//! Measures a daemon under load: durable submissions over keep-alive connections while the scheduler is at work, a
//! restart with many live jobs, and memory with a long history.
//!
//! `cargo run --release -p bedplate-daemon --example load -- [SUBMISSIONS] [ENDED] [FOLDER]`; one JSON object comes out.

use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use bedplate_catalog::Catalog;
use bedplate_control::wire::{FromAgent, HeldPhase, HeldRun, Hello, HostMachine, NodeEnd, RunId, ToAgent};
use bedplate_daemon::{DaemonOptions, RunningDaemon, start};
use bedplate_topology::Cluster;

const CLIENTS: usize = 4;
const NODES: usize = 64;
const JOB: &str =
    "name = \"load\"\ncommand = [\"true\"]\nnodes = 1\ngpus_per_node = 1\ntime_limit = \"10m\"\n";

type Failure = Box<dyn Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let submissions: usize = arguments.next().map_or(Ok(10_000), |text| text.parse())?;
    let ended: usize = arguments.next().map_or(Ok(100_000), |text| text.parse())?;
    let folder = arguments.next().map_or_else(|| std::env::temp_dir().join("bedplate-load"), PathBuf::from);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder)?;

    let daemon = begin(&folder)?;
    let token = token(&folder)?;
    join_all(daemon.address(), &token)?;
    let history = submit_all(daemon.address(), &token, ended)?;
    cancel_all(daemon.address(), &token)?;
    let load = submit_all(daemon.address(), &token, submissions)?;
    let running = metric(daemon.address(), &token, "bedplate_jobs{state=\"running\"}")?;
    let explain = explain(daemon.address(), &token)?;
    let memory_bytes = metric(daemon.address(), &token, "bedplate_resident_memory_bytes")?;
    daemon.stop()?;

    let began = Instant::now();
    let daemon = begin(&folder)?;
    let restart = began.elapsed();
    let live = metric(daemon.address(), &token, "bedplate_jobs{state=\"waiting\"}")?;
    let memory_after_restart = metric(daemon.address(), &token, "bedplate_resident_memory_bytes")?;
    daemon.stop()?;
    std::fs::remove_dir_all(&folder)?;

    let result = serde_json::json!({
        "clients": CLIENTS,
        "submissions_per_s": load.per_second(),
        "p50_ms": load.quantile_ms(0.5),
        "p99_ms": load.quantile_ms(0.99),
        "submissions_per_s_into_history": history.per_second(),
        "ended_jobs": ended,
        "running_jobs_under_load": running,
        "waiting_jobs_after_restart": live,
        "explain_ms": explain.as_secs_f64() * 1e3,
        "restart_s": restart.as_secs_f64(),
        "memory_bytes": memory_bytes,
        "memory_bytes_after_restart": memory_after_restart,
    });
    Ok(writeln!(std::io::stdout(), "{result:#}")?)
}

fn begin(folder: &Path) -> Result<RunningDaemon, Failure> {
    let cluster = Cluster::from_spec(&format!("p5.48xlarge:{NODES}"), &Catalog::builtin())?;
    let mut options = DaemonOptions::new(folder.to_owned(), cluster);
    options.listen = SocketAddr::from(([127, 0, 0, 1], 0));
    // Clients here speak raw HTTP.
    options.tls = false;
    options.limits.requests_per_second_per_client = 1e6;
    Ok(start(options)?)
}

fn token(folder: &Path) -> Result<String, Failure> {
    Ok(std::fs::read_to_string(folder.join("admin.token"))?.trim().to_owned())
}

struct Load {
    took: Duration,
    each: Vec<Duration>,
}

impl Load {
    fn per_second(&self) -> f64 {
        self.each.len() as f64 / self.took.as_secs_f64()
    }

    fn quantile_ms(&self, quantile: f64) -> f64 {
        let at = (self.each.len() as f64 * quantile) as usize;
        self.each.get(at.min(self.each.len().saturating_sub(1))).map_or(0.0, |time| time.as_secs_f64() * 1e3)
    }
}

fn submit_all(address: SocketAddr, token: &str, count: usize) -> Result<Load, Failure> {
    let began = Instant::now();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let token = token.to_owned();
            thread::spawn(move || {
                submit(address, &token, count / CLIENTS + usize::from(client < count % CLIENTS))
            })
        })
        .collect();
    let mut each = Vec::new();
    for client in clients {
        each.extend(client.join().map_err(|_| "a client panicked")??);
    }
    let took = began.elapsed();
    each.sort_unstable();
    Ok(Load { took, each })
}

fn submit(address: SocketAddr, token: &str, count: usize) -> Result<Vec<Duration>, Failure> {
    let mut client = Client::connect(address, token)?;
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let began = Instant::now();
        let (status, body) = client.ask("POST", "/v1/jobs", "application/toml", JOB)?;
        if status != 201 {
            return Err(format!("{status}: {body}").into());
        }
        times.push(began.elapsed());
    }
    Ok(times)
}

/// Makes history: jobs that wait are cancelled one by one.
fn cancel_all(address: SocketAddr, token: &str) -> Result<(), Failure> {
    let mut client = Client::connect(address, token)?;
    loop {
        let (_, body) = client.ask("GET", "/v1/jobs?limit=1000", "", "")?;
        let page: serde_json::Value = serde_json::from_str(&body)?;
        let jobs = page["jobs"].as_array().cloned().unwrap_or_default();
        if jobs.is_empty() {
            return Ok(());
        }
        let labels: Vec<String> =
            jobs.iter().filter_map(|job| job["label"].as_str().map(str::to_owned)).collect();
        let parts: Vec<_> = labels
            .chunks(labels.len().div_ceil(16))
            .map(|part| {
                let (token, part) = (token.to_owned(), part.to_vec());
                thread::spawn(move || -> Result<(), Failure> {
                    let mut client = Client::connect(address, &token)?;
                    for label in part {
                        client.ask("DELETE", &format!("/v1/jobs/{label}"), "", "")?;
                    }
                    Ok(())
                })
            })
            .collect();
        for part in parts {
            part.join().map_err(|_| "a client panicked")??;
        }
    }
}

fn explain(address: SocketAddr, token: &str) -> Result<Duration, Failure> {
    let mut client = Client::connect(address, token)?;
    let (_, body) = client.ask("GET", "/v1/jobs?state=waiting&limit=1", "", "")?;
    let page: serde_json::Value = serde_json::from_str(&body)?;
    let label = page["jobs"][0]["label"].as_str().unwrap_or("1").to_owned();
    let began = Instant::now();
    client.ask("GET", &format!("/v1/jobs/{label}/explain"), "", "")?;
    Ok(began.elapsed())
}

/// An agent for every node: it prepares and starts what it is told and lets it run until it is stopped.
fn join_all(address: SocketAddr, token: &str) -> Result<(), Failure> {
    let mut client = Client::connect(address, token)?;
    let (_, body) = client.ask("GET", "/v1/nodes", "", "")?;
    let page: serde_json::Value = serde_json::from_str(&body)?;
    for node in page["nodes"].as_array().into_iter().flatten() {
        let name = node["name"].as_str().ok_or("a node has a name")?.to_owned();
        let wanted = serde_json::json!({ "user": name, "role": "agent" }).to_string();
        let (_, body) = client.ask("POST", "/v1/tokens", "application/json", &wanted)?;
        let made: serde_json::Value = serde_json::from_str(&body)?;
        let secret = made["token"].as_str().ok_or("no token")?.to_owned();
        thread::spawn(move || {
            // It ends with the daemon.
            let _ = play_agent(address, &secret, &name);
        });
    }
    while metric(address, token, "bedplate_links")? < NODES as f64 {
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn play_agent(address: SocketAddr, secret: &str, node: &str) -> Result<(), Failure> {
    let mut stream = BufReader::new(TcpStream::connect(address)?);
    let request = format!(
        "POST /v1/agents/link HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {secret}\r\nConnection: Upgrade\r\n\
         Upgrade: bedplate-link\r\nContent-Length: 0\r\n\r\n"
    );
    stream.get_mut().write_all(request.as_bytes())?;
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        stream.read_line(&mut line)?;
    }
    let host =
        HostMachine { name: node.into(), cores: 192, memory_mib: 2 << 20, gpus: 8, ..HostMachine::default() };
    let hello =
        Hello { node: node.into(), address: "127.0.0.1".into(), incarnation: 1, held: Vec::new(), host };
    say(&mut stream, &FromAgent::Hello(hello))?;
    stream.get_ref().set_read_timeout(Some(Duration::from_millis(200)))?;
    let mut held: Vec<HeldRun> = Vec::new();
    let mut beat = Instant::now();
    let mut line = String::new();
    for sequence in 0.. {
        while beat.elapsed() < Duration::from_millis(500) {
            match stream.read_line(&mut line) {
                Ok(0) => return Ok(()),
                Ok(_) => {
                    obey(&mut stream, serde_json::from_str(&line)?, &mut held)?;
                    line.clear();
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
        beat = Instant::now();
        say(&mut stream, &FromAgent::Heartbeat { sequence, held: held.clone(), findings: Vec::new() })?;
    }
    Ok(())
}

fn obey(stream: &mut BufReader<TcpStream>, message: ToAgent, held: &mut Vec<HeldRun>) -> Result<(), Failure> {
    let mut enter = |run: RunId, phase: HeldPhase| {
        held.retain(|held| held.run != run);
        held.push(HeldRun { run, phase, is_suspended: false });
    };
    match message {
        ToAgent::Prepare(launch) => {
            enter(launch.run, HeldPhase::Prepared { master_port: Some(1) });
            say(stream, &FromAgent::Prepared { run: launch.run, master_port: Some(1) })
        }
        ToAgent::Go { run, .. } => {
            enter(run, HeldPhase::Running);
            Ok(())
        }
        ToAgent::Stop { run, .. } => {
            let end = NodeEnd { was_stopped: true, ..NodeEnd::default() };
            enter(run, HeldPhase::Released { end: end.clone() });
            say(stream, &FromAgent::Released { run, end })
        }
        ToAgent::Forget { run } => {
            held.retain(|held| held.run != run);
            Ok(())
        }
        _ => Ok(()),
    }
}

fn say(stream: &mut BufReader<TcpStream>, message: &FromAgent) -> Result<(), Failure> {
    let line = serde_json::to_string(message)? + "\n";
    Ok(stream.get_mut().write_all(line.as_bytes())?)
}

fn metric(address: SocketAddr, token: &str, name: &str) -> Result<f64, Failure> {
    let (_, text) = Client::connect(address, token)?.ask("GET", "/metrics", "", "")?;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    value.ok_or_else(|| format!("there is no {name}").into())
}

struct Client {
    stream: BufReader<TcpStream>,
    token: String,
}

impl Client {
    fn connect(address: SocketAddr, token: &str) -> Result<Self, Failure> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufReader::new(stream), token: token.to_owned() })
    }

    fn ask(&mut self, method: &str, path: &str, kind: &str, body: &str) -> Result<(u16, String), Failure> {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n{body}",
            self.token,
            body.len()
        );
        self.stream.get_mut().write_all(request.as_bytes())?;
        let (mut status, mut length) = (0, 0);
        loop {
            let mut line = String::new();
            self.stream.read_line(&mut line)?;
            let line = line.trim_end();
            if line.is_empty() {
                break;
            }
            if status == 0 {
                status = line.split(' ').nth(1).unwrap_or("").parse()?;
            } else if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse()?;
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        Ok((status, String::from_utf8(body)?))
    }
}
