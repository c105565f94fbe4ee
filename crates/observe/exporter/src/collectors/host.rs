//! The host: pressure, load, memory, disks, NVMe controllers.

use crate::collectors::{Collector, Failed};
use crate::metrics::host as metric;
use crate::metrics::storage;
use crate::root::{Root, list, read, read_number};
use crate::series::{Naming, SeriesBatch, Spot};

/// `/proc/diskstats` counts in sectors of this size, whatever the disk has.
const SECTOR: f64 = 512.0;

pub(crate) struct HostCollector {
    root: Root,
    naming: Naming,
    ticks_per_second: f64,
}

impl HostCollector {
    pub(crate) fn new(root: Root, naming: Naming) -> Self {
        let ticks = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok().flatten();
        Self { root, naming, ticks_per_second: ticks.unwrap_or(100) as f64 }
    }

    fn pressure(&self, to: &mut SeriesBatch) {
        let labels = self.naming.labels(&[]);
        for (file, some, full) in [
            ("cpu", &metric::PRESSURE_CPU_WAITING, None),
            ("io", &metric::PRESSURE_IO_WAITING, Some(&metric::PRESSURE_IO_STALLED)),
            ("memory", &metric::PRESSURE_MEMORY_WAITING, Some(&metric::PRESSURE_MEMORY_STALLED)),
        ] {
            let Some(text) = self.root.read(&format!("proc/pressure/{file}")) else { continue };
            let total = |kind: &str| total_us(&text, kind).map(|us| us / 1e6);
            if let Some(seconds) = total("some") {
                to.put(some, &labels, &Spot::Node, seconds);
            }
            if let Some((metric, seconds)) = full.zip(total("full")) {
                to.put(metric, &labels, &Spot::Node, seconds);
            }
        }
    }

    fn memory(&self, to: &mut SeriesBatch) {
        let labels = self.naming.labels(&[]);
        let text = self.root.read("proc/meminfo").unwrap_or_default();
        for (key, metric) in [
            ("MemTotal:", &metric::MEMORY_TOTAL),
            ("MemAvailable:", &metric::MEMORY_AVAILABLE),
            ("Dirty:", &metric::MEMORY_DIRTY),
            ("HardwareCorrupted:", &metric::MEMORY_HARDWARE_CORRUPTED),
        ] {
            let kib = text.lines().find_map(|line| line.strip_prefix(key)).and_then(first_number);
            if let Some(kib) = kib {
                to.put(metric, &labels, &Spot::Node, kib * 1024.0);
            }
        }
        let kills = self.root.read("proc/vmstat").unwrap_or_default();
        let kills = kills.lines().find_map(|line| line.strip_prefix("oom_kill ")).and_then(first_number);
        if let Some(kills) = kills {
            to.put(&metric::OOM_KILLS, &labels, &Spot::Node, kills);
        }
        for (file, metric) in [("ue_count", &metric::EDAC_UNCORRECTED), ("ce_count", &metric::EDAC_CORRECTED)]
        {
            let folder = "sys/devices/system/edac/mc";
            let controllers = self.root.list(folder);
            let counts: Vec<f64> = controllers
                .iter()
                .filter_map(|name| read_number(&self.root.path(&format!("{folder}/{name}/{file}"))))
                .collect();
            if !counts.is_empty() {
                to.put(metric, &labels, &Spot::Node, counts.iter().sum());
            }
        }
    }

    fn processors(&self, to: &mut SeriesBatch) {
        let labels = self.naming.labels(&[]);
        if let Some(load) = self.root.read("proc/loadavg").as_deref().and_then(first_number) {
            to.put(&metric::LOAD1, &labels, &Spot::Node, load);
        }
        let text = self.root.read("proc/stat").unwrap_or_default();
        if let Some(Ticks { busy, waiting }) = processor_ticks(&text) {
            to.put(&metric::CPU_BUSY_SECONDS, &labels, &Spot::Node, busy / self.ticks_per_second);
            to.put(&metric::CPU_IOWAIT_SECONDS, &labels, &Spot::Node, waiting / self.ticks_per_second);
        }
        let blocked =
            text.lines().find_map(|line| line.strip_prefix("procs_blocked ")).and_then(first_number);
        if let Some(blocked) = blocked {
            to.put(&metric::BLOCKED_PROCESSES, &labels, &Spot::Node, blocked);
        }
    }

    fn disks(&self, to: &mut SeriesBatch) {
        let text = self.root.read("proc/diskstats").unwrap_or_default();
        for disk in disks(&text) {
            let labels = self.naming.labels(&[("device", disk.name)]);
            let spot = Spot::Mount(disk.name.into());
            for (metric, value) in [
                (&storage::DISK_READS, disk.reads),
                (&storage::DISK_READ_BYTES, disk.read_sectors * SECTOR),
                (&storage::DISK_READ_SECONDS, disk.read_ms / 1000.0),
                (&storage::DISK_WRITES, disk.writes),
                (&storage::DISK_WRITTEN_BYTES, disk.written_sectors * SECTOR),
                (&storage::DISK_WRITE_SECONDS, disk.write_ms / 1000.0),
                (&storage::DISK_BUSY_SECONDS, disk.busy_ms / 1000.0),
            ] {
                to.put(metric, &labels, &spot, value);
            }
        }
    }

