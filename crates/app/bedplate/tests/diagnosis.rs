//! Jobs that report nothing, seen by their output: what they say of steps and errors, and what is wrong with them.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use bedplate_testkit::wait_to_see;
use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_bedplate");

/// A cluster in a folder of its own.
struct Cluster(PathBuf);

impl Cluster {
    fn up(name: &str, arguments: &[&str], site: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("bp-diagnosis-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("there is room for a folder");
        let cluster = Self(folder);
        fs::write(cluster.0.join("site.toml"), site).expect("there is room for a file");
        cluster.tell(&[&["up", "--site", "site.toml"], arguments].concat());
        cluster
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(PROGRAM);
        command.args(arguments).current_dir(&self.0).env("BEDPLATE_STATE", self.0.join("state"));
        command.env_remove("BEDPLATE_SERVER").env_remove("COLUMNS");
        command.output().expect("the program was built before its tests")
    }

    fn tell(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("it writes UTF-8")
    }

    fn submit(&self, script: &str) -> String {
        self.tell(&["submit", "--", "/bin/sh", "-c", script]).trim().to_owned()
    }

    fn wait_for(&self, job: &str, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let show =
            || serde_json::from_str(&self.tell(&["--json", "job", "show", job])).expect("it writes JSON");
        wait_to_see(what, show, is_so)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = self.run(&["down"]);
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn notes(job: &Value) -> String {
    let notes = job["notes"].as_array().into_iter().flatten();
    notes.filter_map(|note| note["text"].as_str()).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_program_that_reports_nothing_has_steps_stalls_and_errors() {
    let cluster = Cluster::up("output", &[], "");
    // nanoGPT's lines, and then silence.
    let stalls = cluster.submit(
        "i=0; while [ $i -lt 40 ]; do i=$((i+1)); echo \"iter $i: loss 3.1, time 50.5ms, mfu 37.1%\"; sleep 0.05; done; sleep 600",
    );
    let fails = cluster
        .submit("echo 'RuntimeError: CUDA error: uncorrectable ECC error encountered' >&2; sleep 5; exit 1");
    let seen =
        cluster.wait_for(&stalls, "its steps are seen", |job| job["steps"]["steps"].as_u64() >= Some(20));
    assert!((seen["steps"]["mean_s"].as_f64().expect("its line says so") - 0.0505).abs() < 1e-6);
    let stands =
        cluster.wait_for(&stalls, "its stall is told", |job| notes(job).contains("diagnosis: stall"));
    assert_eq!(stands["diagnosis"][0]["kind"], "stall");
    let page = cluster.tell(&["job", "show", &stalls]);
    assert!(page.contains("what is wrong\n  stall"), "{page}");
    let diagnosed = cluster.run(&["diagnose", &stalls]);
    let text = String::from_utf8_lossy(&diagnosed.stdout);
    assert_eq!(diagnosed.status.code(), Some(1), "{text}");
    assert!(text.starts_with("stall: ") && text.contains("nanogpt"), "{text}");
    let failed = cluster
        .wait_for(&fails, "its error is told", |job| notes(job).contains("diagnosis: crashed: hardware"));
    assert!(failed["notes"].is_array());
}

/// Four ranks that report steps with their parts; from step 40 on rank 1 works twice as long, and the others wait for it, until
/// the job has been restarted.
const STRAGGLES: &str = r#"
[ "$RANK" = 0 ] && echo "checkpoint 1 /tmp" >> "$BEDPLATE_REPORT"
i=0
while :; do
    i=$((i+1)); own=0.04; waits=0.01
    if [ $i -gt 40 ] && [ "$BEDPLATE_RESTARTS" = 0 ]; then
        if [ "$RANK" = 1 ]; then own=0.08; else waits=0.05; fi
    fi
    echo "{\"version\":1,\"report\":\"step\",\"step\":$i,\"seconds\":$(echo "$own $waits" | awk '{ print $1 + $2 }'),\"breakdown\":{\"compute\":$own,\"scale_out\":$waits}}" >> "$BEDPLATE_REPORT"
    sleep 0.05
done"#;

#[test]
fn a_site_moves_a_job_away_from_the_node_that_holds_it_up_and_keeps_the_node() {
    let site = "[[diagnosis]]\nkind = [\"slow-since\"]\ncause = [\"hardware\"]\nconfidence = 0.6\nthen = \"replace\"\n";
    let cluster = Cluster::up("policy", &["--nodes", "5", "--like", "p5.48xlarge"], site);
    let job = cluster.tell(&["submit", "--nodes", "4", "--", "/bin/sh", "-c", STRAGGLES]).trim().to_owned();
    let nodes = |job: &Value| job["nodes"].as_array().cloned().unwrap_or_default();
    let first = cluster.wait_for(&job, "it runs", |job| nodes(job).len() == 4);
    let slow = nodes(&first)[1].clone();
    let is_moved = |job: &Value| {
        notes(job).contains("starts again from its checkpoint without")
            && nodes(job).len() == 4
            && job["runs"].as_array().is_some_and(|runs| runs.len() > 1)
    };
    let moved = cluster.wait_for(&job, "it is moved", is_moved);
    assert!(!nodes(&moved).contains(&slow), "{moved:#}");
    let text = notes(&moved);
    assert!(text.contains("diagnosis: slow since: hardware (rank 1"), "{text}");
    let dumped =
        cluster.wait_for(&job, "what it did is written down", |job| notes(job).contains("processes in "));
    assert!(notes(&dumped).contains("rank "), "{dumped:#}");
    let all: Value =
        serde_json::from_str(&cluster.tell(&["--json", "node", "list"])).expect("it writes JSON");
    let states = all["nodes"].as_array().expect("there are nodes").iter();
    assert!(
        states.into_iter().all(|node| node["state"] != "drained" && node["state"] != "draining"),
        "{all:#}"
    );
    // Its own first steps stand for a plan on devices that are pretended, and say so.
    let steady =
        cluster.wait_for(&job, "what is usual is known", |job| job["expected"]["basis"] == "own_steps");
    assert!(steady["expected"]["source"].as_str().is_some_and(|source| source.starts_with("its own steps")));
    let page = cluster.tell(&["job", "show", &job]);
    assert!(page.contains("AT FIRST"), "{page}");
    assert!(cluster.tell(&["queue"]).contains("at first"));
    cluster.tell(&["job", "cancel", &job]);
}

#[test]
fn a_log_that_grows_is_judged_while_it_does() {
    let folder = std::env::temp_dir().join(format!("bp-follow-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("there is room for a folder");
    let log = folder.join("train.log");
    let line = |step: u32, ms: u32| format!("iter {step}: loss 3.1, time {ms}.5ms, mfu 37.1%\n");
    fs::write(&log, (1..=120).map(|step| line(step, 400)).collect::<String>()).expect("it can be written");
    let out = folder.join("out");
    let mut child = Command::new(PROGRAM)
        .args(["watch", "--follow", "train.log"])
        .current_dir(&folder)
        .stdout(fs::File::create(&out).expect("there is room for a file"))
        .spawn()
        .expect("the program was built before its tests");
    let read = || fs::read_to_string(&out).unwrap_or_default();
    let slow: String = (121..=260).map(|step| line(step, 600)).collect();
    let mut file = fs::OpenOptions::new().append(true).open(&log).expect("it is there");
    std::io::Write::write_all(&mut file, slow.as_bytes()).expect("it can be written");
    let said = wait_to_see("the slowdown is said", read, |text: &String| text.contains("slow since"));
    assert!(said.contains("since step 12"), "{said}");
    child.kill().expect("it goes on until it is ended");
    let _ = child.wait();
    let _ = fs::remove_dir_all(&folder);
}
