//! The processes of this host, as `/proc` tells.

use std::fs;
use std::path::Path;
use std::time::Duration;

use bedplate_host::read_beginning;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

/// A process that has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LiveProcess {
    pub(crate) pid: i32,
    pub(crate) parent: i32,
    pub(crate) session: i32,
}

/// All processes but those that have ended and wait to be reaped.
pub(crate) fn all() -> Vec<LiveProcess> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter_map(find).collect()
}

fn find(pid: i32) -> Option<LiveProcess> {
    parse_stat(pid, &fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The name of the program is in parentheses and may hold anything, parentheses too.
fn parse_stat(pid: i32, stat: &str) -> Option<LiveProcess> {
    let mut fields = stat[stat.rfind(')')? + 1..].split_ascii_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let session = fields.nth(1)?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(LiveProcess { pid, parent, session })
}

/// Those of `processes` that descend from `root`, nearest first.
pub(crate) fn descendants(root: i32, processes: &[LiveProcess]) -> Vec<LiveProcess> {
    let mut found: Vec<LiveProcess> = Vec::new();
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        for process in processes.iter().filter(|process| process.parent == parent) {
            found.push(*process);
            parents.push(process.pid);
        }
    }
    found
}

/// Kills all that descends from `root` but what `is_spared` and what is below that; true when there was something.
pub fn kill_below(root: i32, is_spared: impl Fn(&i32) -> bool) -> bool {
    let processes = all();
    let children = processes.iter().filter(|process| process.parent == root && !is_spared(&process.pid));
    let mut killed = false;
    for child in children {
        let below = descendants(child.pid, &processes);
        std::iter::once(child).chain(&below).for_each(|process| kill_one(process.pid, Signal::SIGKILL));
        killed = true;
    }
    killed
}

/// The children of this process, which must have one thread only. Nothing where the kernel does not tell.
pub(crate) fn own_children() -> Option<Vec<i32>> {
    let own = std::process::id();
    let text = fs::read_to_string(format!("/proc/{own}/task/{own}/children")).ok()?;
    Some(text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect())
}

/// Whether a process was started with each of these `NAME=value` in its environment.
pub(crate) fn has_variables(pid: i32, variables: &[&str]) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let has =
        |variable: &&str| environment.split(|byte| *byte == 0).any(|entry| entry == variable.as_bytes());
    variables.iter().all(has)
}

pub(crate) fn kill_one(pid: i32, signal: Signal) {
    // It may have ended meanwhile, which is as good.
    let _ = kill(Pid::from_raw(pid), signal);
}

/// Kills every process that was started with all of `variables` in its environment, and what descends from one, until none
/// is left; gives up after ten seconds on what even the kernel cannot end. Says how many were found.
pub(crate) fn kill_marked(variables: &[&str]) -> usize {
    let own = std::process::id() as i32;
    let mut killed = std::collections::BTreeSet::new();
    for _ in 0..1000 {
        reap_adopted();
        let processes = all();
        let mut found: Vec<LiveProcess> = Vec::new();
        for process in &processes {
            if process.pid != own && has_variables(process.pid, variables) {
                found.push(*process);
                found.extend(descendants(process.pid, &processes));
            }
        }
        if found.is_empty() {
            break;
        }
        for process in found {
            kill_one(process.pid, Signal::SIGKILL);
            killed.insert(process.pid);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    killed.len()
}

/// Orphans that came to this process and have ended.
fn reap_adopted() {
    while let Ok(status) = waitpid(None, Some(WaitPidFlag::WNOHANG)) {
        if status.pid().is_none() {
            break;
        }
    }
}

/// How many of the host's GPUs there are to see.
pub(crate) fn count_gpus() -> u32 {
    let Ok(entries) = fs::read_dir("/dev") else { return 0 };
    let is_gpu = |name: &str| {
        name.strip_prefix("nvidia")
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
    };
    entries.flatten().filter(|entry| entry.file_name().to_str().is_some_and(is_gpu)).count() as u32
}

/// Whether the host has an EFA device.
pub(crate) fn has_efa() -> bool {
    let Ok(entries) = fs::read_dir("/sys/class/infiniband") else { return false };
    entries.flatten().any(|device| {
        let driver = fs::read_link(device.path().join("device/driver"));
        driver.is_ok_and(|driver| driver.file_name() == Path::new("efa").file_name())
    })
}

/// A file of the kernel, or what a container has in its place: as much of it as such a file has.
pub(crate) fn kernel_text(path: &str) -> String {
    const LARGEST: u64 = 1 << 20;
    let bytes = read_beginning(Path::new(path), LARGEST).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The host's memory.
pub(crate) fn memory_mib() -> u64 {
    let text = kernel_text("/proc/meminfo");
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.unwrap_or(0) / 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_with_any_name_is_read_and_a_zombie_is_none() {
        let stat = "77 (a) S (b) S 5 77 70 0 -1 4194560";
        assert_eq!(parse_stat(77, stat), Some(LiveProcess { pid: 77, parent: 5, session: 70 }));
        assert_eq!(parse_stat(77, "77 (sh) Z 5 77 70 0"), None);
        assert_eq!(parse_stat(77, "77 (sh"), None);
    }

    #[test]
    fn descendants_are_found_over_generations_and_others_are_not() {
        let process = |pid, parent| LiveProcess { pid, parent, session: 1 };
        let processes = [process(2, 1), process(3, 2), process(4, 3), process(5, 1), process(6, 5)];
        let mut pids: Vec<i32> = descendants(2, &processes).iter().map(|process| process.pid).collect();
        pids.sort_unstable();
        assert_eq!(pids, [3, 4]);
    }
}
