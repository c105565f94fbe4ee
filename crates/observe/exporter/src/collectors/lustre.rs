//! Lustre clients: statistics of mounts (`llite`) and of the connections to targets (`osc`, `mdc`).
//!
//! A file system that is mounted twice is told once: what both mounts did is added up.
//!
//! The files have been below `/proc/fs/lustre` and are below `/sys/kernel/debug/lustre` and `/sys/fs/lustre` now; all are looked at.

use std::collections::BTreeMap;
use std::ops::Add;
use std::sync::Arc;

use crate::collectors::{Collector, Failed};
use crate::metrics::storage as metric;
use crate::root::{Root, list, read, read_number};
use crate::series::{Naming, SeriesBatch, Spot};

const FOLDERS: [&str; 3] = ["sys/kernel/debug/lustre", "sys/fs/lustre", "proc/fs/lustre"];

/// One line of `llite.*.stats`: `read_bytes 40 samples [bytes] 4096 1048576 41943040`.
#[derive(Debug, Clone, PartialEq)]
pub struct Statistic<'a> {
    pub name: &'a str,
    pub samples: u64,
    pub unit: &'a str,
    /// Smallest, largest and sum, where the line has them.
    pub range: Option<(f64, f64, f64)>,
}

/// The lines that are statistics; the others are skipped.
pub fn statistics(text: &str) -> impl Iterator<Item = Statistic<'_>> {
    text.lines().filter_map(statistic)
}

fn statistic(line: &str) -> Option<Statistic<'_>> {
    let mut words = line.split_whitespace();
    let (name, samples) = (words.next()?, words.next()?.parse().ok()?);
    if words.next()? != "samples" {
        return None;
    }
    let unit = words.next()?.strip_prefix('[')?.strip_suffix(']')?;
    let numbers: Vec<f64> =
        words.map_while(|word| word.parse().ok()).filter(|value: &f64| value.is_finite()).take(3).collect();
    let range = match numbers[..] {
        [least, most, sum] => Some((least, most, sum)),
        _ => None,
    };
    Some(Statistic { name, samples, unit, range })
}

/// Requests in flight and pages that wait, from `osc.*.rpc_stats`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RpcStatistics {
    pub in_flight: Option<u64>,
    pub pending_pages: Option<u64>,
}

pub fn rpc_statistics(text: &str) -> RpcStatistics {
    let sum = |names: [&str; 2]| {
        let lines = text.lines().filter_map(|line| line.split_once(':'));
        let found = lines.filter(|(name, _)| names.contains(&name.trim()));
        let mut numbers = found.filter_map(|(_, value)| value.trim().parse::<u64>().ok()).peekable();
        numbers.peek().is_some().then(|| numbers.fold(0, u64::saturating_add))
    };
    RpcStatistics {
        in_flight: sum(["read RPCs in flight", "write RPCs in flight"])
            .or_else(|| sum(["modify_RPCs_in_flight", "RPCs in flight"])),
        pending_pages: sum(["pending read pages", "pending write pages"]),
    }
}

/// The state of a connection, from `osc.*.import` or the last line of `osc.*.state`.
pub fn is_connected(text: &str) -> Option<bool> {
    let state = text.lines().find_map(|line| {
        let line = line.trim();
        line.strip_prefix("state:").or_else(|| line.strip_prefix("current_state:"))
    })?;
    // An idle connection was closed on purpose and comes back by itself.
    Some(matches!(state.trim(), "FULL" | "IDLE"))
}

pub(crate) struct Lustre {
    root: Root,
    naming: Naming,
}

impl Lustre {
    pub(crate) fn new(root: Root, naming: Naming) -> Self {
        Self { root, naming }
    }

    /// Folders of a kind, by name; the first place that has one counts for each file.
    fn folders(&self, kind: &str) -> BTreeMap<String, Vec<std::path::PathBuf>> {
        let mut found: BTreeMap<String, Vec<std::path::PathBuf>> = BTreeMap::new();
        for folder in FOLDERS {
            let parent = self.root.path(&format!("{folder}/{kind}"));
            for name in list(&parent) {
                found.entry(name.clone()).or_default().push(parent.join(name));
            }
        }
        found
    }

    fn mount(&self, name: &str, stats: &str, to: &mut SeriesBatch) {
        // `fs-ffff8a1b2c3d4e5f`: the file system, then an address of the kernel that differs at each mount.
        let target = name.rsplit_once('-').map_or(name, |(target, _)| target);
        let labels = self.naming.labels(&[("component", "client"), ("target", target)]);
        let spot = Spot::Mount(target.into());
        for statistic in statistics(stats) {
            let samples = statistic.samples as f64;
            match (statistic.name, statistic.range) {
                ("read_bytes", Some((_, most, sum))) => {
                    to.join(&metric::LUSTRE_READ_SAMPLES, &labels, &spot, samples, f64::add);
                    to.join(&metric::LUSTRE_READ_MAXIMUM, &labels, &spot, most, f64::max);
                    to.join(&metric::LUSTRE_READ_BYTES, &labels, &spot, sum, f64::add);
                }
                ("write_bytes", Some((_, most, sum))) => {
                    to.join(&metric::LUSTRE_WRITE_SAMPLES, &labels, &spot, samples, f64::add);
                    to.join(&metric::LUSTRE_WRITE_MAXIMUM, &labels, &spot, most, f64::max);
                    to.join(&metric::LUSTRE_WRITE_BYTES, &labels, &spot, sum, f64::add);
                }
                (operation, range) => self.operation(target, operation, &statistic, range, &spot, to),
            }
        }
    }

