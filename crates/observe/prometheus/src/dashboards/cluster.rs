//! "GPU Health - Cluster": the panels of Grafana's dashboard 21645, and memory errors, which that one lacks.

use super::hosts;
use crate::grafana::{Dashboard, Panel, PanelKind, Row};

pub(super) fn dashboard() -> Dashboard {
    Dashboard {
        uid: "bedplate-gpu-cluster",
        title: "GPU Health - Cluster",
        description: "Which GPUs of the cluster have errors, are too hot or are gone",
        variables: vec![hosts()],
        rows: vec![read_me(), errors(), memory(), presence(), load()],
    }
}

fn read_me() -> Row {
    let text = Panel::new("Read me", PanelKind::Text, "none").says(
        "Rows remapped for **uncorrectable** errors, a remap **failure** and fatal **XIDs** call for a reset or a replacement; `bedplate rules` alerts on them. \
         Metrics have the names and units of dcgm-exporter; violation counters are in nanoseconds. A GPU that is missing here does not answer.",
    );
    Row { title: "About", panels: vec![text] }
}

fn errors() -> Row {
    let xid = Panel::new("XID errors", PanelKind::Stat, "none")
        .says("The last code of each GPU since its exporter started; 0 is none")
        .query(
            "max by (Hostname, gpu) (DCGM_FI_DEV_XID_ERRORS{Hostname=~\"$Hostname\"})",
            "{{Hostname}} gpu {{gpu}}",
        )
        .limits(1.0, 32.0)
        .wide(12);
    let counts = Panel::new("XID errors by code", PanelKind::TimeSeries, "short")
        .says("Every XID counts, also two between scrapes")
        .query(
            "sum by (Hostname, xid) (DCGM_EXP_XID_ERRORS_COUNT{Hostname=~\"$Hostname\"})",
            "{{Hostname}} XID {{xid}}",
        );
    let findings = Panel::new("Open findings", PanelKind::Table, "none")
        .says("What the health rules of the nodes found")
        .query(
            "max by (Hostname, rule, severity, action, subject) (bedplate_finding{Hostname=~\"$Hostname\"})",
            "",
        )
        .wide(24);
    Row { title: "Errors", panels: vec![xid, counts, findings] }
}

fn memory() -> Row {
    let stat = |title, description, metric: &str, orange, red| {
        Panel::new(title, PanelKind::Stat, "short")
            .says(description)
            .query(format!("max by (Hostname) ({metric}{{Hostname=~\"$Hostname\"}})"), "{{Hostname}}")
            .limits(orange, red)
            .wide(8)
    };
    let ecc = |title, description, metric: &str| {
        Panel::new(title, PanelKind::TimeSeries, "short").says(description).query(
            format!("sum by (Hostname, gpu) ({metric}{{Hostname=~\"$Hostname\"}})"),
            "{{Hostname}} gpu {{gpu}}",
        )
    };
    Row {
        title: "Memory",
        panels: vec![
            stat(
                "Uncorrectable remapped rows",
                "Rows replaced after errors that could not be corrected",
                "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
                1.0,
                8.0,
            ),
            stat(
                "Correctable remapped rows",
                "Rows replaced after many corrected errors",
                "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
                1.0,
                8.0,
            ),
            stat(
                "Row remap failure",
                "No spare row is left: the GPU must be replaced",
                "DCGM_FI_DEV_ROW_REMAP_FAILURE",
                0.5,
                1.0,
            ),
            ecc(
                "Double-bit ECC errors",
                "Uncorrectable, since the driver was loaded",
                "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
            ),
            ecc(
                "Single-bit ECC errors",
                "Corrected; a rate that grows announces more",
                "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
            ),
        ],
    }
}

fn presence() -> Row {
    let missing = Panel::new("Missing GPUs", PanelKind::StateTimeline, "short")
        .says("How many fewer GPUs answer than at the best moment of a day")
        .query(
            "clamp_min(max_over_time(bedplate_gpus_answering{Hostname=~\"$Hostname\"}[1d]) - bedplate_gpus_answering{Hostname=~\"$Hostname\"}, 0)",
            "{{Hostname}}",
        )
        .limits(1.0, 2.0);
    let reporting = Panel::new("Instances reporting", PanelKind::Gauge, "short")
        .says("Hosts by model of GPU, and by instance type where the scrape configuration adds it")
        .query("count by (instance_type, modelName) (max by (instance_type, modelName, Hostname) (DCGM_FI_DEV_GPU_TEMP))", "{{instance_type}} {{modelName}}")
        .query("count(max by (Hostname) (bedplate_gpus_answering))", "total");
    let lost = Panel::new("Lost GPUs", PanelKind::Stat, "short")
        .says("GPUs that were there and do not answer any more")
        .query("sum by (Hostname) (bedplate_gpu_lost{Hostname=~\"$Hostname\"})", "{{Hostname}}")
        .limits(0.5, 1.0);
    Row { title: "Presence", panels: vec![missing, reporting, lost] }
}

fn load() -> Row {
    let slow = |title, description, metric: &str| {
        Panel::new(title, PanelKind::TimeSeries, "percentunit").says(description).query(
            format!("max by (Hostname) (rate({metric}{{Hostname=~\"$Hostname\"}}[$__rate_interval])) / 1e9"),
            "{{Hostname}}",
        )
    };
    let average = |title, description, unit, metric: &str| {
        Panel::new(title, PanelKind::TimeSeries, unit)
            .says(description)
            .query(format!("avg by (Hostname) ({metric}{{Hostname=~\"$Hostname\"}})"), "{{Hostname}}")
    };
    Row {
        title: "Heat, power and load",
        panels: vec![
            slow("Thermal violation", "Share of time in which heat held the clocks of a GPU down", "DCGM_FI_DEV_THERMAL_VIOLATION"),
            slow("Power violation", "Share of time in which the power limit did; normal under full load", "DCGM_FI_DEV_POWER_VIOLATION"),
            Panel::new("Hottest GPU", PanelKind::TimeSeries, "celsius")
                .query("max by (Hostname) (DCGM_FI_DEV_GPU_TEMP{Hostname=~\"$Hostname\"})", "{{Hostname}}")
                .limits(80.0, 87.0),
            Panel::new("Power", PanelKind::TimeSeries, "watt")
                .query("sum by (Hostname) (DCGM_FI_DEV_POWER_USAGE{Hostname=~\"$Hostname\"})", "{{Hostname}}"),
            average("GPU utilisation", "Share of time with any kernel; 100 % may still be slow", "percent", "DCGM_FI_DEV_GPU_UTIL"),
            average("SM activity", "Share of multiprocessors that work; since Hopper without DCGM", "percentunit", "DCGM_FI_PROF_SM_ACTIVE"),
            average("Tensor activity", "Share of cycles in which tensor cores work", "percentunit", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"),
            Panel::new("Sent by EFA", PanelKind::TimeSeries, "Bps")
                .query("sum by (Hostname) (rate(node_amazonefa_tx_bytes{Hostname=~\"$Hostname\"}[$__rate_interval]))", "{{Hostname}}"),
        ],
    }
}