    fn nvme(&self, to: &mut SeriesBatch) {
        const FOLDER: &str = "sys/class/nvme";
        for name in self.root.list(FOLDER) {
            let folder = self.root.path(&format!("{FOLDER}/{name}"));
            let labels = self.naming.labels(&[("device", &name)]);
            let spot = Spot::Mount(name.as_str().into());
            if let Some(state) = read(&folder.join("state")) {
                let is_live = state.trim() == "live";
                to.put(&storage::NVME_LIVE, &labels, &spot, f64::from(u8::from(is_live)));
            }
            let sensor = list(&folder).into_iter().find(|entry| entry.starts_with("hwmon"));
            let sensor = sensor.map(|sensor| folder.join(sensor).join("temp1_input"));
            if let Some(millidegrees) = sensor.and_then(|path| read_number(&path)) {
                to.put(&storage::NVME_TEMPERATURE, &labels, &spot, millidegrees / 1000.0);
            }
        }
    }
}

impl Collector for HostCollector {
    fn name(&self) -> &'static str {
        "host"
    }

    fn collect(&mut self, to: &mut SeriesBatch) -> Result<(), Failed> {
        self.pressure(to);
        self.memory(to);
        self.processors(to);
        self.disks(to);
        self.nvme(to);
        Ok(())
    }
}

/// What all processors did, in ticks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ticks {
    pub busy: f64,
    /// Idle while something waited for a disk.
    pub waiting: f64,
}

/// The first line of `/proc/stat`.
pub fn processor_ticks(text: &str) -> Option<Ticks> {
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<f64> = line.split_whitespace().map_while(finite).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal; guests are part of user.
    let [user, nice, system, _, waiting, irq, softirq, steal, ..] = ticks[..] else { return None };
    Some(Ticks { busy: user + nice + system + irq + softirq + steal, waiting })
}

/// A whole disk in `/proc/diskstats`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Disk<'a> {
    pub name: &'a str,
    pub reads: f64,
    pub read_sectors: f64,
    pub read_ms: f64,
    pub writes: f64,
    pub written_sectors: f64,
    pub write_ms: f64,
    pub busy_ms: f64,
}

/// The lines of `/proc/diskstats` that are whole disks; the others are skipped.
pub fn disks(text: &str) -> impl Iterator<Item = Disk<'_>> {
    text.lines().filter_map(disk)
}

fn disk(line: &str) -> Option<Disk<'_>> {
    let mut words = line.split_whitespace().skip(2);
    let name = words.next().filter(|name| is_whole_disk(name))?;
    let numbers: Vec<f64> = words.map_while(finite).collect();
    // Merged requests and those in flight are left out.
    let [reads, _, read_sectors, read_ms, writes, _, written_sectors, write_ms, _, busy_ms, _, ..] =
        numbers[..]
    else {
        return None;
    };
    Some(Disk { name, reads, read_sectors, read_ms, writes, written_sectors, write_ms, busy_ms })
}

fn finite(word: &str) -> Option<f64> {
    word.parse().ok().filter(|value: &f64| value.is_finite())
}

/// Not partitions, loops and memory disks.
fn is_whole_disk(name: &str) -> bool {
    let is_partition = match name.strip_prefix("nvme") {
        Some(rest) => rest.contains('p'),
        None => name.ends_with(|last: char| last.is_ascii_digit()),
    };
    let is_pretended = ["loop", "ram", "zram", "dm-", "sr", "fd"].iter().any(|kind| name.starts_with(kind));
    !is_partition && !is_pretended
}

/// `total=` of the line `some …` or `full …` of a file in `/proc/pressure`, in microseconds.
pub fn total_us(text: &str, kind: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(kind))?;
    finite(line.split_whitespace().find_map(|word| word.strip_prefix("total="))?)
}

/// The number behind the name of a field, as in `/proc/meminfo`.
pub fn first_number(text: &str) -> Option<f64> {
    finite(text.split_whitespace().next()?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// What is written as the kernel writes it is read as it was.
        #[test]
        fn a_disk_is_read_as_the_kernel_writes_it(numbers in prop::collection::vec(0u64..1 << 50, 11..18), number in 0u32..100) {
            let words: Vec<String> = numbers.iter().map(u64::to_string).collect();
            let line = format!(" 259       0 nvme{number}n1 {}\n", words.join(" "));
            let found: Vec<Disk<'_>> = disks(&line).collect();
            prop_assert_eq!(found.len(), 1);
            let Disk { name, reads, read_sectors, writes, busy_ms, .. } = found[0];
            prop_assert_eq!(name, format!("nvme{number}n1"));
            let at = |place: usize| numbers[place] as f64;
            prop_assert_eq!((reads, read_sectors, writes, busy_ms), (at(0), at(2), at(4), at(9)));
        }

        #[test]
        fn processors_and_pressure_are_read_as_the_kernel_writes_them(ticks in prop::collection::vec(0u32..u32::MAX, 10), total in 0u64..1 << 50) {
            let words: Vec<String> = ticks.iter().map(u32::to_string).collect();
            let read = processor_ticks(&format!("cpu  {}\ncpu0 1 2\n", words.join(" "))).expect("it is a line of the kernel");
            prop_assert_eq!(read.waiting, f64::from(ticks[4]));
            let idle = f64::from(ticks[3]) + f64::from(ticks[4]);
            prop_assert_eq!(read.busy, ticks[..8].iter().map(|tick| f64::from(*tick)).sum::<f64>() - idle);
            let text = format!("some avg10=0.00 avg60=0.00 avg300=0.00 total={total}\nfull avg10=0.00 total=7\n");
            prop_assert_eq!((total_us(&text, "some"), total_us(&text, "full")), (Some(total as f64), Some(7.0)));
        }

        #[test]
        fn arbitrary_bytes_never_harm(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            let text = String::from_utf8_lossy(&bytes);
            let _ = (processor_ticks(&text), disks(&text).count(), total_us(&text, "some"), first_number(&text));
        }
    }
}
