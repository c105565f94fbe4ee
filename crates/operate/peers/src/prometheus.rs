//! A real Prometheus, with an Alertmanager where one is wanted, from Debian's packages, in a folder of its own.
//!
//! Both listen on loopback only. Ports are free when they are chosen; a start that loses its port to another process is
//! tried again with others.

mod http;

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bedplate_host::memory::resident_bytes;
use bedplate_http::blocking::fetch;

use crate::uses;
use http::{LARGEST, PATIENCE};

pub use http::{SentAlert, Webhook};

const PROGRAMS: [&str; 2] = ["/usr/bin/prometheus", "/usr/bin/prometheus-alertmanager"];
/// A loaded machine takes seconds to start them.
const START: Duration = Duration::from_secs(120);
const TRIES: u32 = 5;

/// What to watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrometheusShape {
    /// Addresses to scrape, by the name of their job.
    pub targets: Vec<(String, String)>,
    pub interval_s: u64,
    /// The text of a rule file.
    pub rules: Option<String>,
    /// Where an Alertmanager sends alerts; without it none is started.
    pub webhook: Option<String>,
}

impl PrometheusShape {
    /// What of it is not installed.
    pub fn missing(&self) -> Option<&'static str> {
        let wanted = if self.webhook.is_some() { &PROGRAMS[..] } else { &PROGRAMS[..1] };
        wanted.iter().find(|program| !Path::new(program).exists()).copied()
    }

    fn configuration(&self, alertmanager: Option<u16>) -> String {
        let interval = self.interval_s;
        let mut text =
            format!("global:\n  scrape_interval: {interval}s\n  evaluation_interval: {interval}s\n");
        if self.rules.is_some() {
            text += "rule_files: [rules.yml]\n";
        }
        if let Some(port) = alertmanager {
            text += &format!(
                "alerting:\n  alertmanagers:\n    - static_configs:\n        - targets: [\"127.0.0.1:{port}\"]\n"
            );
        }
        text += "scrape_configs:\n";
        for (job, target) in &self.targets {
            text +=
                &format!("  - job_name: \"{job}\"\n    static_configs:\n      - targets: [\"{target}\"]\n");
        }
        text
    }
}

/// A Prometheus that runs until the value is dropped.
pub struct Prometheus {
    root: PathBuf,
    port: u16,
    children: Vec<Child>,
}

impl Prometheus {
    /// Starts one, or says why it cannot.
    pub fn start(shape: &PrometheusShape) -> Result<Self, String> {
        if let Some(missing) = shape.missing() {
            return Err(format!("{missing} is not installed"));
        }
        uses("prometheus");
        let mut told = String::new();
        for _ in 0..TRIES {
            match Self::try_start(shape) {
                Ok(started) => return Ok(started),
                Err(why) => told = why,
            }
        }
        Err(told)
    }

    fn try_start(shape: &PrometheusShape) -> Result<Self, String> {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("bedplate-prometheus-{}-{number}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(&root).map_err(|error| error.to_string())?;
        let ports = free_ports(2)?;
        let mut started = Self { root, port: ports[0], children: Vec::new() };
        let alertmanager = shape.webhook.as_ref().map(|_| ports[1]);
        started.write(shape, alertmanager)?;
        if let Some(port) = alertmanager {
            started.start_alertmanager(port)?;
        }
        started.start_prometheus()?;
        Ok(started)
    }

    fn write(&self, shape: &PrometheusShape, alertmanager: Option<u16>) -> Result<(), String> {
        let write = |name: &str, text: &str| {
            fs::write(self.root.join(name), text).map_err(|error| format!("{name}: {error}"))
        };
        write("prometheus.yml", &shape.configuration(alertmanager))?;
        write("rules.yml", shape.rules.as_deref().unwrap_or("groups: []\n"))?;
        let webhook = shape.webhook.as_deref().unwrap_or_default();
        write(
            "alertmanager.yml",
            &format!(
                "route:\n  receiver: hook\n  group_by: [alertname, Hostname]\n  group_wait: 0s\n  group_interval: 1s\n  repeat_interval: 1h\nreceivers:\n  - name: hook\n    webhook_configs:\n      - url: \"{webhook}\"\n        send_resolved: false\n"
            ),
        )
    }

    fn start_alertmanager(&mut self, port: u16) -> Result<(), String> {
        let listen = format!("--web.listen-address=127.0.0.1:{port}");
        let arguments = [
            "--config.file=alertmanager.yml",
            &listen,
            "--cluster.listen-address=",
            "--storage.path=alertmanager",
        ];
        self.spawn(PROGRAMS[1], &arguments)?;
        self.wait_until_ready(port)
    }

    fn start_prometheus(&mut self) -> Result<(), String> {
        let listen = format!("--web.listen-address=127.0.0.1:{}", self.port);
        let arguments =
            ["--config.file=prometheus.yml", &listen, "--storage.tsdb.path=data", "--log.level=warn"];
        self.spawn(PROGRAMS[0], &arguments)?;
        self.wait_until_ready(self.port)
    }

    fn spawn(&mut self, program: &str, arguments: &[&str]) -> Result<(), String> {
        let log = fs::File::options().create(true).append(true).open(self.root.join("log"));
        let log = log.map_err(|error| error.to_string())?;
        let other = log.try_clone().map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        command.args(arguments).current_dir(&self.root).stdin(Stdio::null()).stdout(log).stderr(other);
        self.children.push(command.spawn().map_err(|error| format!("{program}: {error}"))?);
        Ok(())
    }

    fn wait_until_ready(&mut self, port: u16) -> Result<(), String> {
        let deadline = Instant::now() + START;
        while Instant::now() < deadline {
            if get(port, "/-/ready").is_ok() {
                return Ok(());
            }
            let has_ended = self.children.iter_mut().any(|child| !matches!(child.try_wait(), Ok(None)));
            if has_ended {
                break;
            }
            thread::sleep(Duration::from_millis(50));
        }
        let log = fs::read_to_string(self.root.join("log")).unwrap_or_default();
        Err(format!("it does not start: {}", log.lines().rev().take(5).collect::<Vec<_>>().join("\n")))
    }

    /// The answer of `GET path`, as text.
    pub fn get(&self, path: &str) -> Result<String, String> {
        get(self.port, path)
    }

    /// The JSON of an instant query.
    pub fn query(&self, expression: &str) -> Result<String, String> {
        self.get(&format!("/api/v1/query?query={}", http::percent_encoded(expression)))
    }

    /// Memory that the processes hold, in MiB.
    pub fn resident_mib(&self) -> f64 {
        let held = self.children.iter().filter_map(|child| resident_bytes(child.id()));
        held.sum::<u64>() as f64 / f64::from(1 << 20)
    }
}

fn get(port: u16, path: &str) -> Result<String, String> {
    fetch(&format!("127.0.0.1:{port}"), path, PATIENCE, LARGEST).map_err(|error| error.to_string())
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// Ports that were free a moment ago.
fn free_ports(count: usize) -> Result<Vec<u16>, String> {
    let held: Result<Vec<TcpListener>, _> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect();
    let held = held.map_err(|error| format!("there are no free ports: {error}"))?;
    held.iter().map(|it| it.local_addr().map(|it| it.port()).map_err(|error| error.to_string())).collect()
}
