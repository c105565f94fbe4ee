//! Storage as the nodes see it: Lustre clients, local disks, file systems.

use super::hosts;
use crate::grafana::{Dashboard, Panel, PanelKind, Row};

pub(super) fn dashboard() -> Dashboard {
    Dashboard {
        uid: "bedplate-storage",
        title: "Storage",
        description: "Lustre, local disks and file systems, from the clients' side",
        variables: vec![hosts()],
        rows: vec![lustre(), disks(), file_systems()],
    }
}

fn of(metric: &str) -> String {
    format!("{metric}{{Hostname=~\"$Hostname\"}}")
}

fn rate(metric: &str) -> String {
    format!("rate({}[$__rate_interval])", of(metric))
}

fn graph(title: &'static str, unit: &'static str, expression: String, legend: &'static str) -> Panel {
    Panel::new(title, PanelKind::TimeSeries, unit).query(expression, legend)
}

fn lustre() -> Row {
    let by_host = |metric: &str| format!("sum by (Hostname, target) ({})", rate(metric));
    let latency = format!(
        "sum by (operation) ({}) / sum by (operation) ({})",
        rate("bedplate_lustre_operation_seconds_total"),
        rate("lustre_stats_total")
    );
    Row {
        title: "Lustre",
        panels: vec![
            graph("Read", "Bps", by_host("lustre_read_bytes_total"), "{{Hostname}} {{target}}"),
            graph("Written", "Bps", by_host("lustre_write_bytes_total"), "{{Hostname}} {{target}}"),
            graph(
                "Operations",
                "ops",
                format!("sum by (operation) ({})", rate("lustre_stats_total")),
                "{{operation}}",
            ),
            graph("Mean time of an operation", "s", latency, "{{operation}}"),
            graph(
                "Requests in flight",
                "short",
                of("lustre_rpcs_in_flight"),
                "{{Hostname}} {{target}} {{type}}",
            ),
            Panel::new("Targets connected", PanelKind::StateTimeline, "bool")
                .query(of("bedplate_lustre_target_connected"), "{{Hostname}} {{target}}"),
        ],
    }
}

fn disks() -> Row {
    Row {
        title: "Local disks",
        panels: vec![
            graph("Read", "Bps", rate("node_disk_read_bytes_total"), "{{Hostname}} {{device}}"),
            graph("Written", "Bps", rate("node_disk_written_bytes_total"), "{{Hostname}} {{device}}"),
            graph("Busy", "percentunit", rate("node_disk_io_time_seconds_total"), "{{Hostname}} {{device}}"),
            graph(
                "NVMe temperature",
                "celsius",
                of("bedplate_nvme_temperature_celsius"),
                "{{Hostname}} {{device}}",
            )
            .limits(70.0, 80.0),
        ],
    }
}

fn file_systems() -> Row {
    let used = format!("1 - {} / {}", of("node_filesystem_avail_bytes"), of("node_filesystem_size_bytes"));
    Row {
        title: "File systems",
        panels: vec![
            Panel::new("Used", PanelKind::BarGauge, "percentunit")
                .query(used, "{{Hostname}} {{mountpoint}}")
                .limits(0.85, 0.95),
            graph(
                "Not answering since",
                "s",
                of("bedplate_mount_stalled_seconds"),
                "{{Hostname}} {{mountpoint}}",
            )
            .limits(10.0, 30.0),
        ],
    }
}
