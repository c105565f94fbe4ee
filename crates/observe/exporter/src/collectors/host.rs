//! The host: pressure, load, memory, disks, NVMe controllers.

use crate::collectors::{Collector, Failed};
use crate::metrics::host as metric;
use crate::metrics::storage;
use crate::root::{Root, list, read, read_number};
use crate::series::{Batch, Naming, Spot};

/// `/proc/diskstats` counts in sectors of this size, whatever the disk has.
const SECTOR: f64 = 512.0;

pub(crate) struct Host {
    root: Root,
    naming: Naming,
    ticks_per_second: f64,
}

impl Host {
    pub(crate) fn new(root: Root, naming: Naming) -> Self {
        let ticks = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok().flatten();
        Self { root, naming, ticks_per_second: ticks.unwrap_or(100) as f64 }
    }

    fn pressure(&self, to: &mut Batch) {
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

    fn memory(&self, to: &mut Batch) {
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

    fn processors(&self, to: &mut Batch) {
        let labels = self.naming.labels(&[]);
        if let Some(load) = self.root.read("proc/loadavg").as_deref().and_then(first_number) {
            to.put(&metric::LOAD1, &labels, &Spot::Node, load);
        }
        let text = self.root.read("proc/stat").unwrap_or_default();
        if let Some(line) = text.lines().next().and_then(|line| line.strip_prefix("cpu ")) {
            let ticks: Vec<f64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
            // user, nice, system, idle, iowait, irq, softirq, steal; guests are part of user.
            if ticks.len() >= 8 {
                let busy = ticks[0] + ticks[1] + ticks[2] + ticks[5] + ticks[6] + ticks[7];
                to.put(&metric::CPU_BUSY_SECONDS, &labels, &Spot::Node, busy / self.ticks_per_second);
                let waiting = ticks[4] / self.ticks_per_second;
                to.put(&metric::CPU_IOWAIT_SECONDS, &labels, &Spot::Node, waiting);
            }
        }
        let blocked =
            text.lines().find_map(|line| line.strip_prefix("procs_blocked ")).and_then(first_number);
        if let Some(blocked) = blocked {
            to.put(&metric::BLOCKED_PROCESSES, &labels, &Spot::Node, blocked);
        }
    }

    fn disks(&self, to: &mut Batch) {
        let text = self.root.read("proc/diskstats").unwrap_or_default();
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (Some(name), true) = (words.get(2), words.len() >= 14) else { continue };
            if !is_whole_disk(name) {
                continue;
            }
            let labels = self.naming.labels(&[("device", name)]);
            let spot = Spot::Mount((*name).into());
            for (at, metric, factor) in [
                (3, &storage::DISK_READS, 1.0),
                (5, &storage::DISK_READ_BYTES, SECTOR),
                (6, &storage::DISK_READ_SECONDS, 0.001),
                (7, &storage::DISK_WRITES, 1.0),
                (9, &storage::DISK_WRITTEN_BYTES, SECTOR),
                (10, &storage::DISK_WRITE_SECONDS, 0.001),
                (12, &storage::DISK_BUSY_SECONDS, 0.001),
            ] {
                if let Ok(value) = words[at].parse::<f64>() {
                    to.put(metric, &labels, &spot, value * factor);
                }
            }
        }
    }

    fn nvme(&self, to: &mut Batch) {
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

impl Collector for Host {
    fn name(&self) -> &'static str {
        "host"
    }

    fn collect(&mut self, to: &mut Batch) -> Result<(), Failed> {
        self.pressure(to);
        self.memory(to);
        self.processors(to);
        self.disks(to);
        self.nvme(to);
        Ok(())
    }
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

/// `total=` of the line `some …` or `full …`, in microseconds.
fn total_us(text: &str, kind: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(kind))?;
    line.split_whitespace().find_map(|word| word.strip_prefix("total="))?.parse().ok()
}

fn first_number(text: &str) -> Option<f64> {
    text.split_whitespace().next()?.parse().ok()
}
