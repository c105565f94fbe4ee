//! Where a rank's program stands: its stack, from py-spy, from Python's faulthandler, or from the kernel.
//!
//! A stack alone does not tell a rank that waits from one that is waited for. What the innermost frames of the program itself say
//! is whether it waits in a collective, reads data, writes a checkpoint, or does something of its own.

use crate::verdict::{Cause, Observation};

/// What one process was doing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ProcessStack {
    pub rank: Option<u32>,
    /// Where it is from: a file, `process 4711`.
    pub source: String,
    /// Of the main thread, the innermost first: `function (file:line)`.
    pub frames: Vec<String>,
    /// The kernel's function that it sleeps in, and its state.
    pub kernel: Option<String>,
}

/// What a program is doing by its stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Doing {
    /// It waits for other ranks.
    Waiting,
    /// It waits for batches or reads files.
    Data,
    /// It writes or reads a checkpoint.
    Checkpoint,
    /// Something of its own.
    Own,
    Unknown,
}

const MOST_FRAMES: usize = 40;
/// Parts of frames that say what a program does, the more certain first.
const SIGNS: [(&str, Doing); 22] = [
    ("distributed_c10d", Doing::Waiting),
    ("c10d_logger", Doing::Waiting),
    ("nccl", Doing::Waiting),
    ("gloo", Doing::Waiting),
    ("synchronize (", Doing::Waiting),
    ("_engine_run_backward", Doing::Waiting),
    ("mpi4py", Doing::Waiting),
    ("utils/data/", Doing::Data),
    ("dataloader", Doing::Data),
    ("fsspec", Doing::Data),
    ("webdataset", Doing::Data),
    ("streaming/base", Doing::Data),
    ("datasets/", Doing::Data),
    ("torch/serialization", Doing::Checkpoint),
    ("distributed/checkpoint", Doing::Checkpoint),
    ("safetensors", Doing::Checkpoint),
    ("save_checkpoint", Doing::Checkpoint),
    ("_save (", Doing::Checkpoint),
    ("fsync (", Doing::Checkpoint),
    ("ssl.py", Doing::Data),
    ("socket.py", Doing::Data),
    ("urllib", Doing::Data),
];
/// Functions of the kernel in which a process waits for a file system.
const OF_FILES: [&str; 14] = [
    "nfs",
    "rpc_wait",
    "ll_",
    "ldlm",
    "ptlrpc",
    "fuse",
    "request_wait_answer",
    "ceph",
    "xfs",
    "ext4",
    "jbd2",
    "io_schedule",
    "folio_wait",
    "wait_on_page",
];

impl ProcessStack {
    /// Reads what `py-spy dump` or faulthandler wrote; `None` when it is neither.
    pub fn read(source: &str, text: &str) -> Option<ProcessStack> {
        let threads = threads(text);
        let main = threads
            .iter()
            .find(|thread| thread.is_main)
            .or_else(|| threads.iter().max_by_key(|thread| thread.frames.len()))?;
        let frames = main.frames.iter().take(MOST_FRAMES).cloned().collect();
        Some(ProcessStack {
            rank: crate::record::rank_of_name(source),
            source: source.to_owned(),
            frames,
            kernel: None,
        })
    }

    pub fn doing(&self) -> Doing {
        let of_files = |kernel: &String| OF_FILES.iter().any(|name| kernel.contains(name));
        if self.kernel.as_ref().is_some_and(of_files) {
            return Doing::Data;
        }
        for frame in self.frames.iter().take(8) {
            let frame = frame.to_ascii_lowercase();
            if let Some((_, doing)) = SIGNS.iter().find(|(sign, _)| frame.contains(sign)) {
                return *doing;
            }
        }
        if self.frames.is_empty() { Doing::Unknown } else { Doing::Own }
    }

    /// The innermost frames of the program itself, without those of libraries below it.
    pub fn own_frames(&self) -> Vec<String> {
        let of_library = |frame: &&String| {
            frame.contains("site-packages")
                || frame.contains("dist-packages")
                || frame.contains("/lib/python")
        };
        let own: Vec<String> =
            self.frames.iter().filter(|frame| !of_library(frame)).take(3).cloned().collect();
        match own.is_empty() {
            true => self.frames.iter().take(3).cloned().collect(),
            false => own,
        }
    }

