//! Limits of the operating system and settings of the kernel.

use super::Sources;
use crate::facts::{NodeFacts, SystemLimit};

pub(super) fn gather(sources: &Sources, facts: &mut NodeFacts) {
    let text = sources.text(&format!("/proc/{}/limits", sources.process)).unwrap_or_default();
    let limits = &mut facts.limits;
    limits.locked_memory = limit(&text, "Max locked memory");
    limits.open_files = limit(&text, "Max open files");
    limits.processes = limit(&text, "Max processes");
    let number = |path: &str| sources.text(path)?.parse::<u64>().ok();
    limits.huge_pages = number("/proc/sys/vm/nr_hugepages");
    limits.numa_balancing = number("/proc/sys/kernel/numa_balancing").map(|value| value != 0);
    limits.governor = sources.text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
    limits.memory_bytes = sources.text("/proc/meminfo").and_then(|text| memory(&text));
    limits.shared_memory_bytes = shared_memory(sources);
}

/// `Max locked memory         8388608              8388608              bytes`: the soft limit.
fn limit(text: &str, name: &str) -> Option<SystemLimit> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    match rest.split_whitespace().next()? {
        "unlimited" => Some(SystemLimit::Unlimited),
        number => number.parse().ok().map(SystemLimit::At),
    }
}

fn memory(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

fn shared_memory(sources: &Sources) -> Option<u64> {
    let facts = nix::sys::statvfs::statvfs(&sources.at("/dev/shm")).ok()?;
    Some(facts.blocks() as u64 * facts.fragment_size() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_counts() {
        let text = "Limit                     Soft Limit           Hard Limit           Units\n\
                    Max locked memory         8388608              unlimited            bytes\n\
                    Max open files            unlimited            unlimited            files";
        assert_eq!(limit(text, "Max locked memory"), Some(SystemLimit::At(8_388_608)));
        assert_eq!(limit(text, "Max open files"), Some(SystemLimit::Unlimited));
        assert_eq!(limit(text, "Max processes"), None);
    }
}