    fn operation(
        &self,
        target: &str,
        operation: &str,
        statistic: &Statistic<'_>,
        range: Option<(f64, f64, f64)>,
        spot: &Spot,
        to: &mut SeriesBatch,
    ) {
        let pairs = [("component", "client"), ("target", target), ("operation", operation)];
        let labels = self.naming.labels(&pairs);
        to.join(&metric::LUSTRE_STATS, &labels, spot, statistic.samples as f64, f64::add);
        if let (Some((_, _, sum)), true) = (range, statistic.unit.starts_with("usec")) {
            to.join(&metric::LUSTRE_STATS_SECONDS, &labels, spot, sum / 1e6, f64::add);
        }
    }

    fn target(&self, kind: &str, name: &str, folders: &[std::path::PathBuf], to: &mut SeriesBatch) {
        let target = name.split("-osc").next().unwrap_or(name).split("-mdc").next().unwrap_or(name);
        let labels: Arc<str> =
            self.naming.labels(&[("component", "client"), ("target", target), ("type", kind)]);
        let spot = Spot::Mount(target.into());
        let find = |file: &str| folders.iter().find_map(|folder| read(&folder.join(file)));
        let rpcs = find("rpc_stats").map(|text| rpc_statistics(&text)).unwrap_or_default();
        if let Some(in_flight) = rpcs.in_flight {
            to.join(&metric::LUSTRE_RPCS_IN_FLIGHT, &labels, &spot, in_flight as f64, f64::add);
        }
        if let Some(pages) = rpcs.pending_pages {
            to.join(&metric::LUSTRE_PENDING_PAGES, &labels, &spot, pages as f64, f64::add);
        }
        let connected = find("import").or_else(|| find("state")).and_then(|text| is_connected(&text));
        if let Some(is_connected) = connected {
            to.join(&metric::LUSTRE_IMPORT_FULL, &labels, &spot, f64::from(u8::from(is_connected)), f64::min);
        }
        let active = folders.iter().find_map(|folder| read_number(&folder.join("active")));
        if connected.is_none() && active == Some(0.0) {
            to.join(&metric::LUSTRE_IMPORT_FULL, &labels, &spot, 0.0, f64::min);
        }
    }
}

impl Collector for Lustre {
    fn name(&self) -> &'static str {
        "lustre"
    }

    fn collect(&mut self, to: &mut SeriesBatch) -> Result<(), Failed> {
        for (name, folders) in self.folders("llite") {
            if let Some(stats) = folders.iter().find_map(|folder| read(&folder.join("stats"))) {
                self.mount(&name, &stats, to);
            }
        }
        for kind in ["osc", "mdc"] {
            for (name, folders) in self.folders(kind) {
                self.target(kind, &name, &folders, to);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATS: &str = "\
snapshot_time             1700000000.123456789 secs.nsecs
start_time                1690000000.000000000 secs.nsecs
read_bytes                40 samples [bytes] 4096 1048576 41943040 43980465111040
write_bytes               7 samples [bytes] 1 8388608 58720256
open                      12 samples [usecs] 3 900 4200 99000
ioctl                     5 samples [reqs]
";

    #[test]
    fn statistics_have_samples_units_and_sums() {
        let read: Vec<Statistic<'_>> = statistics(STATS).collect();
        assert_eq!(read.len(), 4);
        assert_eq!(read[0].range, Some((4096.0, 1_048_576.0, 41_943_040.0)));
        assert_eq!((read[2].name, read[2].samples, read[2].unit), ("open", 12, "usecs"));
        assert_eq!(read[3].range, None);
    }

    #[test]
    fn requests_in_flight_are_those_of_both_directions() {
        let text = "snapshot_time: 1.2\nread RPCs in flight:  3\nwrite RPCs in flight: 4\npending write pages:  20\npending read pages:   2\n\n\t\t\tread\t\t\twrite\n";
        let read = rpc_statistics(text);
        assert_eq!(read, RpcStatistics { in_flight: Some(7), pending_pages: Some(22) });
        assert_eq!(rpc_statistics("modify_RPCs_in_flight:  1\n").in_flight, Some(1));
        assert_eq!(rpc_statistics("nothing"), RpcStatistics::default());
    }

    proptest::proptest! {
        /// What is written as Lustre writes it is read as it was.
        #[test]
        fn statistics_are_read_as_lustre_writes_them(
            name in "[a-z_]{1,20}", samples in 0u64..1 << 60, unit in "[a-z]{1,8}",
            range in proptest::option::of((0u32..u32::MAX, 0u32..u32::MAX, 0u64..1 << 52)),
        ) {
            let tail = range.map_or(String::new(), |(least, most, sum)| format!(" {least} {most} {sum} 99"));
            let line = format!("{name:<25} {samples} samples [{unit}]{tail}\n");
            let text = format!("snapshot_time 1.2 secs.nsecs\n{line}");
            let read: Vec<Statistic<'_>> = statistics(&text).collect();
            let range = range.map(|(least, most, sum)| (f64::from(least), f64::from(most), sum as f64));
            let wanted = Statistic { name: &name, samples, unit: &unit, range };
            proptest::prop_assert_eq!(read, [wanted]);
        }

        #[test]
        fn arbitrary_bytes_never_harm(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..2000)) {
            let text = String::from_utf8_lossy(&bytes);
            let _ = (statistics(&text).count(), rpc_statistics(&text), is_connected(&text));
        }
    }

    #[test]
    fn a_connection_is_in_use_or_it_is_not() {
        assert_eq!(is_connected("import:\n    name: fs-OST0000\n    state: FULL\n"), Some(true));
        assert_eq!(is_connected("current_state: IDLE\nstate_history:\n"), Some(true));
        assert_eq!(is_connected("    state: DISCONN\n"), Some(false));
        assert_eq!(is_connected("nothing"), None);
    }
}
