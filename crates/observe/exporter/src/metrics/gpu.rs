//! Metrics of GPUs, under the names and in the units of dcgm-exporter.

use super::{NODE_LABELS, table};

/// What every series of a GPU carries. `Hostname` may be spelled otherwise, job and rank are there while a job has the GPU.
pub const LABELS: &[&str] =
    &["gpu", "UUID", "pci_bus_id", "device", "modelName", "Hostname", "hpc_job", "rank"];

/// With the code that was seen.
const XID_LABELS: &[&str] =
    &["gpu", "UUID", "pci_bus_id", "device", "modelName", "Hostname", "hpc_job", "rank", "xid"];

/// The driver is the same for all GPUs; it is a label with the value 1, as dcgm-exporter has it.
const VERSION_LABELS: &[&str] = &[
    "gpu",
    "UUID",
    "pci_bus_id",
    "device",
    "modelName",
    "Hostname",
    "hpc_job",
    "rank",
    "DCGM_FI_DRIVER_VERSION",
];

table! { GPU:
    SM_CLOCK "DCGM_FI_DEV_SM_CLOCK" Gauge LABELS
        "SM clock frequency (in MHz)."
    MEM_CLOCK "DCGM_FI_DEV_MEM_CLOCK" Gauge LABELS
        "Memory clock frequency (in MHz)."
    MEMORY_TEMP "DCGM_FI_DEV_MEMORY_TEMP" Gauge LABELS
        "Memory temperature (in C)."
    GPU_TEMP "DCGM_FI_DEV_GPU_TEMP" Gauge LABELS
        "GPU temperature (in C)."
    POWER_USAGE "DCGM_FI_DEV_POWER_USAGE" Gauge LABELS
        "Power draw (in W)."
    TOTAL_ENERGY_CONSUMPTION "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION" Counter LABELS
        "Total energy consumption since boot (in mJ)."
    PROF_PCIE_TX_BYTES "DCGM_FI_PROF_PCIE_TX_BYTES" Gauge LABELS
        "The rate of data transmitted over the PCIe bus - including both protocol headers and data payloads - in bytes per second."
    PROF_PCIE_RX_BYTES "DCGM_FI_PROF_PCIE_RX_BYTES" Gauge LABELS
        "The rate of data received over the PCIe bus - including both protocol headers and data payloads - in bytes per second."
    PCIE_REPLAY_COUNTER "DCGM_FI_DEV_PCIE_REPLAY_COUNTER" Counter LABELS
        "Total number of PCIe retries."
    GPU_UTIL "DCGM_FI_DEV_GPU_UTIL" Gauge LABELS
        "GPU utilization (in %)."
    MEM_COPY_UTIL "DCGM_FI_DEV_MEM_COPY_UTIL" Gauge LABELS
        "Memory utilization (in %)."
    ENC_UTIL "DCGM_FI_DEV_ENC_UTIL" Gauge LABELS
        "Encoder utilization (in %)."
    DEC_UTIL "DCGM_FI_DEV_DEC_UTIL" Gauge LABELS
        "Decoder utilization (in %)."
    XID_ERRORS "DCGM_FI_DEV_XID_ERRORS" Gauge LABELS
        "Value of the last XID error encountered."
    POWER_VIOLATION "DCGM_FI_DEV_POWER_VIOLATION" Counter LABELS
        "Throttling duration due to power constraints (in ns)."
    THERMAL_VIOLATION "DCGM_FI_DEV_THERMAL_VIOLATION" Counter LABELS
        "Throttling duration due to thermal constraints (in ns)."
    SYNC_BOOST_VIOLATION "DCGM_FI_DEV_SYNC_BOOST_VIOLATION" Counter LABELS
        "Throttling duration due to sync-boost constraints (in ns)."
    BOARD_LIMIT_VIOLATION "DCGM_FI_DEV_BOARD_LIMIT_VIOLATION" Counter LABELS
        "Throttling duration due to board limit constraints (in ns)."
    LOW_UTIL_VIOLATION "DCGM_FI_DEV_LOW_UTIL_VIOLATION" Counter LABELS
        "Throttling duration due to low utilization (in ns)."
    RELIABILITY_VIOLATION "DCGM_FI_DEV_RELIABILITY_VIOLATION" Counter LABELS
        "Throttling duration due to reliability constraints (in ns)."
    FB_FREE "DCGM_FI_DEV_FB_FREE" Gauge LABELS
        "Framebuffer memory free (in MiB)."
    FB_USED "DCGM_FI_DEV_FB_USED" Gauge LABELS
        "Framebuffer memory used (in MiB)."
    FB_RESERVED "DCGM_FI_DEV_FB_RESERVED" Gauge LABELS
        "Framebuffer memory reserved (in MiB)."
    ECC_SBE_VOL_TOTAL "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL" Counter LABELS
        "Total number of single-bit volatile ECC errors."
    ECC_DBE_VOL_TOTAL "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL" Counter LABELS
        "Total number of double-bit volatile ECC errors."
    ECC_SBE_AGG_TOTAL "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL" Counter LABELS
        "Total number of single-bit persistent ECC errors."
    ECC_DBE_AGG_TOTAL "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL" Counter LABELS
        "Total number of double-bit persistent ECC errors."
    RETIRED_SBE "DCGM_FI_DEV_RETIRED_SBE" Counter LABELS
        "Total number of retired pages due to single-bit errors."
    RETIRED_DBE "DCGM_FI_DEV_RETIRED_DBE" Counter LABELS
        "Total number of retired pages due to double-bit errors."
    RETIRED_PENDING "DCGM_FI_DEV_RETIRED_PENDING" Counter LABELS
        "Total number of pages pending retirement."
    NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL" Counter LABELS
        "Total number of NVLink flow-control CRC errors."
    NVLINK_CRC_DATA_ERROR_COUNT_TOTAL "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL" Counter LABELS
        "Total number of NVLink data CRC errors."
    NVLINK_REPLAY_ERROR_COUNT_TOTAL "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL" Counter LABELS
        "Total number of NVLink retries."
    NVLINK_RECOVERY_ERROR_COUNT_TOTAL "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL" Counter LABELS
        "Total number of NVLink recovery errors."
    NVLINK_BANDWIDTH_TOTAL "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL" Counter LABELS
        "Total number of NVLink bandwidth counters for all lanes."
    UNCORRECTABLE_REMAPPED_ROWS "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS" Counter LABELS
        "Number of remapped rows for uncorrectable errors"
    CORRECTABLE_REMAPPED_ROWS "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS" Counter LABELS
        "Number of remapped rows for correctable errors"
    ROW_REMAP_FAILURE "DCGM_FI_DEV_ROW_REMAP_FAILURE" Gauge LABELS
        "Whether remapping of rows has failed"
    PROF_GR_ENGINE_ACTIVE "DCGM_FI_PROF_GR_ENGINE_ACTIVE" Gauge LABELS
        "Ratio of time the graphics engine is active."
    PROF_SM_ACTIVE "DCGM_FI_PROF_SM_ACTIVE" Gauge LABELS
        "The ratio of cycles an SM has at least 1 warp assigned."
    PROF_SM_OCCUPANCY "DCGM_FI_PROF_SM_OCCUPANCY" Gauge LABELS
        "The ratio of number of warps resident on an SM."
    PROF_PIPE_TENSOR_ACTIVE "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE" Gauge LABELS
        "Ratio of cycles the tensor (HMMA) pipe is active."
    PROF_DRAM_ACTIVE "DCGM_FI_PROF_DRAM_ACTIVE" Gauge LABELS
        "Ratio of cycles the device memory interface is active sending or receiving data."
    PROF_PIPE_FP64_ACTIVE "DCGM_FI_PROF_PIPE_FP64_ACTIVE" Gauge LABELS
        "Ratio of cycles the fp64 pipes are active."
    PROF_PIPE_FP32_ACTIVE "DCGM_FI_PROF_PIPE_FP32_ACTIVE" Gauge LABELS
        "Ratio of cycles the fp32 pipes are active."
    PROF_PIPE_FP16_ACTIVE "DCGM_FI_PROF_PIPE_FP16_ACTIVE" Gauge LABELS
        "Ratio of cycles the fp16 pipes are active."
    ROW_REMAP_PENDING "DCGM_FI_DEV_ROW_REMAP_PENDING" Gauge LABELS
        "Whether rows wait to be remapped at the next reset."
    POWER_MGMT_LIMIT "DCGM_FI_DEV_POWER_MGMT_LIMIT" Gauge LABELS
        "Power limit (in W)."
    CLOCK_THROTTLE_REASONS "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS" Gauge LABELS
        "Why clocks are held down, as the bits of NVML."
    PCIE_LINK_GEN "DCGM_FI_DEV_PCIE_LINK_GEN" Gauge LABELS
        "PCIe generation of the link now."
    PCIE_LINK_WIDTH "DCGM_FI_DEV_PCIE_LINK_WIDTH" Gauge LABELS
        "PCIe lanes of the link now."
    PCIE_MAX_LINK_GEN "DCGM_FI_DEV_PCIE_MAX_LINK_GEN" Gauge LABELS
        "PCIe generation that GPU and slot allow."
    PCIE_MAX_LINK_WIDTH "DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH" Gauge LABELS
        "PCIe lanes that GPU and slot allow."
    NVLINKS_UP "bedplate_gpu_nvlinks_up" Gauge LABELS
        "NVLinks that are up."
    XID_ERRORS_COUNT "DCGM_EXP_XID_ERRORS_COUNT" Counter XID_LABELS
        "XID errors of this code since the exporter started."
    DRIVER_VERSION "DCGM_FI_DRIVER_VERSION" Gauge VERSION_LABELS
        "Driver version, as a label."
    GPU_LOST "bedplate_gpu_lost" Gauge LABELS
        "Whether a GPU that was there does not answer any more."
    GPU_RECOVERY_ACTION "bedplate_gpu_recovery_action" Gauge LABELS
        "What the driver asks for: 0 nothing, 1 reset the GPU, 2 reboot the node, 3 drain P2P, 4 drain and reset."
    GPUS_MISSING "bedplate_gpus_missing" Gauge NODE_LABELS
        "NVIDIA GPUs on the PCI bus that NVML does not list."
    GPUS_ANSWERING "bedplate_gpus_answering" Gauge NODE_LABELS
        "GPUs that answer."
}
