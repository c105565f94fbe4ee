//! Control groups, where the host permits them: the node's cores for all its ranks, memory for each run.
//!
//! Both versions are looked for below the cgroup that this process is in, so that an outer limit stays in force.
//! Nothing here is an error: what cannot be had is not enforced, and the node says so. Entering a cgroup costs about
//! half a millisecond, so a run gets one only when it has a memory limit; the cores are entered once, by the fork server, and so is
//! the group in which all ranks of the node together have one share of the processor: thousands of busy processes do not keep
//! agent and daemon, which are outside, from their turn.

use std::fs::{self, File, OpenOptions};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use crate::processes::kernel_text;

/// What this node has.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cgroups {
    memory: Option<(PathBuf, Version)>,
    made: Vec<PathBuf>,
    pub(crate) enforced: Vec<String>,
    /// Processes and threads that all runs of one user may have together: whatever they do, others can start theirs. Worked out
    /// where the host's numbers are seen: a pid namespace has a `pid_max` of its own.
    pub(crate) most_processes_of_user: u64,
}

/// What the group is for in which all ranks of a node are.
const TURNS: &str = "turns of the processor beside the cluster's own processes by";

/// On machines with room for millions of processes.
const MOST_PROCESSES: u64 = 131_072;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Cgroups {
    /// Makes what can be made, and enters the node's share of cores with this process.
    pub(crate) fn begin(node: &str, cores: &[u32]) -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let name = format!("bedplate-{node}-{}", std::process::id());
        let mut cgroups = Self { most_processes_of_user: most_processes() / 2, ..Self::default() };
        if let Some(base) = find_unified(&mounts, &own) {
            cgroups.begin_unified(&base.join(&name), cores);
        }
        if cgroups.memory.is_none()
            && let Some(base) = find_controller("memory", &mounts, &own)
        {
            cgroups.begin_memory(&base.join(&name));
        }
        if !cgroups.enforced.iter().any(|each| each.contains("processes"))
            && let Some(base) = find_controller("pids", &mounts, &own)
        {
            cgroups.begin_pids(&base.join(&name));
        }
        if let Some(base) = find_controller("cpuset", &mounts, &own)
            && !cores.is_empty()
        {
            cgroups.begin_cores(&base, &base.join(&name), cores);
        }
        if !cgroups.enforced.iter().any(|each| each.starts_with(TURNS))
            && let Some(base) = find_controller("cpu", &mounts, &own)
        {
            cgroups.begin_turns(&base.join(&name));
        }
        cgroups
    }

    fn begin_unified(&mut self, directory: &Path, cores: &[u32]) -> Option<()> {
        let base = directory.parent()?;
        let controllers = fs::read_to_string(base.join("cgroup.controllers")).ok()?;
        let has = |name: &str| controllers.split_whitespace().any(|each| each == name);
        if !has("memory") {
            return None;
        }
        let mut wanted = "+memory".to_owned();
        if has("cpuset") && !cores.is_empty() {
            wanted += " +cpuset";
        }
        if has("pids") {
            wanted += " +pids";
        }
        if has("cpu") {
            wanted += " +cpu";
        }
        put(base, "cgroup.subtree_control", &wanted)?;
        self.make(directory)?;
        put(directory, "cgroup.subtree_control", &wanted)?;
        if put(directory, "pids.max", &most_processes().to_string()).is_some() {
            self.enforced.push(format!("{} processes by cgroup v2", most_processes()));
        }
        self.memory = Some((directory.to_owned(), Version::Two));
        self.enforced.push("memory by cgroup v2".to_owned());
        if has("cpu") {
            self.enforced.push(format!("{TURNS} cgroup v2"));
        }
        let fork_server = directory.join("keeper");
        self.make(&fork_server)?;
        put(&fork_server, "cgroup.procs", "0")?;
        if wanted.contains("cpuset") && put(directory, "cpuset.cpus", &list(cores)).is_some() {
            self.enforced.push(format!("cores {} by cgroup v2", list(cores)));
        }
        Some(())
    }

    fn begin_memory(&mut self, directory: &Path) -> Option<()> {
        self.make(directory)?;
        OpenOptions::new().write(true).open(directory.join("memory.limit_in_bytes")).ok()?;
        self.memory = Some((directory.to_owned(), Version::One));
        self.enforced.push("memory by cgroup v1".to_owned());
        Some(())
    }

    fn begin_pids(&mut self, directory: &Path) -> Option<()> {
        self.make(directory)?;
        put(directory, "pids.max", &most_processes().to_string())?;
        put(directory, "cgroup.procs", "0")?;
        self.enforced.push(format!("{} processes by cgroup v1", most_processes()));
        Some(())
    }

    fn begin_turns(&mut self, directory: &Path) -> Option<()> {
        self.make(directory)?;
        put(directory, "cgroup.procs", "0")?;
        self.enforced.push(format!("{TURNS} cgroup v1"));
        Some(())
    }

    fn begin_cores(&mut self, base: &Path, directory: &Path, cores: &[u32]) -> Option<()> {
        self.make(directory)?;
        let memories = fs::read_to_string(base.join("cpuset.mems")).ok()?;
        put(directory, "cpuset.mems", memories.trim())?;
        put(directory, "cpuset.cpus", &list(cores))?;
        put(directory, "cgroup.procs", "0")?;
        self.enforced.push(format!("cores {} by cpuset", list(cores)));
        Some(())
    }

    /// Makes a directory, and removes those that killed fork servers left.
    fn make(&mut self, directory: &Path) -> Option<()> {
        directory.parent().map(remove_stale);
        fs::create_dir(directory).ok()?;
        self.made.push(directory.to_owned());
        Some(())
    }

    /// A cgroup with a memory limit, for one run.
    pub(crate) fn limit(&self, group: &str, memory_mib: u64) -> Option<Limited> {
        let (base, version) = self.memory.as_ref()?;
        let directory = base.join(group);
        fs::create_dir(&directory).ok()?;
        let limited = Limited { directory, version: *version, memory_mib };
        let bytes = memory_mib.saturating_mul(1 << 20).to_string();
        match version {
            Version::One => put(&limited.directory, "memory.limit_in_bytes", &bytes)?,
            Version::Two => {
                put(&limited.directory, "memory.max", &bytes)?;
                // One rank that dies of it ends the others: half a gang is useless.
                put(&limited.directory, "memory.oom.group", "1");
                put(&limited.directory, "pids.max", &self.most_processes_of_user.to_string());
            }
        }
        Some(limited)
    }

    /// Leaves what was made; directories that still hold processes stay behind.
    pub(crate) fn end(&self) {
        if let Some((base, _)) = &self.memory {
            // Of runs whose run shims were killed.
            directories(base).iter().for_each(|run| drop(fs::remove_dir(run)));
        }
        for directory in self.made.iter().rev() {
            if let Some(base) = directory.parent() {
                put(base, "cgroup.procs", "0");
            }
            let _ = fs::remove_dir(directory);
        }
    }
}

