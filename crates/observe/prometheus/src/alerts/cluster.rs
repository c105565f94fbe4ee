//! Alerts on the cluster as a whole: its control plane, its nodes together, and the observing itself.

use bedplate_finding::{Action, Layer, Severity};

use crate::alert::{Alert, Example, camel_case};

/// An alert written by hand, with one example that fires and one that does not.
pub(super) struct Written {
    pub(super) rule: &'static str,
    pub(super) expression: &'static str,
    pub(super) lasts_s: u64,
    pub(super) severity: Severity,
    pub(super) layer: Layer,
    pub(super) action: Action,
    pub(super) summary: &'static str,
    pub(super) why: &'static str,
    pub(super) remedy: &'static str,
    /// Name, labels without the closing brace, values a minute apart.
    pub(super) bad: &'static [(&'static str, &'static str, &'static str)],
    pub(super) good: &'static [(&'static str, &'static str, &'static str)],
    pub(super) at_minute: u64,
    pub(super) labels: &'static [(&'static str, &'static str)],
}

pub(super) fn written(it: &Written) -> Alert {
    let series = |rows: &[(&str, &str, &str)]| {
        let row = |(name, labels, values): &(&str, &str, &str)| {
            let labels = if labels.is_empty() { String::new() } else { format!("{labels}}}") };
            (format!("{name}{labels}"), (*values).to_owned())
        };
        rows.iter().map(row).collect::<Vec<_>>()
    };
    let labels = it.labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let example =
        |rows, fires| Example { interval_s: 60, series: series(rows), at_s: it.at_minute * 60, fires };
    Alert {
        name: camel_case(it.rule),
        rule: it.rule.to_owned(),
        expression: it.expression.to_owned(),
        lasts_s: it.lasts_s,
        severity: it.severity,
        layer: it.layer,
        action: it.action,
        summary: it.summary.to_owned(),
        why: it.why.to_owned(),
        remedy: it.remedy.to_owned(),
        examples: vec![example(it.bad, vec![labels]), example(it.good, Vec::new())],
    }
}

pub(super) fn alerts() -> Vec<Alert> {
    ALERTS.iter().map(written).collect()
}

