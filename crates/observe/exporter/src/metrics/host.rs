//! Metrics of the host under the names of node_exporter, and of AWS Neuron under those of neuron-monitor-prometheus.

use super::{NODE_LABELS, table};

const CORE_LABELS: &[&str] = &["neuroncore", "runtime_tag", "Hostname"];
const RUNTIME_LABELS: &[&str] = &["runtime_tag", "Hostname"];
const STATUS_LABELS: &[&str] = &["runtime_tag", "status_type", "Hostname"];
const ERROR_LABELS: &[&str] = &["runtime_tag", "error_type", "Hostname"];
const PERCENTILE_LABELS: &[&str] = &["runtime_tag", "percentile", "Hostname"];
const LOCATION_LABELS: &[&str] = &["runtime_tag", "memory_location", "Hostname"];
const ECC_LABELS: &[&str] = &["neuron_device_index", "event_type", "Hostname"];

table! { HOST:
    PRESSURE_CPU_WAITING "node_pressure_cpu_waiting_seconds_total" Counter NODE_LABELS
        "Time in which something waited for a processor."
    PRESSURE_IO_WAITING "node_pressure_io_waiting_seconds_total" Counter NODE_LABELS
        "Time in which something waited for input or output."
    PRESSURE_IO_STALLED "node_pressure_io_stalled_seconds_total" Counter NODE_LABELS
        "Time in which everything waited for input or output."
    PRESSURE_MEMORY_WAITING "node_pressure_memory_waiting_seconds_total" Counter NODE_LABELS
        "Time in which something waited for memory."
    PRESSURE_MEMORY_STALLED "node_pressure_memory_stalled_seconds_total" Counter NODE_LABELS
        "Time in which everything waited for memory."
    LOAD1 "node_load1" Gauge NODE_LABELS
        "Load average of a minute."
    CPU_BUSY_SECONDS "bedplate_cpu_busy_seconds_total" Counter NODE_LABELS
        "Time of all processors that was used."
    CPU_IOWAIT_SECONDS "bedplate_cpu_iowait_seconds_total" Counter NODE_LABELS
        "Time of all processors that were idle while something waited for a disk."
    MEMORY_TOTAL "node_memory_MemTotal_bytes" Gauge NODE_LABELS
        "Memory of the host."
    MEMORY_AVAILABLE "node_memory_MemAvailable_bytes" Gauge NODE_LABELS
        "Memory that could be used without swapping."
    MEMORY_DIRTY "node_memory_Dirty_bytes" Gauge NODE_LABELS
        "Memory that waits to be written to disk."
    MEMORY_HARDWARE_CORRUPTED "node_memory_HardwareCorrupted_bytes" Gauge NODE_LABELS
        "Memory that the kernel took out of use because it is broken."
    EDAC_UNCORRECTED "node_edac_uncorrectable_errors_total" Counter NODE_LABELS
        "Memory errors of the host that could not be corrected."
    EDAC_CORRECTED "node_edac_correctable_errors_total" Counter NODE_LABELS
        "Memory errors of the host that were corrected."
    OOM_KILLS "node_vmstat_oom_kill" Counter NODE_LABELS
        "Processes that the kernel killed for want of memory."
    BLOCKED_PROCESSES "node_procs_blocked" Gauge NODE_LABELS
        "Processes that wait for input or output and cannot be interrupted."
    NEURON_UTILIZATION "neuroncore_utilization_ratio" Gauge CORE_LABELS
        "Part of the time in which a NeuronCore computed."
    NEURON_MEMORY "neuron_runtime_memory_used_bytes" Gauge LOCATION_LABELS
        "Memory that a Neuron runtime uses."
    NEURON_STATUS "execution_status_total" Counter STATUS_LABELS
        "Executions by how they ended."
    NEURON_ERRORS "execution_errors_total" Counter ERROR_LABELS
        "Executions that failed, by kind of error."
    NEURON_LATENCY "execution_latency_seconds" Gauge PERCENTILE_LABELS
        "Latency of an execution."
    NEURON_RUNTIME_ERROR "bedplate_neuron_runtime_failing" Gauge RUNTIME_LABELS
        "Whether neuron-monitor could not read a runtime."
    NEURON_ECC "hardware_ecc_events_total" Counter ECC_LABELS
        "Memory errors of a Neuron device by kind."
}
