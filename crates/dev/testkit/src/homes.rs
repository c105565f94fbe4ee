//! One of each: which small tool is written where, and by which line of code another copy of it would give itself away.
//!
//! The eleventh copy of a tool is the one without the fsync. So each tool has a home, and code elsewhere that contains its
//! pattern fails a test, which names the home. A place that has a reason of its own is listed with that reason.

use std::fs;

use crate::tidy::rust_files;

/// A tool by the text that an implementation of it contains.
struct Tool {
    pattern: &'static str,
    /// Where it is implemented, below `crates/`; empty where a crate of others does it.
    home: &'static str,
    /// What to use instead of writing it again.
    instead: &'static str,
    /// Other places, below `crates/`, each with its reason.
    exceptions: &'static [(&'static str, &'static str)],
}

const fn tool(
    pattern: &'static str,
    home: &'static str,
    instead: &'static str,
    exceptions: &'static [(&'static str, &'static str)],
) -> Tool {
    Tool { pattern, home, instead, exceptions }
}

const TOOLS: &[Tool] = &[
    tool(
        "sync_all(",
        "run/host/src/replace.rs",
        "`host::replace_file` or `host::sync_folder`",
        &[
            (
                "run/checkpoint/src/storage/folder.rs",
                "parts are written in place by many threads and published by a manifest",
            ),
            ("run/record/src/lines.rs", "appends to a file that keeps what it has"),
            ("app/bedplate/src/commands/chaos/disk.rs", "fills a disk on purpose"),
            ("observe/doctor/src/deep/disk.rs", "measures the disk"),
            ("operate/journal/examples/bench.rs", "measures the disk"),
        ],
    ),
    tool(
        "fs::rename(",
        "run/host/src/replace.rs",
        "`host::replace_file`",
        &[
            ("run/checkpoint/src/storage/folder.rs", "moves whole folders"),
            ("run/checkpoint/src/history.rs", "moves whole folders"),
            ("run/checkpoint/tests/checkpoint/damage.rs", "moves a checkpoint away"),
            ("run/train/tests/run/resume.rs", "moves checkpoints and corpora"),
            ("observe/doctor/tests/node.rs", "hides a file and puts it back"),
            ("operate/local/src/fresh.rs", "moves what a cluster left, folders among it"),
            ("app/bench/src/alert.rs", "a script for the false NVML, which no crash has to survive"),
            ("dev/fakenvml/src/lib.rs", "loads into other programs, so it has no dependencies of ours"),
        ],
    ),
    tool(
        "custom_flags(",
        "run/host/src/regular.rs",
        "`host::open_regular`, which waits for nobody",
        &[
            ("observe/exporter/src/kernel_log.rs", "follows a device, or a pipe of a test"),
            ("run/checkpoint/src/storage/folder.rs", "writes past the cache"),
        ],
    ),
    tool(".persist(", "run/host/src/replace.rs", "`host::Replacement`", &[]),
    tool("Span::current(", "run/host/src/threads.rs", "`host::spawn_within`", &[]),
    tool("libloading", "run/host/src/library.rs", "`host::Library`", &[]),
    tool(
        "duration_since(UNIX_EPOCH)",
        "run/host/src/clock.rs",
        "`host::clock`",
        &[("app/bedplate/tests/faults/mod.rs", "when a file was written")],
    ),
    tool(
        "duration_since(std::time::UNIX_EPOCH)",
        "run/host/src/clock.rs",
        "`host::clock`",
        &[("schedule/control/tests/storm/main.rs", "a seed for tests of a crate that knows no host")],
    ),
    tool(
        "/proc/self/status",
        "run/host/src/memory.rs",
        "`host::memory`",
        &[
            ("operate/agent/tests/users.rs", "a job prints the rights that it has"),
            ("run/train/tests/checkpoint_memory.rs", "the most that was held, not what is held now"),
        ],
    ),
    tool("/proc/self/statm", "run/host/src/memory.rs", "`host::memory`, right for pages of any size", &[]),
    tool("PAGE_SIZE)", "run/host/src/memory.rs", "`host::memory::page_bytes`", &[]),
    tool(
        "gethostname(",
        "run/host/src/name.rs",
        "`host::host_name`",
        &[("run/comm/src/world.rs", "an unknown host is `a host` in a sentence")],
    ),
    tool("146_097", "base/units/src/calendar.rs", "`units::{Date, UtcTime, WrittenTime}`", &[]),
    tool("fn median(", "base/units/src/statistics.rs", "`units::statistics`", &[]),
    tool(
        "fn quantile(",
        "base/units/src/statistics.rs",
        "`units::statistics`",
        &[("schedule/replay/src/requests/histogram.rs", "of a histogram, not of a list")],
    ),
    tool(
        "\"Gi\"",
        "base/document/src/kubernetes.rs",
        "`document::kubernetes`",
        &[
            ("base/units/src/format.rs", "sizes for people, with a unit behind the prefix"),
            ("base/units/src/rate.rs", "bandwidths for people"),
        ],
    ),
    tool("fn label_value(", "base/document/src/kubernetes.rs", "`document::kubernetes`", &[]),
    tool("len() <= 63", "base/document/src/kubernetes.rs", "`document::kubernetes::is_dns_label`", &[]),
    tool(r".replace('\''", "base/document/src/quote.rs", "`document::quote::shell`", &[]),
    tool(
        "serde_json::Value::String(text.to_owned()).to_string()",
        "base/document/src/quote.rs",
        "`document::quote`",
        &[],
    ),
    tool(
        "OpenQuote {",
        "base/document/src/csv.rs",
        "`document::csv`",
        &[
            ("plan/calibrate/src/error.rs", "its own error, made from that of the reader"),
            ("plan/calibrate/src/record.rs", "its own error, made from that of the reader"),
            ("domain/job/src/error.rs", "of a line of sbatch"),
            ("domain/job/src/sbatch/scan.rs", "of a line of sbatch"),
        ],
    ),
    tool("QRSTUVWXYZ", "", "the crate `base64`", &[]),
    tool(
        "elapsed() < PATIENCE, ",
        "dev/testkit/src/waiting.rs",
        "`testkit::wait_until` and its kin",
        &[("operate/binder/tests/binder/world.rs", "shows the whole cluster when it gives up")],
    ),
];

