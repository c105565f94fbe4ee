//! A cluster whose nodes watch pretended hardware: findings take nodes out, jobs label GPUs, energy is booked.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use bedplate_fakenvml::FakeNvml;
use bedplate_gangs::JobId;
use bedplate_journal::Reader;
use bedplate_testkit::wait_to_see;
use serde_json::{Value, json};

const PROGRAM: &str = env!("CARGO_BIN_EXE_bedplate");

/// A cluster in a temporary folder, with a tree of files for each node; always taken down.
struct Watched {
    folder: PathBuf,
    port: u16,
}

impl Watched {
    fn up(name: &str, nodes: u32) -> Self {
        let folder = std::env::temp_dir().join(format!("bp-observe-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let folder = fs::canonicalize(folder).unwrap();
        for number in 1..=nodes {
            let root = folder.join(format!("trees/n{number}"));
            fs::create_dir_all(root.join("dev")).unwrap();
            fs::write(root.join("dev/kmsg"), "").unwrap();
            FakeNvml::install(&root, 8).unwrap();
        }
        let watched = Self { folder, port: free_ports(nodes) };
        let trees = watched.folder.join("trees").display().to_string();
        let (nodes, port) = (nodes.to_string(), watched.port.to_string());
        watched.tell(&[
            "up",
            "--nodes",
            &nodes,
            "--like",
            "p5.48xlarge",
            "--observe-root",
            &trees,
            "--export",
            &port,
        ]);
        watched
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(PROGRAM);
        command.args(arguments).current_dir(&self.folder).env("BEDPLATE_STATE", self.folder.join("state"));
        command.env_remove("BEDPLATE_SERVER").env_remove("COLUMNS");
        command.output().unwrap()
    }

    fn tell(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{arguments:?}\n{}\n{}", text(&output.stdout), text(&output.stderr));
        text(&output.stdout)
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let arguments: Vec<&str> = ["--json"].into_iter().chain(arguments.iter().copied()).collect();
        serde_json::from_str(&self.tell(&arguments)).unwrap()
    }

    fn until(&self, arguments: &[&str], is_so: impl Fn(&Value) -> bool) -> Value {
        wait_to_see(&arguments.join(" "), || self.json(arguments), is_so)
    }

    /// What a GPU fails once the file `go` is there; started again it runs on.
    fn failing(&self, user: &str) -> String {
        let folder = self.folder.display();
        let fault = json!({ "version": 1, "report": "fault", "address": "0000:12:00.0", "uuid": "GPU-two",
            "code": "cuda/device-fault", "message": "an illegal address" });
        format!(
            "until [ -e {folder}/go ]; do sleep 0.1; done; [ -e {folder}/{user} ] && exec sleep 600; \
             touch {folder}/{user}; echo '{fault}' >> \"$BEDPLATE_REPORT\"; exit 3"
        )
    }

    /// A job of this user on half of the GPUs of the second node.
    fn submit_as(&self, user: &str, script: &str) -> String {
        let token = self.tell(&["token", "add", user, "--role", "user"]);
        let beacon = fs::read_to_string(self.folder.join("state/daemon.json")).unwrap();
        let beacon: Value = serde_json::from_str(&beacon).unwrap();
        let mut command = Command::new(PROGRAM);
        command.args(["submit", "--nodelist", "n2", "--gpus-per-node", "4", "--", "sh", "-c", script]);
        command.current_dir(&self.folder).env_remove("BEDPLATE_STATE").env("BEDPLATE_TOKEN", token.trim());
        command.env("BEDPLATE_SERVER", format!("https://127.0.0.1:{}", beacon["port"]));
        let output =
            command.env("BEDPLATE_FINGERPRINT", beacon["fingerprint"].as_str().unwrap()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    fn nvml(&self, node: &str) -> FakeNvml {
        FakeNvml::at(&self.folder.join("trees").join(node))
    }

    fn log(&self, node: &str, text: &str) {
        let path = self.folder.join("trees").join(node).join("dev/kmsg");
        writeln!(fs::OpenOptions::new().append(true).open(path).unwrap(), "4,1,1,-;{text}").unwrap();
    }

    /// The metrics of a node, once they are as wanted.
    fn metrics(&self, number: u16, is_so: impl Fn(&str) -> bool) -> String {
        let scraped = || scrape(self.port + number - 1).unwrap_or_default();
        wait_to_see("the metrics are as wanted", scraped, |text| is_so(text))
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.run(&["down", "--force"]);
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The first of several ports that are free now.
fn free_ports(count: u32) -> u16 {
    loop {
        let first = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let all =
            (0..count as u16).map(|offset| TcpListener::bind(("127.0.0.1", first.checked_add(offset)?)).ok());
        if all.collect::<Option<Vec<_>>>().is_some() {
            return first;
        }
    }
}

fn scrape(port: u16) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text)
}

#[test]
fn an_xid_drains_its_node_and_the_gang_moves() {
    let cluster = Watched::up("xid", 5);
    let job = cluster.tell(&["submit", "--nodes", "1", "--gpus-per-node", "8", "--", "sleep", "600"]);
    let job = job.trim();
    let shown = cluster.until(&["job", "show", job], |job| job["state"] == "running");
    let node = shown["nodes"][0].as_str().unwrap().to_owned();
    let number: u16 = node.trim_start_matches('n').parse().unwrap();
    // The exporter says whose GPUs they are.
    cluster.metrics(number, |text| text.contains(&format!("hpc_job=\"{job}\"")));
    cluster.nvml(&node).raise_xid(3, 79).unwrap();
    let drained = cluster.until(&["node", "show", &node], |node| node["state"] == "drained");
    assert_eq!(drained["reason"]["code"], "finding", "{drained:#}");
    assert_eq!(drained["findings"][0]["rule"], "gpu/xid-79");
    assert_eq!(drained["findings"][0]["subject"], json!({ "kind": "gpu", "node": node, "index": 3 }));
    let page = cluster.tell(&["node", "show", &node]);
    assert!(page.contains("critical [gpu/xid-79] GPU 3 of node"), "{page}");
    let moved = cluster.until(&["job", "show", job], |job| {
        job["state"] == "running" && job["runs"].as_array().is_some_and(|runs| runs.len() == 2)
    });
    assert_ne!(moved["nodes"][0], node.as_str());
    // The energy of its first run is known.
    cluster.tell(&["job", "cancel", job]);
    cluster.until(&["usage"], |usage| !usage.to_string().contains("\"energy_joules\":null"));
    cluster.tell(&["node", "resume", &node]);
    cluster.until(&["node", "show", &node], |node| {
        node["state"] == "idle" && node["findings"].as_array().is_some_and(Vec::is_empty)
    });
    // What was known stays known, however often the node says so; what is new counts.
    let heard = |node: &Value| node["heard_ms"].as_u64().expect("it has said something");
    let before = heard(&cluster.json(&["node", "show", &node]));
    let shown = cluster.until(&["node", "show", &node], |node| heard(node) > before + 2_000);
    assert_eq!(shown["state"], "idle");
    cluster.log(&node, "NVRM: Xid (PCI:0000:10:00): 95, pid=1, name=x, Uncontained memory error");
    cluster.until(&["node", "show", &node], |node| node["state"] == "drained");
}

/// Jobs of two users on one node say that a GPU failed them.
#[test]
fn a_gpu_that_fails_a_rank_is_named_with_its_xid_the_restart_is_free_and_the_node_suspected() {
    let cluster = Watched::up("fault", 5);
    // Where tests are root's, jobs run as their users, who exist on every machine and leave a file here.
    fs::set_permissions(&cluster.folder, fs::Permissions::from_mode(0o777)).unwrap();
    let journal = Reader::open(&cluster.folder.join("state/journal.sqlite")).unwrap();
    let failed = |job: &str| {
        let shown = cluster.until(&["job", "show", job], |job| job["runs"][0]["ended_ms"].is_u64());
        let notes = shown["notes"].as_array().unwrap().iter().map(|note| note["text"].as_str().unwrap());
        let named = notes.filter(|note| note.starts_with("the GPU at")).map(str::to_owned).next();
        let row = journal.job(JobId(job.parse().unwrap())).unwrap().unwrap();
        let charges = row.life.charges;
        let held: Vec<(String, String)> =
            charges.failures.into_iter().map(|charge| (charge.node, charge.kind)).collect();
        assert_eq!(held, [("n2".to_owned(), "reported-device".to_owned())]);
        assert_eq!((charges.restarts, shown["ended_ms"].is_null()), (0, true), "{shown:#}");
        named.unwrap_or_else(|| panic!("{shown:#}"))
    };
    let said =
        "the GPU at 0000:12:00.0 (GPU-two) on n2 failed rank 0: an illegal address [cuda/device-fault]";

    let first = cluster.submit_as("daemon", &cluster.failing("daemon"));
    cluster.until(&["job", "show", &first], |job| job["state"] == "running");
    cluster.nvml("n2").raise_xid(2, 92).unwrap();
    cluster.until(&["node", "show", "n2"], |node| node["findings"][0]["rule"] == "gpu/xid-92");
    fs::write(cluster.folder.join("go"), "").unwrap();
    assert_eq!(failed(&first), format!("{said}; the node saw xid-92 on GPU 2 of node n2"));
    cluster.until(&["job", "show", &first], |job| job["state"] == "running" && job["nodes"][0] == "n2");
    assert_eq!(cluster.json(&["node", "show", "n2"])["reason"], Value::Null, "one user's word");

    let second = cluster.submit_as("bin", &cluster.failing("bin"));
    assert_eq!(failed(&second), said, "the XID was on a GPU of the other job");
    let node = cluster.until(&["node", "show", "n2"], |node| !node["reason"].is_null());
    assert_eq!(node["reason"]["code"], "suspected", "{node:#}");
}

#[test]
fn most_of_a_cluster_failing_at_once_drains_nobody() {
    let cluster = Watched::up("common", 4);
    for number in 1..=3 {
        cluster.log(&format!("n{number}"), "NVRM: Xid (PCI:0000:10:00): 74, pid=1, name=x, NVLink error");
    }
    let nodes = cluster.until(&["node", "list"], |list| {
        let nodes = list["nodes"].as_array().unwrap();
        let found =
            nodes.iter().filter(|node| node["findings"].as_array().is_some_and(|all| !all.is_empty()));
        found.count() == 3 && nodes.iter().all(|node| node["state"] == "idle")
    });
    assert_eq!(nodes["nodes"].as_array().unwrap().len(), 4);
    let page = cluster.tell(&["node", "show", "n3"])
        + &cluster.tell(&["node", "show", "n1"])
        + &cluster.tell(&["node", "show", "n2"]);
    assert!(page.contains("the cause is not in them"), "{page}");
    assert!(cluster.tell(&["top", "--once"]).contains('!'));
}

/// A child that is ended with the test, and its folder.
struct Running(Child, PathBuf);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        let _ = fs::remove_dir_all(&self.1);
    }
}

#[test]
fn an_exporter_that_was_stopped_goes_on_and_takes_the_pause_for_no_fault() {
    let folder = std::env::temp_dir().join(format!("bp-observe-{}-stopped", std::process::id()));
    fs::create_dir_all(folder.join("dev")).unwrap();
    fs::write(folder.join("dev/kmsg"), "").unwrap();
    fs::create_dir_all(folder.join("proc/self")).unwrap();
    fs::write(folder.join("proc/self/mounts"), "/dev/root / ext4 rw 0 0\n").unwrap();
    FakeNvml::install(&folder, 2).unwrap();
    let port = free_ports(1);
    let mut command = Command::new(PROGRAM);
    command.args([
        "export",
        "--listen",
        &format!("127.0.0.1:{port}"),
        "--interval",
        "100ms",
        "--observe-root",
    ]);
    command.arg(&folder).stdout(Stdio::null()).stderr(Stdio::null());
    let exporter = Running(command.spawn().unwrap(), folder);
    let is_up = |text: &String| {
        let up = |name: &str| text.contains(&format!("bedplate_collector_up{{collector=\"{name}\""));
        up("gpu") && up("filesystem") && text.contains("DCGM_FI_DEV_GPU_TEMP{")
    };
    let wait = || wait_to_see("the exporter is up", || scrape(port).unwrap_or_default(), is_up);
    wait();
    let pid = nix::unistd::Pid::from_raw(exporter.0.id() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGSTOP).unwrap();
    // Longer than anything it watches may be silent.
    thread::sleep(Duration::from_secs(3));
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGCONT).unwrap();
    let text = wait();
    assert!(!text.contains("bedplate_finding{"), "{text}");
    // A second one on its port is told so, and the first goes on.
    let second =
        Command::new(PROGRAM).args(["export", "--listen", &format!("127.0.0.1:{port}")]).output().unwrap();
    assert_eq!(second.status.code(), Some(1), "{second:?}");
    assert!(String::from_utf8_lossy(&second.stderr).contains("record/cannot-listen"), "{second:?}");
    wait();
}
