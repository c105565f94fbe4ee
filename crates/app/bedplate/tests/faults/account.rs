//! What is known when the storm's end is not as it should be: for the message of the failure, which is all that is left of it.

use bedplate_host::clock;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::sync::Mutex;

use super::Cluster;
use super::victims::Kind;

/// Faults long before a job say nothing about it; this long before, they may.
const BEFORE_MS: u64 = 15_000;
/// Lines of an agent's log.
const LAST_LINES: usize = 15;

/// What was done to the cluster, and when.
#[derive(Default)]
pub(super) struct Faults(Mutex<Vec<Fault>>);

struct Fault {
    at_ms: u64,
    what: String,
    kind: Kind,
    is_kill: bool,
}

impl Faults {
    pub(super) fn note(&self, what: String, kind: Kind, is_kill: bool) {
        let fault = Fault { at_ms: clock::unix_ms(), what, kind, is_kill };
        self.0.lock().expect("no holder of this lock panics").push(fault);
    }

    /// How many of each kind were killed and frozen.
    pub(super) fn summary(&self) -> String {
        let mut kinds: BTreeMap<Kind, (u32, u32)> = BTreeMap::new();
        for fault in self.0.lock().expect("no holder of this lock panics").iter() {
            let (kills, freezes) = kinds.entry(fault.kind).or_default();
            if fault.is_kill { *kills += 1 } else { *freezes += 1 }
        }
        let counts = kinds.iter().map(|(kind, (kills, freezes))| format!("{kind:?} {kills}/{freezes}"));
        format!("killed/frozen: {}", counts.collect::<Vec<String>>().join(", "))
    }

    /// Those of a time, which they are told relative to.
    fn between(&self, began_ms: u64, ended_ms: u64) -> String {
        let mut text = String::new();
        for Fault { at_ms, what, .. } in self.0.lock().expect("no holder of this lock panics").iter() {
            if (began_ms.saturating_sub(BEFORE_MS)..=ended_ms).contains(at_ms) {
                let _ = writeln!(text, "  {:+} ms: {what}", at_ms.cast_signed() - began_ms.cast_signed());
            }
        }
        text
    }
}

/// What became of a job, what was done to the cluster meanwhile, and what agents said of it.
pub(super) fn of_job(cluster: &Cluster, faults: &Faults, job: &Value) -> String {
    let id = job["id"].as_str().unwrap_or_default();
    let began_ms = job["submitted_ms"].as_u64().unwrap_or(0);
    let ended_ms = job["ended_ms"].as_u64().unwrap_or(u64::MAX);
    let mut text = format!("job {id}, submitted at {began_ms}, is {}\n", job["state"]);
    for note in job["notes"].as_array().into_iter().flatten() {
        let at_ms = note["at_ms"].as_i64().unwrap_or(0) - began_ms.cast_signed();
        let _ = writeln!(text, "  {at_ms:+} ms: {}", note["text"].as_str().unwrap_or_default());
    }
    if job["ended_ms"].is_null() {
        let _ = writeln!(text, "  now: {}, waits because of {}", job["runs"], job["waits_because"]);
    }
    let _ = write!(text, "what was done to the cluster:\n{}", faults.between(began_ms, ended_ms));
    text + "what agents said of it:\n" + &logged(cluster, |line| line.contains(&format!(" {id}.")))
}

/// What was done to the cluster at last, and what a node's agent said.
pub(super) fn of_node(cluster: &Cluster, faults: &Faults, node: &Value) -> String {
    let name = node["name"].as_str().unwrap_or_default();
    let done = faults.between(0, u64::MAX);
    let said = logged(cluster, |line| line.starts_with(&format!("agent of {name}: ")));
    format!("{node:#}\nwhat was done to the cluster:\n{done}what its agent said:\n{said}")
}

/// The last lines of this kind of each log of the agents.
fn logged(cluster: &Cluster, is_meant: impl Fn(&str) -> bool) -> String {
    let mut text = String::new();
    for entry in fs::read_dir(cluster.folder.join("state/agents")).into_iter().flatten().flatten() {
        if entry.path().extension().is_some_and(|kind| kind == "log") {
            let log = fs::read(entry.path()).unwrap_or_default();
            let log = String::from_utf8_lossy(&log);
            let lines: Vec<&str> = log.lines().filter(|line| is_meant(line)).collect();
            for line in &lines[lines.len().saturating_sub(LAST_LINES)..] {
                let _ = writeln!(text, "  {line}");
            }
        }
    }
    text
}
