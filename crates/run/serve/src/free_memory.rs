//! How much memory this process may still take: what the system has available, and less in a control group with a limit; on a GPU what is free of its own.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use bedplate_kernels::Device;
use bedplate_units::Bytes;

/// Memory that is free where something is to be computed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FreeMemory {
    pub free: Bytes,
    /// All of it, where it is a GPU's own.
    pub of_gpu: Option<Bytes>,
}

impl FreeMemory {
    /// `None` where the system does not say.
    pub fn on(device: &Device) -> Option<Self> {
        let bytes = |bytes: usize| Bytes::new(bytes as f64);
        match device.free_memory() {
            Some(free) => Some(Self { free: bytes(free), of_gpu: device.memory().map(bytes) }),
            None => free_memory().map(Self::of_host),
        }
    }

    pub fn of_host(free: Bytes) -> Self {
        Self { free, of_gpu: None }
    }

    /// How much of a GPU is held already, where that is more than a program takes to begin with.
    pub fn others(&self) -> Option<String> {
        const BEGINNING: f64 = 2e9;
        let held = self.of_gpu? - self.free;
        (held.get() > BEGINNING).then(|| {
            format!("{held} of the GPU are held already, by this program or others: `nvidia-smi` lists them")
        })
    }
}

impl fmt::Display for FreeMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.of_gpu {
            None => write!(f, "{} is free", self.free),
            Some(all) => write!(f, "{} of the GPU's {all} is free", self.free),
        }
    }
}

/// `None` where the system does not say.
pub fn free_memory() -> Option<Bytes> {
    free_below(Path::new("/")).map(|bytes| Bytes::new(bytes as f64))
}

/// The same with another root of the file system.
fn free_below(root: &Path) -> Option<u64> {
    let available = read(&root.join("proc/meminfo"))
        .and_then(|text| field(&text, "MemAvailable:"))
        .and_then(|kib| kib.checked_mul(1024));
    let groups = read(&root.join("proc/self/cgroup")).unwrap_or_default();
    let limits = groups.lines().flat_map(|line| limits(root, line));
    available.into_iter().chain(limits).min()
}

fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// The number behind a word at the start of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let line = text.lines().map(words).find(|words| words.first().is_some_and(|word| word == name))?;
    line.get(1)?.parse().ok()
}

/// The files of a version of control groups.
struct Version {
    mount: &'static str,
    limit: &'static str,
    used: &'static str,
    /// Cached files, which give way.
    cached: [&'static str; 2],
}

const V2: Version = Version {
    mount: "sys/fs/cgroup",
    limit: "memory.max",
    used: "memory.current",
    cached: ["inactive_file", "active_file"],
};
const V1: Version = Version {
    mount: "sys/fs/cgroup/memory",
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    cached: ["total_inactive_file", "total_active_file"],
};

/// What is left in a group, a line of `/proc/self/cgroup`, and in those around it.
fn limits(root: &Path, line: &str) -> Vec<u64> {
    let parts: Vec<&str> = line.splitn(3, ':').collect();
    let [_, controllers, path] = parts[..] else { return Vec::new() };
    let version = match controllers {
        "" => &V2,
        _ if controllers.split(',').any(|name| name == "memory") => &V1,
        _ => return Vec::new(),
    };
    let mount = root.join(version.mount);
    let group = mount.join(path.trim_start_matches('/'));
    let groups = group.ancestors().take_while(|group| group.starts_with(&mount));
    groups.filter_map(|group| left(group.to_owned(), version)).collect()
}

fn left(group: PathBuf, version: &Version) -> Option<u64> {
    let number = |name: &str| read(&group.join(name))?.trim().parse::<u64>().ok();
    let limit = number(version.limit)?;
    let stat = read(&group.join("memory.stat")).unwrap_or_default();
    let cached: u64 = version.cached.iter().filter_map(|name| field(&stat, name)).sum();
    Some(limit.saturating_sub(number(version.used).unwrap_or(0).saturating_sub(cached)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn free(name: &str, files: &[(&str, &str)]) -> Option<u64> {
        let root = std::env::temp_dir().join(format!("bedplate-train-free-{}-{name}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let free = free_below(&root);
        fs::remove_dir_all(&root).unwrap();
        free
    }

    const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:  4000 kB\n");

    #[test]
    fn who_holds_the_rest_of_a_gpu_is_said() {
        let gpu = FreeMemory { free: Bytes::gb(20.0), of_gpu: Some(Bytes::gb(140.0)) };
        assert_eq!(gpu.to_string(), "20 GB of the GPU's 140 GB is free");
        assert!(
            gpu.others().unwrap().starts_with("120 GB of the GPU are held already"),
            "{:?}",
            gpu.others()
        );
        assert_eq!(FreeMemory { free: Bytes::gb(139.0), ..gpu }.others(), None);
        let host = FreeMemory::of_host(Bytes::gb(20.0));
        assert_eq!((host.to_string().as_str(), host.others()), ("20 GB is free", None));
    }

    #[test]
    fn the_tightest_limit_counts() {
        assert_eq!(free("none", &[]), None);
        assert_eq!(free("plain", &[MEMINFO]), Some(4_096_000));
        let v2 = [
            MEMINFO,
            ("proc/self/cgroup", "0::/job/rank\n"),
            ("sys/fs/cgroup/job/rank/memory.max", "max\n"),
            ("sys/fs/cgroup/job/memory.max", "1000000\n"),
            ("sys/fs/cgroup/job/memory.current", "400000\n"),
            ("sys/fs/cgroup/job/memory.stat", "anon 7\ninactive_file 100000\nactive_file 50000\n"),
        ];
        assert_eq!(free("v2", &v2), Some(750_000), "cached files give way");
        let v1 = [
            MEMINFO,
            ("proc/self/cgroup", "3:cpu,cpuacct:/x\n2:memory:/job\n"),
            ("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "500000\n"),
            ("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "600000\n"),
        ];
        assert_eq!(free("v1", &v1), Some(0), "over its limit");
        let unlimited = [MEMINFO, ("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/memory.max", "max\n")];
        assert_eq!(free("unlimited", &unlimited), Some(4_096_000));
    }
}
