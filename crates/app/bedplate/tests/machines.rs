//! A cluster over two machines, which are two network namespaces joined by a cable that can be pulled.

#![allow(clippy::print_stdout, reason = "a test that is skipped says so")]

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use bedplate_testkit::wait_to_see;
use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_bedplate");

fn ip(words: &str) -> bool {
    Command::new("ip").args(words.split(' ')).output().is_ok_and(|output| output.status.success())
}

/// Two machines with a cable between them; gone with this value.
struct Network {
    number: String,
    folder: PathBuf,
}

impl Network {
    /// Nothing where the host does not permit it.
    fn make() -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = format!("{}{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(format!("bp-machines-{number}"));
        fs::create_dir_all(&folder).expect("the temporary folder can be written");
        let network = Self { number: number.clone(), folder };
        let (a, b) = (network.machine(1), network.machine(2));
        let steps = [
            format!("netns add {a}"),
            format!("netns add {b}"),
            format!("link add bpa{number} netns {a} type veth peer name bpb{number} netns {b}"),
            format!("-n {a} addr add 10.231.7.1/24 dev bpa{number}"),
            format!("-n {b} addr add 10.231.7.2/24 dev bpb{number}"),
            format!("-n {a} link set lo up"),
            format!("-n {b} link set lo up"),
            format!("-n {a} link set bpa{number} up"),
            format!("-n {b} link set bpb{number} up"),
        ];
        if let Some(failed) = steps.iter().find(|step| !ip(step)) {
            println!("SKIPPED: this host does not permit `ip {failed}`");
            return None;
        }
        Some(network)
    }

    fn machine(&self, at: u32) -> String {
        format!("bp-{}-{at}", self.number)
    }

    /// Pulls the cable, or plugs it in.
    fn cable(&self, state: &str) {
        assert!(ip(&format!("-n {} link set bpa{} {state}", self.machine(1), self.number)));
    }

    /// A third machine, with a cable to the second one alone: there it is 10.231.8.3.
    fn add_third(&self) {
        let (number, b, c) = (&self.number, self.machine(2), self.machine(3));
        for step in [
            format!("netns add {c}"),
            format!("link add bpc{number} netns {b} type veth peer name bpd{number} netns {c}"),
            format!("-n {b} addr add 10.231.8.2/24 dev bpc{number}"),
            format!("-n {c} addr add 10.231.8.3/24 dev bpd{number}"),
            format!("-n {c} link set lo up"),
            format!("-n {b} link set bpc{number} up"),
            format!("-n {c} link set bpd{number} up"),
        ] {
            assert!(ip(&step), "{step}");
        }
    }

