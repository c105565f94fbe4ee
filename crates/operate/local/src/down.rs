//! Ends a cluster of this machine, and makes sure that nothing of it is left.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use bedplate_drivers::{Local, StateDirectory};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::launch::CLUSTER;
use crate::machine::{self, MARK};
use crate::{Joined, LocalError, stop_supervisor};

const PAUSE: Duration = Duration::from_millis(20);
/// How long jobs, agents and daemon may take to end by themselves.
const ORDERLY: Duration = Duration::from_secs(45);
/// How long they may take once asked by a signal.
const ASKED: Duration = Duration::from_secs(10);
const KILLED: Duration = Duration::from_secs(5);

/// Ends all processes of a cluster; returns how many there were.
pub fn take_down(state: &StateDirectory, force: bool, say: &dyn Fn(&str)) -> Result<usize, LocalError> {
    let began = Instant::now();
    stop_supervisor(state);
    let found = processes(state.path());
    let count = found.len();
    Joined::forget(state);
    if count == 0 {
        let _ = std::fs::remove_file(state.beacon_path());
        say("nothing runs there");
        return Ok(0);
    }
    if !force {
        if let Ok(place) = state.place() {
            let driver = Local::new(place).with_patience(Duration::ZERO);
            if driver.shut_down(true).is_ok() {
                wait_until_none(state.path(), ORDERLY);
            }
        }
        signal_all(state.path(), Signal::SIGTERM);
        wait_until_none(state.path(), ASKED);
    }
    for pid in processes(state.path()) {
        if !force {
            say(&format!("killing process {pid}, which did not end: {}", machine::command_line(pid)));
        }
    }
    signal_all(state.path(), Signal::SIGKILL);
    wait_until_none(state.path(), KILLED);
    let left = processes(state.path());
    if !left.is_empty() {
        return Err(LocalError::Left { pids: left });
    }
    let _ = std::fs::remove_file(state.beacon_path());
    say(&format!("down in {:.1} s; nothing is left of {count} processes", began.elapsed().as_secs_f64()));
    Ok(count)
}

/// Daemon, agents and fork servers by the variable they carry; ranks by their mark and where they report.
pub(crate) fn processes(state: &Path) -> Vec<u32> {
    let state = std::fs::canonicalize(state).unwrap_or_else(|_| state.to_owned());
    let is_inside = |path: Option<&str>| path.is_some_and(|path| Path::new(path).starts_with(&state));
    let ours = machine::processes_with(CLUSTER).into_iter().filter(|process| {
        let own =
            process.variable(CLUSTER).map(|path| std::fs::canonicalize(path).unwrap_or_else(|_| path.into()));
        own.as_ref() == Some(&state)
    });
    let ranks = machine::processes_with(MARK).into_iter().filter(|process| {
        is_inside(process.variable("BEDPLATE_REPORT")) || is_inside(process.variable("BEDPLATE_AGENT"))
    });
    let mut pids: Vec<u32> = ours.chain(ranks).map(|process| process.pid).collect();
    pids.retain(|pid| *pid != std::process::id() && machine::is_alive(*pid));
    pids.sort_unstable();
    pids.dedup();
    pids
}

fn signal_all(state: &Path, signal: Signal) {
    for pid in processes(state) {
        // One that has gone meanwhile needs no signal.
        let _ = kill(Pid::from_raw(pid as i32), signal);
    }
}

fn wait_until_none(state: &Path, most: Duration) {
    let began = Instant::now();
    while began.elapsed() < most && !processes(state).is_empty() {
        thread::sleep(PAUSE);
    }
}

/// Kills the daemon of a state directory as by `kill -9`; returns its process number once it is dead.
pub fn kill_daemon(state: &StateDirectory) -> Result<u32, LocalError> {
    let beacon =
        state.beacon()?.filter(|beacon| machine::is_alive(beacon.pid)).ok_or(LocalError::NoDaemon)?;
    kill(Pid::from_raw(beacon.pid as i32), Signal::SIGKILL).map_err(|_| LocalError::NoDaemon)?;
    while machine::is_alive(beacon.pid) {
        thread::sleep(Duration::from_millis(2));
    }
    Ok(beacon.pid)
}