/// The cgroup of a run.
#[derive(Debug)]
pub(crate) struct Limited {
    directory: PathBuf,
    version: Version,
    pub(crate) memory_mib: u64,
}

impl Limited {
    /// The file through which a process enters by writing `0`.
    pub(crate) fn entrance(&self) -> Option<OwnedFd> {
        let file: File = OpenOptions::new().write(true).open(self.directory.join("cgroup.procs")).ok()?;
        Some(file.into())
    }

    /// Kills everything inside at once, where the kernel can.
    pub(crate) fn kill(&self) {
        if self.version == Version::Two {
            put(&self.directory, "cgroup.kill", "1");
        }
    }

    pub(crate) fn peak_memory_mib(&self) -> u64 {
        let file = match self.version {
            Version::One => "memory.max_usage_in_bytes",
            Version::Two => "memory.peak",
        };
        let text = fs::read_to_string(self.directory.join(file)).unwrap_or_default();
        text.trim().parse::<u64>().unwrap_or(0) >> 20
    }

    /// How often the kernel has killed a process inside for want of memory.
    pub(crate) fn memory_kills(&self) -> u64 {
        let file = match self.version {
            Version::One => "memory.oom_control",
            Version::Two => "memory.events",
        };
        count_in(&fs::read_to_string(self.directory.join(file)).unwrap_or_default())
    }

    pub(crate) fn remove(&self) {
        let _ = fs::remove_dir(&self.directory);
    }
}

