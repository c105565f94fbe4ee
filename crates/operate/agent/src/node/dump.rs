//! What the processes of a run do now, written down when the control plane asks: their state, what they wait for in the
//! kernel, and the kernel's stack where it may be read.
//!
//! Nothing is asked of the processes themselves: a signal that a program does not expect ends it. The file lies with the captured
//! output of the run; a line for each rank goes to the history of the job.

use std::fs;
use std::path::PathBuf;

use bedplate_control::wire::{FromAgent, RunId};
use bedplate_host::replace_file;
use bedplate_job::rank_environment::MARK;

use super::Node;
use crate::processes::{self, has_variables};

/// Of one run, on this node.
const MOST_FILES: u64 = 8;
const MOST_PROCESSES: usize = 512;
const LONGEST: usize = 16 << 10;
/// Processes of the history's line.
const MOST_TOLD: usize = 4;

/// One process of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    pid: i32,
    rank: Option<String>,
    program: String,
    /// As in `D (disk sleep)`.
    state: String,
    /// What it waits for in the kernel, `-` where it waits for nothing or that is not told.
    waits_in: String,
    stack: String,
}

impl Node {
    pub(super) fn dump(&mut self, run: RunId) {
        let (Some(link), Some(local)) = (self.link.clone(), self.runs.get_mut(&run)) else { return };
        if local.dumps == MOST_FILES {
            return;
        }
        local.dumps += 1;
        let path = self.places.run(run).join(format!("dump-{}.txt", local.dumps));
        let variable = format!("{MARK}={}", local.group);
        // Reading the memory map of a process that the kernel holds may wait for it.
        tokio::task::spawn_blocking(move || {
            let seen = look(&variable);
            let _ = link.send(FromAgent::Dumped { run, what: written(&seen, path) });
        });
    }
}

fn look(variable: &str) -> Vec<Seen> {
    let all = processes::all();
    let marked = all.iter().filter(|process| has_variables(process.pid, &[variable]));
    marked.take(MOST_PROCESSES).filter_map(|process| see(process.pid)).collect()
}

fn see(pid: i32) -> Option<Seen> {
    let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}"));
    let status = read("status").ok()?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.map(|value| value.trim().to_owned()).unwrap_or_default()
    };
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let mut entries = environment.split(|byte| *byte == 0);
    let rank = entries.find_map(|entry| entry.strip_prefix(b"RANK="));
    let waits_in = read("wchan").unwrap_or_default();
    Some(Seen {
        pid,
        rank: rank.map(|rank| String::from_utf8_lossy(rank).chars().take(16).collect()),
        program: field("Name:"),
        state: field("State:"),
        waits_in: if matches!(waits_in.trim(), "" | "0") { "-".to_owned() } else { waits_in },
        stack: read("stack").unwrap_or_default(),
    })
}

/// Writes the file, and says in a line what is in it.
fn written(seen: &[Seen], path: PathBuf) -> String {
    let mut text = String::new();
    for process in seen {
        let Seen { pid, rank, program, state, waits_in, stack } = process;
        let rank = rank.as_deref().map_or(String::new(), |rank| format!("rank {rank}, "));
        text += &format!("{rank}process {pid} {program}: {state}, waits in {waits_in}\n{stack}\n");
        if text.len() > LONGEST * MOST_TOLD {
            break;
        }
    }
    let place = match replace_file(&path, text.as_bytes()) {
        Ok(()) => format!("; all {} processes in {}", seen.len(), path.display()),
        Err(error) => format!("; the rest was not written: {error}"),
    };
    in_short(seen) + &place
}

/// Those first that do not wait for others as most do.
fn in_short(seen: &[Seen]) -> String {
    let count = |of: &Seen| {
        seen.iter().filter(|other| other.waits_in == of.waits_in && other.state == of.state).count()
    };
    let mut ranks: Vec<&Seen> = seen.iter().filter(|process| process.rank.is_some()).collect();
    ranks.sort_by_key(|process| count(process));
    let told = ranks.iter().take(MOST_TOLD).map(|process| {
        let rank = process.rank.as_deref().unwrap_or_default();
        format!("rank {rank} {} is {} in {}", process.program, process.state, process.waits_in)
    });
    told.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_seen_and_the_odd_one_comes_first() {
        let own = see(std::process::id() as i32).expect("it lives");
        assert!(!own.program.is_empty() && !own.state.is_empty());
        let process = |rank: &str, state: &str, waits_in: &str| Seen {
            pid: 7,
            rank: Some(rank.to_owned()),
            program: "python".to_owned(),
            state: state.to_owned(),
            waits_in: waits_in.to_owned(),
            stack: String::new(),
        };
        let seen = [
            process("0", "S (sleeping)", "futex_wait"),
            process("1", "S (sleeping)", "futex_wait"),
            process("2", "D (disk sleep)", "nfs_wait_bit_killable"),
        ];
        let folder = tempfile::tempdir().unwrap();
        let line = written(&seen, folder.path().join("dump-1.txt"));
        assert!(
            line.starts_with("rank 2 python is D (disk sleep) in nfs_wait_bit_killable, rank 0"),
            "{line}"
        );
        let text = fs::read_to_string(folder.path().join("dump-1.txt")).unwrap();
        assert!(text.contains("rank 1, process 7 python: S (sleeping), waits in futex_wait"), "{text}");
        assert_eq!(see(-1), None);
    }
}
