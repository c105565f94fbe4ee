//! One host at a time, GPU by GPU: what dashboard 21646 shows, and the host's network and processors.

use super::hosts;
use crate::grafana::{Dashboard, Panel, PanelKind, Row, Variable};

pub(super) fn dashboard() -> Dashboard {
    let gpus = Variable {
        name: "gpu",
        label: "GPU",
        query: "label_values(DCGM_FI_DEV_GPU_TEMP{Hostname=~\"$Hostname\"}, gpu)".to_owned(),
    };
    Dashboard {
        uid: "bedplate-gpu-host",
        title: "GPU Health - Filter by host",
        description: "The GPUs of chosen hosts, one by one, and what surrounds them",
        variables: vec![hosts(), gpus],
        rows: vec![health(), activity(), links(), host()],
    }
}

fn of_gpu(metric: &str) -> String {
    format!("{metric}{{Hostname=~\"$Hostname\",gpu=~\"$gpu\"}}")
}

fn graph(title: &'static str, unit: &'static str, metric: &str) -> Panel {
    Panel::new(title, PanelKind::TimeSeries, unit).query(of_gpu(metric), "{{Hostname}} gpu {{gpu}}")
}

fn rate(title: &'static str, unit: &'static str, metric: &str) -> Panel {
    let expression = format!("rate({}[$__rate_interval])", of_gpu(metric));
    Panel::new(title, PanelKind::TimeSeries, unit).query(expression, "{{Hostname}} gpu {{gpu}}")
}

fn stat(title: &'static str, metric: &str) -> Panel {
    Panel::new(title, PanelKind::Stat, "short").query(of_gpu(metric), "gpu {{gpu}}").limits(1.0, 8.0)
}

fn health() -> Row {
    Row {
        title: "Health",
        panels: vec![
            stat("XID", "DCGM_FI_DEV_XID_ERRORS"),
            stat("Row remap failure", "DCGM_FI_DEV_ROW_REMAP_FAILURE"),
            stat("Uncorrectable remapped rows", "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS"),
            stat("Correctable remapped rows", "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS"),
            Panel::new("GPUs that answer", PanelKind::Stat, "short")
                .query("bedplate_gpus_answering{Hostname=~\"$Hostname\"}", "{{Hostname}}"),
            stat("Row remap pending", "DCGM_FI_DEV_ROW_REMAP_PENDING"),
            stat("Double-bit ECC errors", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"),
            stat("Single-bit ECC errors", "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL"),
        ],
    }
}

fn activity() -> Row {
    Row {
        title: "Activity",
        panels: vec![
            graph("GPU utilisation", "percent", "DCGM_FI_DEV_GPU_UTIL"),
            graph("SM activity", "percentunit", "DCGM_FI_PROF_SM_ACTIVE"),
            graph("SM occupancy", "percentunit", "DCGM_FI_PROF_SM_OCCUPANCY"),
            graph("Tensor activity", "percentunit", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"),
            graph("Memory activity", "percentunit", "DCGM_FI_PROF_DRAM_ACTIVE"),
            graph("Memory used", "mbytes", "DCGM_FI_DEV_FB_USED"),
            graph("SM clock", "rotmhz", "DCGM_FI_DEV_SM_CLOCK").says("In MHz"),
            graph("Power", "watt", "DCGM_FI_DEV_POWER_USAGE"),
            graph("Temperature", "celsius", "DCGM_FI_DEV_GPU_TEMP").limits(80.0, 87.0),
            graph("Memory temperature", "celsius", "DCGM_FI_DEV_MEMORY_TEMP").limits(85.0, 95.0),
        ],
    }
}

fn links() -> Row {
    let efa = |title, unit, metric: &str| {
        let expression = format!("rate({metric}{{Hostname=~\"$Hostname\"}}[$__rate_interval])");
        Panel::new(title, PanelKind::TimeSeries, unit).query(expression, "{{Hostname}} {{device}}")
    };
    Row {
        title: "Links",
        panels: vec![
            rate("NVLink traffic", "Bps", "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"),
            rate("NVLink replays", "cps", "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL"),
            graph("PCIe sent", "Bps", "DCGM_FI_PROF_PCIE_TX_BYTES"),
            rate("PCIe replays", "cps", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER"),
            efa("EFA sent", "Bps", "node_amazonefa_tx_bytes"),
            efa("EFA received", "Bps", "node_amazonefa_rx_bytes"),
            efa("EFA retransmitted", "Bps", "node_amazonefa_retrans_bytes"),
            efa("EFA timeouts", "cps", "node_amazonefa_retrans_timeout_events"),
            efa("InfiniBand sent", "Bps", "node_infiniband_port_data_transmitted_bytes_total"),
            efa("InfiniBand symbol errors", "cps", "node_infiniband_symbol_error_total"),
        ],
    }
}

fn host() -> Row {
    let of_host = |title, unit, expression: &str| {
        Panel::new(title, PanelKind::TimeSeries, unit).query(expression, "{{Hostname}}")
    };
    Row {
        title: "Host",
        panels: vec![
            of_host(
                "Cores in use",
                "short",
                "rate(bedplate_cpu_busy_seconds_total{Hostname=~\"$Hostname\"}[$__rate_interval])",
            ),
            of_host(
                "Waiting for a core",
                "percentunit",
                "rate(node_pressure_cpu_waiting_seconds_total{Hostname=~\"$Hostname\"}[$__rate_interval])",
            ),
            of_host(
                "Memory in use",
                "bytes",
                "node_memory_MemTotal_bytes{Hostname=~\"$Hostname\"} - node_memory_MemAvailable_bytes{Hostname=~\"$Hostname\"}",
            ),
            of_host(
                "Waiting for storage",
                "percentunit",
                "rate(node_pressure_io_waiting_seconds_total{Hostname=~\"$Hostname\"}[$__rate_interval])",
            ),
        ],
    }
}