/// Processes and threads of all runs of a node together: a job that forks without end takes no number that the machine needs.
fn most_processes() -> u64 {
    let of_kernel = kernel_text("/proc/sys/kernel/pid_max").trim().parse::<u64>().unwrap_or(32_768);
    (of_kernel / 2).min(MOST_PROCESSES)
}

/// How often the kernel has killed any process of this host for want of memory.
pub(crate) fn memory_kills_of_host() -> u64 {
    count_in(&kernel_text("/proc/vmstat"))
}

fn count_in(text: &str) -> u64 {
    let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

/// Removes the empty cgroups of fork servers that have ended, those of their runs first.
fn remove_stale(base: &Path) {
    for directory in directories(base).into_iter().filter(|path| is_stale(path)) {
        for run in directories(&directory) {
            let _ = fs::remove_dir(run);
        }
        let _ = fs::remove_dir(directory);
    }
}

fn directories(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

/// Whether it is named after a fork server that has ended.
fn is_stale(directory: &Path) -> bool {
    let name = directory.file_name().and_then(|name| name.to_str());
    let fork_server =
        name.and_then(|name| name.strip_prefix("bedplate-")?.rsplit_once('-')?.1.parse::<u32>().ok());
    fork_server.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists())
}

fn put(directory: &Path, file: &str, value: &str) -> Option<()> {
    fs::write(directory.join(file), value).ok()
}

fn list(cores: &[u32]) -> String {
    cores.iter().map(u32::to_string).collect::<Vec<String>>().join(",")
}

/// Our own directory in the unified hierarchy.
fn find_unified(mounts: &str, own: &str) -> Option<PathBuf> {
    let path = own.lines().find_map(|line| line.strip_prefix("0::"))?;
    let mount = mounts.lines().filter_map(Mount::parse).find(|mount| mount.kind == "cgroup2")?;
    Some(mount.locate(path))
}

/// Our own directory in the hierarchy of one controller of version 1.
fn find_controller(controller: &str, mounts: &str, own: &str) -> Option<PathBuf> {
    let path = own.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        fields.next()?.split(',').any(|name| name == controller).then(|| fields.next())?
    })?;
    let holds = |mount: &Mount<'_>| {
        mount.kind == "cgroup" && mount.options.split(',').any(|option| option == controller)
    };
    Some(mounts.lines().filter_map(Mount::parse).find(holds)?.locate(path))
}

/// A line of `/proc/self/mountinfo`.
struct Mount<'a> {
    root: &'a str,
    point: &'a str,
    kind: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (before, behind) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(3);
        let mut behind = behind.split(' ');
        Some(Self {
            root: before.next()?,
            point: before.next()?,
            kind: behind.next()?,
            options: behind.nth(1)?,
        })
    }

    /// Where a cgroup lies when only a part of the hierarchy is mounted, as in a container.
    fn locate(&self, path: &str) -> PathBuf {
        let inside = path.strip_prefix(self.root).unwrap_or(path);
        Path::new(self.point).join(inside.trim_start_matches('/'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
30 23 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
31 30 0:27 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
32 30 0:28 /docker/abc /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct
33 30 0:29 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
    const OWN: &str = "4:memory:/job/7\n1:cpu,cpuacct:/docker/abc/inner\n0::/user\n";

    #[test]
    fn kills_for_want_of_memory_are_counted() {
        assert_eq!(count_in("low 0\nhigh 0\nmax 7\noom 3\noom_kill 2\noom_group_kill 1\n"), 2);
        assert_eq!(count_in("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n"), 5);
        assert_eq!(count_in(""), 0);
    }

    #[test]
    fn own_directories_are_found_in_both_versions_and_in_containers() {
        let find = |controller| find_controller(controller, MOUNTS, OWN);
        assert_eq!(find("memory"), Some("/sys/fs/cgroup/memory/job/7".into()));
        assert_eq!(find("cpuacct"), Some("/sys/fs/cgroup/cpu/inner".into()));
        assert_eq!(find("cpuset"), None);
        assert_eq!(find_unified(MOUNTS, OWN), Some("/sys/fs/cgroup/unified/user".into()));
        assert_eq!(find_unified("", OWN), None);
    }
}