    fn run(&self, machine: u32, arguments: &[&str]) -> Output {
        let state = self.folder.join(format!("state-{machine}"));
        // The fourth is a second user of the second machine.
        let host = if machine == 4 { 2 } else { machine };
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.machine(host), PROGRAM]).args(arguments);
        command.current_dir(&self.folder).env("BEDPLATE_STATE", state).env_remove("BEDPLATE_SERVER");
        command.output().expect("`ip` was there before")
    }

    fn tell(&self, machine: u32, arguments: &[&str]) -> String {
        let output = self.run(machine, arguments);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{arguments:?}\n{}\n{}", text(&output.stdout), text(&output.stderr));
        text(&output.stdout)
    }

    fn json(&self, machine: u32, arguments: &[&str]) -> Value {
        let arguments: Vec<&str> = ["--json"].into_iter().chain(arguments.iter().copied()).collect();
        serde_json::from_str(&self.tell(machine, &arguments)).expect("`--json` prints JSON")
    }

    /// Until the second node is linked, or is not.
    fn wait_for_link(&self, is_linked: bool) {
        let show = || self.json(1, &["node", "show", "n2"])["is_linked"].clone();
        wait_to_see("the node's link", show, |shown| *shown == is_linked);
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for machine in [4, 3, 2, 1] {
            self.run(machine, &["down", "--force"]);
            ip(&format!("netns del {}", self.machine(machine)));
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn a_second_machine_joins_works_and_comes_back_after_its_cable_was_pulled() {
    let Some(network) = Network::make() else { return };
    let up = network.json(1, &["up", "--remote", "1", "--listen", "10.231.7.1:7431"]);
    let line = up["join"][0].as_str().expect("a line for the node that has not joined").to_owned();
    assert!(line.starts_with("bedplate join 10.231.7.1:7431 --node n2 --token bp_"), "{line}");
    assert!(line.contains(" --fingerprint "), "{line}");
    let words: Vec<&str> = line.split(' ').skip(1).collect();
    let joined = network.json(2, &words);
    assert_eq!((joined["node"].as_str(), joined["address"].as_str()), (Some("n2"), Some("10.231.7.2")));
    assert_eq!(network.run(2, &words).status.code(), Some(1), "it has joined already");

    let meet = "echo rank $RANK of $WORLD_SIZE meets at $MASTER_ADDR";
    let job = network.tell(1, &["submit", "--nodes", "2", "--wait", "--", "sh", "-c", meet]);
    for rank in ["0", "1"] {
        let log = network.tell(1, &["job", "logs", job.trim(), "--rank", rank]);
        assert_eq!(log, format!("rank {rank} of 2 meets at 10.231.7.1\n"));
    }

    assert_eq!(network.json(2, &["status"])["agent_runs"], true);
    network.cable("down");
    network.wait_for_link(false);
    network.cable("up");
    network.wait_for_link(true);
    network.tell(1, &["submit", "--nodes", "2", "--wait", "--", "true"]);

    network.tell(2, &["down"]);
    network.wait_for_link(false);
    assert!(!network.folder.join("state-2/join.json").exists());
    network.tell(1, &["down"]);
}

#[test]
fn a_cluster_goes_on_from_a_backup_on_another_machine_with_its_running_job() {
    let Some(network) = Network::make() else { return };
    network.add_third();
    let up = network.json(1, &["up", "--remote", "1", "--listen", "10.231.7.1:7431"]);
    let line = up["join"][0].as_str().expect("a line for the node that has not joined").to_owned();
    let line = line.replacen("10.231.7.1:7431", "10.231.7.1:7431,10.231.8.3:7431", 1);
    network.json(2, &line.split(' ').skip(1).collect::<Vec<_>>());
    let go = network.folder.join("go").display().to_string();
    let script = format!("until [ -e {go} ]; do sleep 0.1; done");
    let job = network.tell(1, &["submit", "--nodelist", "n2", "--", "sh", "-c", &script]);
    let show = |machine| network.json(machine, &["job", "show", job.trim()]);
    wait_to_see("it runs", || show(1), |shown| shown["state"] == "running");

    let backup = network.folder.join("backup").display().to_string();
    network.tell(1, &["journal", "backup", &backup]);
    let lost = network.tell(1, &["submit", "--nodelist", "n2", "--", "true"]);
    network.tell(1, &["down", "--force"]);
    let came = network.run(3, &["up", "--from", &backup, "--listen", "10.231.8.3:7431"]);
    let said = String::from_utf8_lossy(&came.stderr).into_owned();
    assert!(came.status.success() && said.contains(" s ago: what was decided since then is lost"), "{said}");
    let linked = || network.json(3, &["node", "show", "n2"])["is_linked"].clone();
    wait_to_see("its node follows by the certificate", linked, |linked| *linked == true);
    assert_eq!(
        network.run(3, &["job", "show", lost.trim()]).status.code(),
        Some(1),
        "it came after the back-up"
    );
    fs::write(&go, "").expect("the folder is there");
    let end = wait_to_see("it ends", || show(3), |shown| shown["ended_ms"].is_u64());
    assert_eq!((&end["state"], &end["restarts"]), (&Value::from("succeeded"), &Value::from(0)), "{end:#}");
    assert_eq!(end["runs"].as_array().map(Vec::len), Some(1), "{end:#}");
    assert!(network.tell(3, &["journal", "check"]).starts_with("whole: "));
    let again = network.run(3, &["up", "--from", &backup]);
    assert!(String::from_utf8_lossy(&again.stderr).contains("error[journal/exists]"));
    network.tell(2, &["down"]);
    network.tell(3, &["down"]);
}

#[test]
fn other_machines_need_an_address_and_a_token() {
    let Some(network) = Network::make() else { return };
    for listen in [&[][..], &["--listen", "0.0.0.0:7431"], &["--listen", "127.0.0.1"]] {
        let arguments: Vec<&str> = ["up", "--remote", "1"].iter().chain(listen).copied().collect();
        let output = network.run(1, &arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("error[up/unreachable]"), "{said}");
    }
    let up = network.json(1, &["up", "--remote", "1", "--listen", "10.231.7.1:7431"]);
    let line = up["join"][0].as_str().expect("a line for the node that has not joined").to_owned();
    let wrong: Vec<&str> =
        line.split(' ').skip(1).map(|word| if word.starts_with("bp_") { "bp_x" } else { word }).collect();
    let output = network.run(2, &wrong);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("error[join/turned-away]"), "{said}");
    assert_eq!(output.status.code(), Some(1));
    let nowhere = ["join", "10.231.7.1:1", "--node", "n2", "--token", "bp_x", "--fingerprint", "ab"];
    let said = String::from_utf8_lossy(&network.run(2, &nowhere).stderr).into_owned();
    assert!(said.contains("error[join/no-server]"), "{said}");
    network.tell(1, &["down"]);
}

#[test]
fn a_machine_joins_a_cluster_at_work_and_a_second_one_with_its_line_is_turned_away() {
    let Some(network) = Network::make() else { return };
    network.json(1, &["up", "--remote", "1", "--listen", "10.231.7.1:7431"]);
    let go = network.folder.join("go").display().to_string();
    let script = format!("until [ -e {go} ]; do sleep 0.1; done");
    let running = network.tell(1, &["submit", "--", "sh", "-c", &script]);
    let wide = network.tell(1, &["submit", "--nodes", "2", "--", "true"]);
    let state = |job: &str| network.json(1, &["job", "show", job.trim()])["state"].clone();
    wait_to_see("the first runs", || state(&running), |state| *state == "running");
    assert_eq!(state(&wide), "waiting");

    // Lines that were not used stop working when new ones are printed.
    let line = || network.json(1, &["up"])["join"][0].as_str().expect("n2 has not joined").to_owned();
    let (earlier, line) = (line(), line());
    let words = |line: &str| line.split(' ').skip(1).map(str::to_owned).collect::<Vec<_>>();
    let join = |machine, line: &str| {
        let words = words(line);
        network.run(machine, &words.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let said = |output: Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let revoked = said(join(2, &earlier));
    assert!(revoked.contains("error[join/turned-away]"), "{revoked}");
    assert!(join(2, &line).status.success());
    // Another state directory on the same machine: to the cluster it is another agent, with the token of the first.
    let second = said(join(4, &line));
    let why = "error[join/turned-away]: the control plane at 10.231.7.1:7431 does not let this machine be node n2: \
               another agent is node `n2` already, on `";
    assert!(second.contains(why), "{second}");
    assert!(second.contains("bedplate up"), "it says what to do: {second}");
    assert!(network.json(1, &["node", "show", "n2"])["is_linked"] == true);
    fs::write(&go, "").expect("the folder is there");
    for job in [&running, &wide] {
        let end = wait_to_see("it ends", || state(job), |state| *state != "running" && *state != "waiting");
        assert_eq!(end, "succeeded");
    }
    assert_eq!(network.json(1, &["job", "show", running.trim()])["restarts"], 0);
    network.tell(2, &["down"]);
    network.tell(1, &["down"]);
}

/// Tasks on both machines and gangs over both, while the cable is pulled for less and for more time than a node may be silent.
#[test]
fn partitions_under_load_lose_nothing_and_run_nothing_twice_at_a_time() {
    let Some(network) = Network::make() else { return };
    const TASKS: usize = 60;
    let up = network.json(1, &["up", "--remote", "1", "--listen", "10.231.7.1:7431"]);
    let line = up["join"][0].as_str().expect("a line for the node that has not joined").to_owned();
    network.json(2, &line.split(' ').skip(1).collect::<Vec<_>>());
    let folder = network.folder.display();
    // The lock is that of a process: one that is killed holds nothing.
    let once = |name: &str| {
        format!(
            "exec 9>>{folder}/lock-{name}; flock -n 9 || echo {name} >> {folder}/twice; sleep 0.5; echo {name} >> {folder}/done"
        )
    };
    let tasks = once("$SLURM_ARRAY_TASK_ID");
    let last = (TASKS - 1).to_string();
    let array = format!("0-{last}");
    network.tell(1, &["submit", "--array", &array, "--cpus-per-task", "1", "--", "sh", "-c", &tasks]);
    let gang = once("gang-$SLURM_JOB_ID-$RANK");
    let gangs: Vec<String> =
        (0..3).map(|_| network.tell(1, &["submit", "--nodes", "2", "--", "sh", "-c", &gang])).collect();
    for seconds in [1, 5] {
        network.cable("down");
        std::thread::sleep(std::time::Duration::from_secs(seconds));
        network.cable("up");
        network.wait_for_link(true);
    }
    let read = |name: &str| fs::read_to_string(network.folder.join(name)).unwrap_or_default();
    let unfinished = || {
        let queue = network.json(1, &["queue"]);
        queue["jobs"].as_array().map_or(usize::MAX, Vec::len)
    };
    wait_to_see("all end", unfinished, |left| *left == 0);
    assert_eq!(read("twice"), "", "none ran on both sides at a time");
    let done = read("done");
    for task in 0..TASKS {
        assert!(done.lines().any(|line| line == task.to_string()), "task {task} was lost\n{done}");
    }
    for job in gangs {
        let shown = network.json(1, &["job", "show", job.trim()]);
        assert_eq!(shown["state"], "succeeded", "{shown:#}");
    }
    assert!(network.tell(1, &["journal", "check"]).starts_with("whole: "));
    network.tell(2, &["down"]);
    network.tell(1, &["down"]);
}
