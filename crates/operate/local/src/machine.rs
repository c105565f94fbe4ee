//! What this machine really has, and which processes on it belong to a cluster.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The marker that the agent sets in the environment of everything that a job starts.
pub const MARK: &str = "BEDPLATE_RUN";

/// The hardware of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machine {
    pub cores: u32,
    pub memory_mib: u64,
    pub gpus: u32,
}

impl Machine {
    pub fn this() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
        Self { cores, memory_mib: memory_mib().unwrap_or(1024), gpus: gpus() }
    }
}

/// The processor's model and its maker, as the system names them.
pub fn processor() -> (String, String) {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = text.lines().find(|line| line.split(':').next().is_some_and(|key| key.trim() == name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let model = field("model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    (model, field("vendor_id").unwrap_or_else(|| "unknown".to_owned()))
}

/// Processes that wanted a core over the last minute, on average.
pub fn load() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}

/// Memory that programs may take: the machine's, or less in a container.
pub fn memory_for_programs_mib() -> u64 {
    let limit = fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let limit = limit.and_then(|text| text.trim().parse::<u64>().ok()).map(|bytes| bytes >> 20);
    let whole = Machine::this().memory_mib;
    limit.map_or(whole, |limit| limit.min(whole))
}

fn memory_mib() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? / 1024)
}

/// GPUs as NVIDIA's driver shows them, or by their device files inside a container.
fn gpus() -> u32 {
    let by_driver = entries("/proc/driver/nvidia/gpus").count();
    let is_device = |name: &str| {
        name.strip_prefix("nvidia")
            .is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
    };
    let by_file = entries("/dev").filter(|path| name_of(path).is_some_and(is_device)).count();
    (if by_driver > 0 { by_driver } else { by_file }) as u32
}

fn entries(folder: &str) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}

fn name_of(path: &Path) -> Option<&str> {
    path.file_name()?.to_str()
}

/// A process of this machine, as far as we may inspect it.
#[derive(Debug, Clone)]
pub struct Process {
    pub pid: u32,
    pub environment: BTreeMap<String, String>,
    pub directory: Option<PathBuf>,
}

impl Process {
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.environment.get(name).map(String::as_str)
    }

    /// Whose it is: user and group.
    pub fn user(&self) -> Option<(u32, u32)> {
        let metadata = fs::metadata(format!("/proc/{}", self.pid)).ok()?;
        Some((metadata.uid(), metadata.gid()))
    }
}

/// The processes whose environment has a variable, oldest first.
pub fn processes_with(variable: &str) -> Vec<Process> {
    let pid_of = |path: PathBuf| name_of(&path)?.parse::<u32>().ok();
    let mut found: Vec<Process> = entries("/proc").filter_map(|path| process(pid_of(path)?)).collect();
    found.retain(|process| process.environment.contains_key(variable));
    found.sort_by_key(|process| process.pid);
    found
}

/// Nothing where it has gone, or its environment may not be read.
pub(crate) fn process(pid: u32) -> Option<Process> {
    let path = PathBuf::from(format!("/proc/{pid}"));
    let bytes = fs::read(path.join("environ")).ok()?;
    let pairs = bytes.split(|byte| *byte == 0).filter_map(|pair| {
        let text = String::from_utf8_lossy(pair).into_owned();
        let (name, value) = text.split_once('=')?;
        Some((name.to_owned(), value.to_owned()))
    });
    Some(Process { pid, environment: pairs.collect(), directory: fs::read_link(path.join("cwd")).ok() })
}

/// Memory that a process really has, in MiB.
pub fn resident_mib(pid: u32) -> Option<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().trim_end_matches("kB").trim().parse::<f64>().ok()? / 1024.0)
}

/// Whether a process is still running; a zombie is not.
pub fn is_alive(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = status.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| state != 'Z' && state != 'X')
}

/// The command line of a process, with spaces between its words.
pub fn command_line(pid: u32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_found_by_a_variable_and_is_alive() {
        let own = std::process::id();
        assert!(is_alive(own) && !is_alive(u32::MAX));
        assert!(!command_line(own).is_empty());
        assert!(processes_with("PATH").iter().any(|process| process.pid == own));
        let machine = Machine::this();
        assert!(machine.cores > 0 && machine.memory_mib > 0);
    }
}
