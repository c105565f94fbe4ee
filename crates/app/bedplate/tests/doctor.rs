//! `bedplate doctor --cluster` over a cluster of real processes: every node examines itself, and the odd one is shown.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bedplate_prometheus::names;
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};
use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_bedplate");

/// A cluster in a temporary folder, with a file system for each of its nodes; always taken down.
struct Cluster {
    folder: PathBuf,
}

impl Cluster {
    fn up(nodes: u32) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("bp-doctor-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let cluster = Self { folder: fs::canonicalize(folder).unwrap() };
        let output = cluster.run(&["up", "--nodes", &nodes.to_string(), "--like", "p5.48xlarge"]);
        assert!(output.status.success(), "{output:?}");
        cluster
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(PROGRAM);
        command.args(arguments).current_dir(&self.folder).env("BEDPLATE_STATE", self.folder.join("state"));
        command.env_remove("BEDPLATE_SERVER").env_remove("COLUMNS").output().unwrap()
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let all: Vec<&str> = ["--json"].into_iter().chain(arguments.iter().copied()).collect();
        let output = self.run(&all);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
    }

    fn file(&self, node: &str, path: &str, text: &str) {
        let path = self.folder.join("roots").join(node).join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn root(&self) -> String {
        self.folder.join("roots/%N").display().to_string()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.run(&["down", "--force"]);
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn every_node_is_examined_by_a_job_and_the_odd_one_out_is_named() {
    let cluster = Cluster::up(4);
    let nodes = cluster.json(&["node", "list"]);
    let names: Vec<String> = nodes["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| node["name"].as_str().unwrap().to_owned())
        .collect();
    for name in &names {
        cluster.file(name, "proc/sys/kernel/osrelease", "6.1.0\n");
        cluster.file(
            name,
            "proc/self/limits",
            "Max locked memory         unlimited            unlimited            bytes\n",
        );
    }
    let odd = &names[2];
    cluster.file(
        odd,
        "proc/self/limits",
        "Max locked memory         65536                65536                bytes\n",
    );
    let drained = &names[3];
    assert!(cluster.run(&["node", "drain", drained, "--reason", "test"]).status.success());
    let root = cluster.root();
    let told = cluster.json(&["doctor", "--cluster", "--root", &root, "--like", "p5.48xlarge"]);
    let rows = told["nodes"].as_array().unwrap();
    assert_eq!(rows.len(), 4);
    assert!(rows[3]["not_examined"].as_str().unwrap().contains("drain"), "{told:#}");
    let check = |row: &Value| {
        let checks = row["checks"].as_array().unwrap_or_else(|| panic!("{told:#}"));
        checks.iter().find(|check| check["rule"] == "limit/locked-memory").unwrap()["verdict"].clone()
    };
    assert_eq!((check(&rows[0]), check(&rows[2])), ("pass".into(), "fail".into()));
    let difference = told["odd_ones_out"].as_array().unwrap();
    let limits = difference.iter().find(|it| it["what"] == "locked memory").unwrap();
    assert_eq!(limits["most"], "unlimited");
    assert_eq!(limits["odd"][0]["node"], odd.as_str());
    let output = cluster.run(&["doctor", "--cluster", "--root", &root, "--like", "p5.48xlarge"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains(&format!("locked memory: most have unlimited; {odd} has 65536")), "{text}");
    let without = cluster.run(&["doctor", "--cluster", "--program", "/no/such/bedplate"]);
    let told = String::from_utf8_lossy(&without.stderr);
    assert!(told.contains("doctor/no-program") && told.contains("/no/such/bedplate"), "{told}");
    for name in &names {
        assert!(cluster.run(&["node", "drain", name, "--reason", "test"]).status.success());
    }
    let nobody = cluster.run(&["doctor", "--cluster"]);
    let told = String::from_utf8_lossy(&nobody.stderr);
    assert!(
        told.contains("doctor/no-nodes") && told.contains(&format!("{}: it is drained", names[0])),
        "{told}"
    );
}

#[test]
fn the_daemon_writes_the_metrics_that_rules_and_dashboards_use() {
    let cluster = Cluster::up(1);
    assert!(cluster.run(&["submit", "--wait", "--", "true"]).status.success());
    let beacon: Value =
        serde_json::from_str(&fs::read_to_string(cluster.folder.join("state/daemon.json")).unwrap()).unwrap();
    let token = fs::read_to_string(cluster.folder.join("state/admin.token")).unwrap();
    let port = u16::try_from(beacon["port"].as_u64().unwrap()).unwrap();
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let configuration = bedplate_pinned::client_config(beacon["fingerprint"].as_str().unwrap()).unwrap();
    let name = ServerName::try_from("bedplate").unwrap();
    let client = ClientConnection::new(Arc::new(configuration), name).unwrap();
    let mut stream = StreamOwned::new(client, stream);
    let head =
        format!("Host: localhost\r\nAuthorization: Bearer {}\r\nConnection: close\r\n\r\n", token.trim());
    write!(stream, "GET /metrics HTTP/1.1\r\n{head}").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    // Jobs that have ended are not counted, and nothing was wrong with this one: these two have a head and no sample.
    let without_samples = ["bedplate_jobs", "bedplate_job_problem"];
    for name in names::DAEMON.iter().filter(|name| !without_samples.contains(name)) {
        let is_there = text
            .lines()
            .any(|line| line.starts_with(&format!("{name}{{")) || line.starts_with(&format!("{name} ")));
        assert!(is_there, "{name} is missing:\n{text}");
    }
    for name in without_samples {
        assert!(text.contains(&format!("# TYPE {name} gauge")), "{text}");
    }
}