const ALERTS: &[Written] = &[
    Written {
        rule: "cluster/half-failing",
        expression: "count(count by (Hostname) (bedplate_finding{action=~\"reset-device|drain|reboot|replace\"} > 0)) > 0.5 * count(bedplate_gpus_answering) and count(bedplate_gpus_answering) > 2",
        lasts_s: 0,
        severity: Severity::Critical,
        layer: Layer::Software,
        action: Action::Alert,
        summary: "more than half of the nodes have findings that would drain them",
        why: "Hardware does not fail in half of a cluster at once: a driver, a switch, power or a rule is at fault. Draining everything would make it worse.",
        remedy: "find what the nodes have in common (`bedplate doctor --cluster`) before anything is replaced",
        bad: &[
            ("bedplate_gpus_answering", "{Hostname=\"n1\"", "8x20"),
            ("bedplate_gpus_answering", "{Hostname=\"n2\"", "8x20"),
            ("bedplate_gpus_answering", "{Hostname=\"n3\"", "8x20"),
            ("bedplate_finding", "{Hostname=\"n1\",rule=\"gpu/lost\",action=\"reboot\"", "1x20"),
            ("bedplate_finding", "{Hostname=\"n2\",rule=\"gpu/lost\",action=\"reboot\"", "1x20"),
        ],
        good: &[
            ("bedplate_gpus_answering", "{Hostname=\"n1\"", "8x20"),
            ("bedplate_gpus_answering", "{Hostname=\"n2\"", "8x20"),
            ("bedplate_gpus_answering", "{Hostname=\"n3\"", "8x20"),
            ("bedplate_finding", "{Hostname=\"n1\",rule=\"gpu/lost\",action=\"reboot\"", "1x20"),
        ],
        at_minute: 5,
        labels: &[],
    },
    Written {
        rule: "cluster/target-down",
        expression: "up == 0",
        lasts_s: 60,
        severity: Severity::Warning,
        layer: Layer::Software,
        action: Action::Alert,
        summary: "{{ $labels.instance }} cannot be scraped",
        why: "Either the machine is gone, or it is not monitored.",
        remedy: "`bedplate node list` shows whether the node is there; then look at its exporter",
        bad: &[("up", "{instance=\"n1:9400\",job=\"bedplate\"", "0x20")],
        good: &[("up", "{instance=\"n1:9400\",job=\"bedplate\"", "1x20")],
        at_minute: 10,
        labels: &[("instance", "n1:9400"), ("job", "bedplate")],
    },
    Written {
        rule: "cluster/collector-failing",
        expression: "bedplate_collector_up == 0",
        lasts_s: 300,
        severity: Severity::Warning,
        layer: Layer::Software,
        action: Action::Alert,
        summary: "{{ $labels.Hostname }}: the collector {{ $labels.collector }} cannot read",
        why: "Values that are not read cannot be judged: no findings does not mean healthy.",
        remedy: "look at the log of the exporter on the node",
        bad: &[("bedplate_collector_up", "{Hostname=\"n1\",collector=\"gpu\"", "0x20")],
        good: &[("bedplate_collector_up", "{Hostname=\"n1\",collector=\"gpu\"", "1x20")],
        at_minute: 10,
        labels: &[("Hostname", "n1"), ("collector", "gpu")],
    },
    Written {
        rule: "cluster/fewer-gpus",
        expression: "bedplate_gpus_answering < max_over_time(bedplate_gpus_answering[1d])",
        lasts_s: 60,
        severity: Severity::Critical,
        layer: Layer::Hardware,
        action: Action::Drain,
        summary: "{{ $labels.Hostname }}: fewer GPUs answer than a day ago",
        why: "A GPU that is gone takes the whole node out of any gang that counts on it.",
        remedy: "look for XID 79 in the kernel log; reboot, and replace the node when the GPU stays away",
        bad: &[("bedplate_gpus_answering", "{Hostname=\"n1\"", "8x5 7x10")],
        good: &[("bedplate_gpus_answering", "{Hostname=\"n1\"", "8x15")],
        at_minute: 10,
        labels: &[("Hostname", "n1")],
    },
    Written {
        rule: "scheduler/journal",
        expression: "bedplate_journal_healthy == 0",
        lasts_s: 0,
        severity: Severity::Critical,
        layer: Layer::Storage,
        action: Action::Alert,
        summary: "{{ $labels.instance }}: the control plane cannot write its journal",
        why: "No job is taken in and nothing new starts until it can.",
        remedy: "make room on the disk of the state directory, then restart the daemon",
        bad: &[("bedplate_journal_healthy", "{instance=\"head:7431\"", "0x10")],
        good: &[("bedplate_journal_healthy", "{instance=\"head:7431\"", "1x10")],
        at_minute: 5,
        labels: &[("instance", "head:7431")],
    },
    Written {
        rule: "scheduler/nodes-lost",
        expression: "bedplate_nodes{state=\"down\"} > 0",
        lasts_s: 120,
        severity: Severity::Warning,
        layer: Layer::Hardware,
        action: Action::Alert,
        summary: "{{ $labels.instance }}: nodes are {{ $labels.state }}",
        why: "Their GPUs are paid for and idle.",
        remedy: "`bedplate node list` names them",
        bad: &[("bedplate_nodes", "{state=\"down\",instance=\"head:7431\"", "2x10")],
        good: &[("bedplate_nodes", "{state=\"idle\",instance=\"head:7431\"", "2x10")],
        at_minute: 5,
        labels: &[("instance", "head:7431"), ("state", "down")],
    },
    Written {
        rule: "scheduler/restarts",
        expression: "increase(bedplate_run_restarts_total[1h]) > 10",
        lasts_s: 0,
        severity: Severity::Warning,
        layer: Layer::Application,
        action: Action::Alert,
        summary: "{{ $labels.instance }}: more than ten runs came back within an hour",
        why: "A node that kills every job, or a job that cannot live, eats the cluster.",
        remedy: "`bedplate job show` names the nodes and reasons of the last runs",
        bad: &[("bedplate_run_restarts_total", "{instance=\"head:7431\"", "0+1x40")],
        good: &[("bedplate_run_restarts_total", "{instance=\"head:7431\"", "5x40")],
        at_minute: 30,
        labels: &[("instance", "head:7431")],
    },
    Written {
        rule: "scheduler/idle-gpus",
        expression: "sum by (instance) (bedplate_gpus_free) > 0.5 * sum by (instance) (bedplate_gpus) and sum by (instance) (bedplate_jobs{state=\"waiting\"}) > 0",
        lasts_s: 3600,
        severity: Severity::Info,
        layer: Layer::Application,
        action: Action::Record,
        summary: "{{ $labels.instance }}: jobs wait while half of the GPUs are free",
        why: "Limits, shapes or reservations keep them apart.",
        remedy: "`bedplate job explain` says what each job waits for",
        bad: &[
            ("bedplate_gpus_free", "{instance=\"head:7431\"", "60x90"),
            ("bedplate_gpus", "{instance=\"head:7431\"", "64x90"),
            ("bedplate_jobs", "{instance=\"head:7431\",state=\"waiting\"", "3x90"),
        ],
        good: &[
            ("bedplate_gpus_free", "{instance=\"head:7431\"", "8x90"),
            ("bedplate_gpus", "{instance=\"head:7431\"", "64x90"),
            ("bedplate_jobs", "{instance=\"head:7431\",state=\"waiting\"", "3x90"),
        ],
        at_minute: 70,
        labels: &[("instance", "head:7431")],
    },
];
