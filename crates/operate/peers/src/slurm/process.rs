//! Starting and ending daemons, and free ports for them.

use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Below the range from which the kernel takes ports for outgoing connections.
const FIRST_PORT: u32 = 20_000;
const PORTS: u32 = 12_000;
/// Between the ports of two Slurms of one process.
const APART: u32 = 523;

/// The ports of one Slurm.
pub(super) struct Ports {
    pub(super) controller: u16,
    pub(super) nodes: Vec<u16>,
    pub(super) accounting: u16,
    pub(super) database: u16,
    pub(super) rest: u16,
}

impl Ports {
    /// Free ones. Other processes, and other Slurms of this process, begin their search elsewhere.
    pub(super) fn find(nodes: u32, number: u32) -> Result<Self, String> {
        let start = std::process::id().wrapping_mul(2_654_435_761).wrapping_add(number * APART) % PORTS;
        let candidates = (0..PORTS).map(|step| (FIRST_PORT + (start + step) % PORTS) as u16);
        let mut held = candidates.filter_map(|port| TcpListener::bind(("127.0.0.1", port)).ok());
        let listeners: Vec<TcpListener> = held.by_ref().take(nodes as usize + 4).collect();
        let mut ports = listeners.iter().filter_map(|listener| Some(listener.local_addr().ok()?.port()));
        let mut next = || ports.next().ok_or_else(|| "there are no free ports".to_owned());
        Ok(Self {
            controller: next()?,
            accounting: next()?,
            database: next()?,
            rest: next()?,
            nodes: (0..nodes).map(|_| next()).collect::<Result<_, _>>()?,
        })
    }
}

/// Starts a daemon, which puts itself in the background.
pub(super) fn run(command: &mut Command) -> Result<(), String> {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    match quiet.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?} ended with {status}")),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}

/// Starts a daemon that stays in the foreground, in a group of its own; returns its process id.
pub(super) fn spawn(command: &mut Command, log: &Path) -> Result<u32, String> {
    let opened = || File::options().create(true).append(true).open(log).map(Stdio::from);
    let text = |error: std::io::Error| format!("{}: {error}", log.display());
    let (out, err) = (opened().map_err(text)?, opened().map_err(text)?);
    let child = command.stdin(Stdio::null()).stdout(out).stderr(err).process_group(0).spawn();
    let mut child = child.map_err(|error| format!("{command:?}: {error}"))?;
    let pid = child.id();
    // It is reaped when it ends, so that it does not look alive.
    thread::spawn(move || child.wait());
    Ok(pid)
}

/// What a command prints.
pub(super) fn output(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}

/// Ends the processes that these files name, and waits until they have ended.
pub(super) fn stop(files: &[PathBuf]) {
    let named = files.iter().filter_map(|file| fs::read_to_string(file).ok());
    let pids: Vec<u32> = named.filter_map(|text| text.trim().parse().ok()).collect();
    signal("TERM", &pids);
    if !wait_for_end(&pids, Duration::from_secs(20)) {
        signal("KILL", &pids);
        wait_for_end(&pids, Duration::from_secs(5));
    }
    files.iter().for_each(|file| drop(fs::remove_file(file)));
}

/// Kills a process that leads a group, with its group.
pub(super) fn kill_group(pid: u32) {
    let group = format!("-{pid}");
    let _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
    wait_for_end(&[pid], Duration::from_secs(5));
}

/// Kills what is left: everything whose command line or environment names the folder.
pub(super) fn kill_everything_of(root: &Path) {
    let name = root.as_os_str().as_encoded_bytes();
    let own = std::process::id();
    let Ok(entries) = fs::read_dir("/proc") else { return };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let names = |pid: u32, file: &str| {
        let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        bytes.windows(name.len()).any(|window| window == name)
    };
    let found = pids.filter(|pid| *pid != own && (names(*pid, "cmdline") || names(*pid, "environ")));
    let found: Vec<u32> = found.collect();
    signal("KILL", &found);
    wait_for_end(&found, Duration::from_secs(5));
}

pub(super) fn signal(name: &str, pids: &[u32]) {
    for pid in pids {
        let quiet = Command::new("kill").args(["-s", name, &pid.to_string()]).stderr(Stdio::null()).status();
        drop(quiet);
    }
}

fn wait_for_end(pids: &[u32], patience: Duration) -> bool {
    let deadline = Instant::now() + patience;
    while pids.iter().any(|pid| is_alive(*pid)) {
        if Instant::now() > deadline {
            return false;
        }
        thread::sleep(Duration::from_millis(20));
    }
    true
}

/// A process that has ended and waits to be reaped counts as gone.
fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    state.is_some_and(|state| state != 'Z' && state != 'X')
}

/// The last lines of a log.
pub(super) fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}