    /// What the stack of a rank that holds up others speaks for.
    pub(crate) fn evidence(&self) -> Vec<Observation> {
        let words = self.own_frames().join(" < ");
        let kernel = self.kernel.as_ref().map_or(String::new(), |kernel| format!(", {kernel}"));
        let rank = self.rank.map_or("a rank".to_owned(), |rank| format!("rank {rank}"));
        let weights: &[(Cause, f64)] = match self.doing() {
            Doing::Data | Doing::Checkpoint => &[(Cause::Storage, 0.9), (Cause::Application, 0.4)],
            Doing::Own => &[(Cause::Application, 0.9)],
            Doing::Waiting | Doing::Unknown => &[],
        };
        let observation = |speaks_for, weight| Observation {
            what: format!("{rank} is in {words}{kernel}"),
            source: self.source.clone(),
            speaks_for,
            weight,
        };
        match weights {
            [] => vec![observation(None, 0.0)],
            weights => weights.iter().map(|(cause, weight)| observation(Some(*cause), *weight)).collect(),
        }
    }
}

#[derive(Default)]
struct Thread {
    is_main: bool,
    frames: Vec<String>,
}

/// `Thread 12 (idle): "MainThread"` and `    wait (threading.py:324)` of py-spy; `Current thread 0x… (most recent call first):`
/// and `  File "x.py", line 3 in wait` of faulthandler.
fn threads(text: &str) -> Vec<Thread> {
    let mut threads: Vec<Thread> = Vec::new();
    for line in text.lines().take(20_000) {
        let trimmed = line.trim();
        let begins = (trimmed.starts_with("Thread ") || trimmed.starts_with("Current thread "))
            && (trimmed.contains("(most recent call first)")
                || trimmed.contains("): ")
                || trimmed.ends_with(')'));
        if begins {
            threads.push(Thread { is_main: trimmed.contains("MainThread"), frames: Vec::new() });
        } else if let Some(thread) = threads.last_mut()
            && let Some(frame) = frame(trimmed)
        {
            thread.frames.push(frame);
        }
    }
    // Faulthandler does not name threads; the main one is the last that it prints.
    if !threads.iter().any(|thread| thread.is_main)
        && text.contains("(most recent call first)")
        && let Some(last) = threads.last_mut()
    {
        last.is_main = true;
    }
    threads.retain(|thread| !thread.frames.is_empty());
    threads
}

fn frame(line: &str) -> Option<String> {
    if let Some(rest) = line.strip_prefix("File \"") {
        let (file, rest) = rest.split_once("\", line ")?;
        let (number, function) = rest.split_once(" in ")?;
        return Some(format!("{function} ({file}:{number})"));
    }
    let (function, place) = line.split_once(" (")?;
    let place = place.strip_suffix(')')?;
    let number = place.rsplit_once(':')?.1;
    (!function.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())).then(|| line.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PY_SPY: &str = "\
Process 4711: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 4711 (idle): \"MainThread\"
    sleep_for_ever (train.py:31)
    load (train.py:40)
    <module> (train.py:80)
Thread 4712 (idle): \"pin_memory\"
    wait (threading.py:324)
";
    const FAULTHANDLER: &str = "\
Thread 0x00007f3a (most recent call first):
  File \"/usr/lib/python3.11/threading.py\", line 324 in wait

Current thread 0x00007f3b (most recent call first):
  File \"/x/site-packages/torch/distributed/c10d_logger.py\", line 83 in wrapper
  File \"/job/train.py\", line 57 in step
";

    #[test]
    fn stacks_of_both_kinds_are_those_of_the_main_thread() {
        let stack = ProcessStack::read("stacks/rank_2.txt", PY_SPY).expect("it is a stack");
        assert_eq!((stack.rank, stack.doing()), (Some(2), Doing::Own));
        assert_eq!(stack.frames[0], "sleep_for_ever (train.py:31)");
        let stack = ProcessStack::read("rank_1.stack", FAULTHANDLER).expect("it is a stack");
        assert_eq!(stack.doing(), Doing::Waiting);
        assert_eq!(stack.own_frames(), ["step (/job/train.py:57)"]);
        assert_eq!(ProcessStack::read("a.log", "step 3: loss 4\n"), None);
    }

    #[test]
    fn a_process_that_sleeps_in_a_file_system_waits_for_storage() {
        let kernel = Some("D in rpc_wait_bit_killable".to_owned());
        let stack =
            ProcessStack { kernel, frames: vec!["read (x.py:1)".to_owned()], ..ProcessStack::default() };
        assert_eq!(stack.doing(), Doing::Data);
    }
}