/// Lines of code that write a tool again, and entries of the table that are true no more.
pub fn violations() -> Vec<String> {
    let crates = crate::root().join("crates");
    let own = ["dev/testkit/src/homes.rs"];
    let mut found = Vec::new();
    let mut used = vec![Vec::new(); TOOLS.len()];
    for path in rust_files(&crates) {
        let shown = path.strip_prefix(&crates).unwrap_or(&path).display().to_string();
        if own.contains(&shown.as_str()) {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap_or_default();
        for (tool, used) in TOOLS.iter().zip(&mut used) {
            let lines = text.lines().zip(1..).filter(|(line, _)| !line.trim_start().starts_with("//"));
            let lines: Vec<usize> =
                lines.filter(|(line, _)| line.contains(tool.pattern)).map(|(_, number)| number).collect();
            if lines.is_empty() {
                continue;
            }
            used.push(shown.clone());
            let is_known = tool.home == shown || tool.exceptions.iter().any(|(place, _)| *place == shown);
            if !is_known {
                let (pattern, instead) = (tool.pattern, tool.instead);
                found.extend(lines.iter().map(|line| format!("{shown}:{line}: `{pattern}`; use {instead}")));
            }
        }
    }
    for (tool, used) in TOOLS.iter().zip(&used) {
        let places = tool.exceptions.iter().map(|(place, _)| *place);
        let gone = places.filter(|place| !used.iter().any(|path| path == place));
        found.extend(
            gone.map(|place| format!("{place} has no `{}` any more: take it off the list", tool.pattern)),
        );
    }
    found
}
