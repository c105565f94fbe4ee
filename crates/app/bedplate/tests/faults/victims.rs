//! The processes of a cluster to which faults happen, and the faults.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::thread;
use std::time::Duration;

use bedplate_random::Random;

use super::account::Faults;
use crate::Cluster;

/// Kills or freezes a process, for less or for longer than a lease lasts. Every kind of process is hit equally often, however many there are of it.
pub(super) fn inject(cluster: &Cluster, faults: &Faults, random: &mut Random) {
    let kinds = victims(cluster);
    if !kinds.is_empty() {
        let kind = kinds.keys().nth(random.below(kinds.len())).expect("it is one of them");
        let victims = &kinds[kind];
        let Victim { pid, what } = &victims[random.below(victims.len())];
        match random.remainder(3) {
            0 => {
                faults.note(format!("{what} is killed"), *kind, true);
                try_signal(*pid, "-KILL");
            }
            freeze => {
                let long = if freeze == 1 { 0 } else { 4_000 };
                let frozen_ms = long + random.remainder(1_000);
                faults.note(format!("{what} is frozen for {frozen_ms} ms"), *kind, false);
                try_signal(*pid, "-STOP");
                thread::sleep(Duration::from_millis(frozen_ms));
                try_signal(*pid, "-CONT");
            }
        }
    }
    thread::sleep(Duration::from_millis(200 + random.remainder(600)));
}

/// A process that faults happen to.
struct Victim {
    pid: u32,
    /// For people.
    what: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Daemon,
    Supervisor,
    Agent,
    ForkServer,
    RunShim,
}

/// All processes of the cluster that belong to no job, by their kind.
fn victims(cluster: &Cluster) -> BTreeMap<Kind, Vec<Victim>> {
    let mark = format!("BEDPLATE_CLUSTER={}", cluster.folder.display());
    let pids = fs::read_dir("/proc").expect("Linux has it").flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut kinds: BTreeMap<Kind, Vec<Victim>> = BTreeMap::new();
    for pid in pids.filter(|pid| read(*pid, "environ").contains(&mark)) {
        if let Some((kind, what)) = role(pid) {
            let what = format!("{what} (process {pid})");
            kinds.entry(kind).or_default().push(Victim { pid, what });
        }
    }
    kinds
}

/// What a process is, if it is one that faults happen to.
fn role(pid: u32) -> Option<(Kind, String)> {
    let line = read(pid, "cmdline");
    if line.contains(" daemon ") {
        return Some((Kind::Daemon, "the daemon".to_owned()));
    }
    if line.contains(" supervise ") {
        return Some((Kind::Supervisor, "the supervisor".to_owned()));
    }
    if let Some(node) = node_of_agent(&line) {
        return Some((Kind::Agent, format!("the agent of {node}")));
    }
    if !is_keeper(&line) {
        return None;
    }
    let kin = Kin::of(pid)?;
    let parent = read(kin.parent, "cmdline");
    if kin.is_fork_server(pid) {
        return Some((Kind::ForkServer, format!("the fork server of {}", node_of_agent(&parent)?)));
    }
    // What a run shim forks looks like it until its program begins, and is a part of the job.
    let is_forked_here = node_of_agent(&parent).is_some()
        || is_keeper(&parent) && Kin::of(kin.parent)?.is_fork_server(kin.parent);
    (kin.session == pid && is_forked_here).then(|| (Kind::RunShim, "a run shim".to_owned()))
}

fn is_keeper(line: &str) -> bool {
    line.trim_end().ends_with(" keeper")
}

fn node_of_agent(line: &str) -> Option<String> {
    let (_, arguments) = line.split_once(" agent ")?;
    let mut words = arguments.split(' ').skip_while(|word| *word != "--node");
    words.nth(1).map(str::to_owned)
}

/// Where a process belongs.
struct Kin {
    parent: u32,
    group: u32,
    session: u32,
}

impl Kin {
    fn of(pid: u32) -> Option<Self> {
        let stat = read(pid, "stat");
        // The name of the program is in parentheses.
        let mut numbers = stat.rsplit_once(") ")?.1.split(' ').skip(1).map_while(|word| word.parse().ok());
        Some(Self { parent: numbers.next()?, group: numbers.next()?, session: numbers.next()? })
    }

    /// A run shim is a fork of a fork server, has its command line, and becomes a child of the agent when that fork server
    /// dies. A fork server leads a process group and no session; a run shim stays in that group until it leads a session.
    fn is_fork_server(&self, pid: u32) -> bool {
        self.group == pid && self.session != pid
    }
}

/// A file of a process, which may have ended meanwhile.
fn read(pid: u32, file: &str) -> String {
    let text = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    String::from_utf8_lossy(&text).replace('\0', " ")
}

/// The victim may have ended meanwhile.
fn try_signal(pid: u32, signal: &str) {
    let killed = Command::new("kill").args([signal, &pid.to_string()]).output();
    drop(killed.expect("every host has `kill`"));
}
