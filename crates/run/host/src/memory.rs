//! Memory of processes and the size of a page, as the kernel counts them.

use std::fs;

use nix::unistd::{SysconfVar, sysconf};

/// Bytes of a page: 4 KiB on most hosts, 16 or 64 KiB on some with ARM processors.
pub fn page_bytes() -> usize {
    const USUAL: usize = 4096;
    sysconf(SysconfVar::PAGE_SIZE)
        .ok()
        .flatten()
        .and_then(|bytes| usize::try_from(bytes).ok())
        .unwrap_or(USUAL)
}

/// Bytes of physical memory that this process holds.
pub fn own_resident_bytes() -> Option<u64> {
    resident_in(&fs::read_to_string("/proc/self/status").ok()?)
}

/// The same for another process, as far as it can be inspected.
pub fn resident_bytes(pid: u32) -> Option<u64> {
    resident_in(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
}

/// `VmRSS:    1234 kB`: whatever a page measures, the kernel tells it in KiB.
fn resident_in(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_told_in_bytes_whatever_a_page_measures() {
        assert_eq!(resident_in("Name:\tx\nVmRSS:\t    1234 kB\nThreads:\t1\n"), Some(1234 * 1024));
        for odd in ["", "VmRSS:\n", "VmRSS: x kB", "VmRSS: 12 pages"] {
            assert_eq!(resident_in(odd), None, "{odd}");
        }
    }

    #[test]
    fn this_process_has_memory_in_pages_of_a_power_of_two() {
        assert!(page_bytes().is_power_of_two());
        let own = own_resident_bytes().unwrap();
        assert!(own > page_bytes() as u64);
        assert!(resident_bytes(std::process::id()).is_some());
        assert_eq!(resident_bytes(u32::MAX), None);
    }
}
