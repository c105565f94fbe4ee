//! Environment variables that make training slow, fragile or wrong.

use crate::check::{Check, Stack, Verdict};

/// What is wrong with a variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Remark {
    name: String,
    value: String,
    verdict: Verdict,
    why: &'static str,
    fix: &'static str,
}

impl Remark {
    pub(crate) fn check(self, layer: Stack) -> Check {
        let rule = format!("environment/{}", self.name.to_lowercase().replace('_', "-"));
        let found = format!("{}={} is set", self.name, self.value);
        Check { verdict: self.verdict, ..Check::pass(&rule, layer, found) }
            .because(self.why)
            .fixed_by(self.fix)
    }
}

/// When a value does harm.
enum When {
    Set,
    Is(&'static [&'static str]),
    Below(u64),
    /// Any of the listed words occurs in it.
    Has(&'static [&'static str]),
}

impl When {
    fn applies(&self, value: &str) -> bool {
        let lower = value.trim().to_lowercase();
        match self {
            When::Set => !lower.is_empty(),
            When::Is(values) => values.contains(&lower.as_str()),
            When::Below(bound) => lower.parse::<u64>().is_ok_and(|value| value < *bound),
            When::Has(words) => words.iter().any(|word| lower.contains(word)),
        }
    }
}

struct Rule(&'static str, When, Verdict, &'static str, &'static str);

const YES: When = When::Is(&["1", "true", "yes", "on"]);
const NO: When = When::Is(&["0", "false", "no", "off"]);

use Verdict::{Fail, Warn};

const RULES: &[Rule] = &[
    Rule(
        "NCCL_P2P_DISABLE",
        YES,
        Fail,
        "GPUs of a node then exchange data through the host's memory instead of NVLink",
        "unset it",
    ),
    Rule(
        "NCCL_P2P_LEVEL",
        When::Is(&["loc", "0"]),
        Fail,
        "GPUs of a node then exchange data through the host's memory instead of NVLink",
        "unset it",
    ),
    Rule(
        "NCCL_SHM_DISABLE",
        YES,
        Warn,
        "ranks of a node that cannot use NVLink then talk by the network",
        "unset it",
    ),
    Rule("NCCL_IB_DISABLE", YES, Fail, "without a plugin for the network NCCL then uses sockets", "unset it"),
    Rule(
        "NCCL_NET",
        When::Is(&["socket"]),
        Fail,
        "it asks for TCP sockets between nodes",
        "unset it, or name the network of your plugin",
    ),
    Rule(
        "NCCL_NET_PLUGIN",
        When::Is(&["none"]),
        Warn,
        "it keeps NCCL from loading the network plugin",
        "unset it",
    ),
    Rule(
        "NCCL_NET_GDR_LEVEL",
        When::Is(&["loc", "0"]),
        Warn,
        "it turns GPUDirect RDMA off: all traffic between nodes is copied through the host",
        "unset it",
    ),
    Rule(
        "NCCL_DMABUF_ENABLE",
        NO,
        Warn,
        "it turns one of the two ways to GPUDirect RDMA off",
        "unset it, or load nvidia-peermem",
    ),
    Rule(
        "NCCL_NVLS_ENABLE",
        NO,
        Warn,
        "it turns NVLink SHARP off, which halves the traffic of all-reduce on NVSwitch systems",
        "unset it",
    ),
    Rule("NCCL_CUMEM_ENABLE", NO, Warn, "NVLink SHARP and user buffer registration need it", "unset it"),
    Rule(
        "NCCL_PXN_DISABLE",
        YES,
        Warn,
        "messages then cross rails of the network instead of NVLink",
        "unset it",
    ),
    Rule(
        "NCCL_ALGO",
        When::Set,
        Warn,
        "it pins one algorithm for all sizes; NCCL chooses by size and topology",
        "unset it outside of experiments",
    ),
    Rule(
        "NCCL_PROTO",
        When::Has(&["ll"]),
        Warn,
        "LL protocols need ordered 128-byte stores; on networks without them data may be corrupted",
        "unset it",
    ),
    Rule("NCCL_MAX_NCHANNELS", When::Below(8), Warn, "few channels cannot fill the links", "unset it"),
    Rule("NCCL_MAX_CTAS", When::Below(8), Warn, "few channels cannot fill the links", "unset it"),
    Rule(
        "NCCL_BUFFSIZE",
        When::Below(1 << 20),
        Warn,
        "small buffers keep the pipeline of a transfer from filling",
        "unset it",
    ),
    Rule(
        "NCCL_SOCKET_IFNAME",
        When::Is(&["lo", "=lo"]),
        Warn,
        "ranks on other nodes cannot be reached by the loopback interface",
        "name the interface that the nodes share, or unset it",
    ),
    Rule(
        "NCCL_DEBUG",
        When::Is(&["trace"]),
        Warn,
        "it logs every call, which slows them down",
        "use INFO, or unset it",
    ),
    Rule(
        "NCCL_LAUNCH_MODE",
        When::Set,
        Warn,
        "it overrides how kernels are launched and is meant for debugging",
        "unset it",
    ),
    Rule(
        "NCCL_IGNORE_DISABLED_P2P",
        YES,
        Warn,
        "it hides the warning that GPUs cannot reach each other",
        "unset it, and repair what it hides",
    ),
    Rule(
        "NCCL_CHECK_POINTERS",
        YES,
        Warn,
        "it checks every pointer of every call",
        "unset it outside of debugging",
    ),
    Rule(
        "NCCL_BLOCKING_WAIT",
        YES,
        Warn,
        "collectives then block the host, and nothing overlaps",
        "unset it",
    ),
    Rule(
        "TORCH_NCCL_BLOCKING_WAIT",
        YES,
        Warn,
        "collectives then block the host, and nothing overlaps",
        "unset it",
    ),
    Rule(
        "NCCL_ASYNC_ERROR_HANDLING",
        NO,
        Warn,
        "ranks of a failed collective then wait for ever",
        "unset it",
    ),
    Rule(
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        NO,
        Warn,
        "ranks of a failed collective then wait for ever",
        "unset it",
    ),
    Rule(
        "TORCH_DISTRIBUTED_DEBUG",
        When::Is(&["detail"]),
        Warn,
        "every collective is checked on all ranks first, by another collective",
        "use INFO, or unset it",
    ),
    Rule(
        "FI_PROVIDER",
        When::Has(&["tcp", "sockets", "udp"]),
        Fail,
        "libfabric then uses sockets instead of EFA",
        "unset it, or set it to efa",
    ),
    Rule("FI_EFA_USE_DEVICE_RDMA", NO, Fail, "it turns RDMA reads of GPU memory off", "unset it"),
    Rule(
        "FI_LOG_LEVEL",
        When::Is(&["debug", "trace"]),
        Warn,
        "libfabric logs every operation",
        "use warn, or unset it",
    ),
    Rule(
        "FI_EFA_FORK_SAFE",
        YES,
        Warn,
        "registering memory costs more; kernels since 5.13 need it no more",
        "unset it on a kernel since 5.13",
    ),
    Rule(
        "RDMAV_FORK_SAFE",
        YES,
        Warn,
        "registering memory costs more; kernels since 5.13 need it no more",
        "unset it on a kernel since 5.13",
    ),
    Rule(
        "OFI_NCCL_DISABLE_GDR_REQUIRED_CHECK",
        YES,
        Warn,
        "the plugin then runs without GPUDirect RDMA and does not say so",
        "unset it",
    ),
    Rule("UCX_TLS", When::Is(&["tcp"]), Warn, "UCX then uses sockets only", "unset it"),
    Rule(
        "CUDA_LAUNCH_BLOCKING",
        YES,
        Fail,
        "every kernel is waited for, so nothing overlaps",
        "unset it outside of debugging",
    ),
    Rule(
        "CUDA_VISIBLE_DEVICES",
        When::Is(&["-1", "none", "nodevfiles"]),
        Fail,
        "programs see no GPU",
        "unset it",
    ),
    Rule(
        "CUDA_CACHE_DISABLE",
        YES,
        Warn,
        "kernels compiled at run time are compiled again by every process",
        "unset it",
    ),
    Rule("CUDA_FORCE_PTX_JIT", YES, Warn, "all kernels are compiled again when a program starts", "unset it"),
    Rule(
        "CUDA_DISABLE_PTX_JIT",
        YES,
        Warn,
        "kernels built for an older GPU then fail instead of being compiled",
        "unset it",
    ),
    Rule(
        "CUDA_MODULE_LOADING",
        When::Is(&["eager"]),
        Warn,
        "all kernels are loaded at start: minutes of start time and memory on every GPU",
        "unset it",
    ),
    Rule("NVIDIA_TF32_OVERRIDE", NO, Warn, "fp32 products run without tensor cores", "unset it"),
    Rule(
        "PYTORCH_NO_CUDA_MEMORY_CACHING",
        YES,
        Fail,
        "every allocation waits for the GPU",
        "unset it outside of debugging",
    ),
];

/// What is wrong with a variable, if anything is.
pub(crate) fn remark(name: &str, value: &str) -> Option<Remark> {
    let rule = RULES.iter().find(|rule| rule.0 == name && rule.1.applies(value))?;
    let Rule(_, _, verdict, why, fix) = rule;
    Some(Remark { name: name.to_owned(), value: value.to_owned(), verdict: *verdict, why, fix })
}

/// The variable that was probably meant, for a name that NCCL does not read.
pub(crate) fn misspelled(name: &str) -> Option<&'static str> {
    let is_ours =
        !name.starts_with("NCCL_") || NCCL_VARIABLES.contains(&name) || READ_BY_OTHERS.contains(&name);
    if is_ours {
        return None;
    }
    bedplate_diag::nearest(name, NCCL_VARIABLES.iter().copied())
}

/// Variables of that prefix which PyTorch and launchers read.
const READ_BY_OTHERS: &[&str] = &[
    "NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_BLOCKING_WAIT",
    "NCCL_DESYNC_DEBUG",
    "NCCL_ENABLE_TIMING",
    "NCCL_ROOT",
    "NCCL_INCLUDE_DIR",
    "NCCL_LIB_DIR",
    "NCCL_VERSION",
    "NCCL_HOME",
    "NCCL_LIBRARY",
    "NCCL_TRACE_BUFFER_SIZE",
    "NCCL_HEARTBEAT_TIMEOUT_SEC",
    "NCCL_DUMP_ON_TIMEOUT",
];

/// What NCCL 2.18 to 2.28 reads, from its source.
const NCCL_VARIABLES: &[&str] = &[
    "NCCL_AGG_CHANNEL_SIZE",
    "NCCL_ALGO",
    "NCCL_ALLOC_P2P_NET_LL_BUFFERS",
    "NCCL_BUFFSIZE",
    "NCCL_CGA_CLUSTER_SIZE",
    "NCCL_CHECK_POINTERS",
    "NCCL_CHUNK_SIZE",
    "NCCL_COLLNET_ENABLE",
    "NCCL_COLLNET_NODE_THRESHOLD",
    "NCCL_COMM_BLOCKING",
    "NCCL_COMM_ID",
    "NCCL_COMM_SHRINK_SHARE_RESOURCES",
    "NCCL_COMM_SPLIT_SHARE_RESOURCES",
    "NCCL_CONF_FILE",
    "NCCL_CONNECT_ROUND_MAX_PEERS",
    "NCCL_CREATE_THREAD_CONTEXT",
    "NCCL_CROSS_NIC",
    "NCCL_CTA_POLICY",
    "NCCL_CUDA_PATH",
    "NCCL_CUMEM_ENABLE",
    "NCCL_CUMEM_HOST_ENABLE",
    "NCCL_DEBUG",
    "NCCL_DEBUG_FILE",
    "NCCL_DEBUG_SUBSYS",
    "NCCL_DEBUG_TIMESTAMP_FORMAT",
    "NCCL_DEBUG_TIMESTAMP_LEVELS",
    "NCCL_DMABUF_ENABLE",
    "NCCL_ENV_PLUGIN",
    "NCCL_GDRCOPY_ENABLE",
    "NCCL_GDRCOPY_FIFO_ENABLE",
    "NCCL_GDRCOPY_FLUSH_ENABLE",
    "NCCL_GDRCOPY_SYNC_ENABLE",
    "NCCL_GDR_FLUSH_DISABLE",
    "NCCL_GIN_COUNTER_POOL_SIZE",
    "NCCL_GIN_ENABLE",
    "NCCL_GIN_ERROR_QUERY_SEC",
    "NCCL_GIN_GDAKI_NIC_HANDLER",
    "NCCL_GIN_GDAKI_QP_DEPTH",
    "NCCL_GIN_NCONTEXTS",
    "NCCL_GIN_PROXY_QUEUE_SIZE",
    "NCCL_GIN_SIGNAL_POOL_SIZE",
    "NCCL_GIN_TYPE",
    "NCCL_GRAPH_DUMP_FILE",
    "NCCL_GRAPH_DUMP_FILE_RANK",
    "NCCL_GRAPH_FILE",
    "NCCL_GRAPH_HELPER_DISABLE",
    "NCCL_GRAPH_MIXING_SUPPORT",
    "NCCL_GRAPH_REGISTER",
    "NCCL_GROUP_CUDA_STREAM",
    "NCCL_HOSTID",
    "NCCL_IB_ADAPTIVE_ROUTING",
    "NCCL_IB_ADDR_FAMILY",
    "NCCL_IB_ADDR_RANGE",
    "NCCL_IB_AR_THRESHOLD",
    "NCCL_IB_DATA_DIRECT",
    "NCCL_IB_DISABLE",
    "NCCL_IB_ECE_ENABLE",
    "NCCL_IB_FIFO_TC",
    "NCCL_IB_GID_INDEX",
    "NCCL_IB_HCA",
    "NCCL_IB_MERGE_NICS",
    "NCCL_IB_MERGE_VFS",
    "NCCL_IB_MQP_RETRY_ALL",
    "NCCL_IB_MQP_RETRY_CNT",
    "NCCL_IB_MQP_RETRY_SLEEP_MSEC",
    "NCCL_IB_PCI_RELAXED_ORDERING",
    "NCCL_IB_PKEY",
    "NCCL_IB_QPS_PER_CONNECTION",
    "NCCL_IB_RETRY_CNT",
    "NCCL_IB_RETURN_ASYNC_EVENTS",
    "NCCL_IB_ROCE_VERSION_NUM",
    "NCCL_IB_ROUTABLE_FLID_GID_INDEX",
    "NCCL_IB_SL",
    "NCCL_IB_SPLIT_DATA_ON_QPS",
    "NCCL_IB_TC",
    "NCCL_IB_TIMEOUT",
    "NCCL_IB_USE_INLINE",
    "NCCL_IB_WARN_RAIL_LOCAL",
    "NCCL_IGNORE_CPU_AFFINITY",
    "NCCL_IGNORE_DISABLED_P2P",
    "NCCL_L1_SHARED_MEMORY_CARVEOUT",
    "NCCL_LAUNCH_MODE",
    "NCCL_LAUNCH_ORDER_IMPLICIT",
    "NCCL_LAUNCH_RACE_FATAL",
    "NCCL_LEGACY_CUDA_REGISTER",
    "NCCL_LL128_BUFFSIZE",
    "NCCL_LL128_C2C",
    "NCCL_LL128_NTHREADS",
    "NCCL_LL_BUFFSIZE",
    "NCCL_LOCAL_REGISTER",
    "NCCL_MAX_CTAS",
    "NCCL_MAX_NCHANNELS",
    "NCCL_MAX_NRINGS",
    "NCCL_MAX_P2P_NCHANNELS",
    "NCCL_MEM_SYNC_DOMAIN",
    "NCCL_MIN_CTAS",
    "NCCL_MIN_NCHANNELS",
    "NCCL_MIN_NRINGS",
    "NCCL_MIN_P2P_NCHANNELS",
    "NCCL_MNNVL_CLIQUE_ID",
    "NCCL_MNNVL_ENABLE",
    "NCCL_MNNVL_RAIL_PER_HOST",
    "NCCL_MNNVL_SCATTER_NETS_ENABLE",
    "NCCL_MNNVL_UUID",
    "NCCL_NCHANNELS_PER_NET_PEER",
    "NCCL_NET",
    "NCCL_NETDEVS_POLICY",
    "NCCL_NET_DISABLE_INTRA",
    "NCCL_NET_FORCE_FLUSH",
    "NCCL_NET_FORCE_MERGE",
    "NCCL_NET_GDR_C2C",
    "NCCL_NET_GDR_LEVEL",
    "NCCL_NET_GDR_READ",
    "NCCL_NET_MERGE_LEVEL",
    "NCCL_NET_OPTIONAL_RECV_COMPLETION",
    "NCCL_NET_OVERHEAD",
    "NCCL_NET_PLUGIN",
    "NCCL_NET_PLUGIN_REF_COUNT",
    "NCCL_NET_SHARED_BUFFERS",
    "NCCL_NET_SHARED_COMMS",
    "NCCL_NSOCKS_PERTHREAD",
    "NCCL_NTHREADS",
    "NCCL_NVB_DISABLE",
    "NCCL_NVB_PRECONNECT",
    "NCCL_NVLINK_UTIL_CENTRIC_SCHED_ENABLE",
    "NCCL_NVLSTREE_MAX_CHUNKSIZE",
    "NCCL_NVLS_CHUNKSIZE",
    "NCCL_NVLS_ENABLE",
    "NCCL_NVLS_NCHANNELS",
    "NCCL_NVTX_DISABLE",
    "NCCL_OOB_NET_ENABLE",
    "NCCL_OOB_NET_IFNAME",
    "NCCL_P2P_DIRECT_DISABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_P2P_LEVEL",
    "NCCL_P2P_LL_THRESHOLD",
    "NCCL_P2P_NET_CHUNKSIZE",
    "NCCL_P2P_NVL_CHUNKSIZE",
    "NCCL_P2P_PCI_CHUNKSIZE",
    "NCCL_P2P_PXN_LEVEL",
    "NCCL_P2P_READ_ENABLE",
    "NCCL_P2P_SCHEDULE_GROUP_SIZE",
    "NCCL_P2P_USE_CUDA_MEMCPY",
    "NCCL_PAT_ENABLE",
    "NCCL_PROFILER_PLUGIN",
    "NCCL_PROGRESS_APPENDOP_FREQ",
    "NCCL_PROTO",
    "NCCL_PROXY_APPEND_BATCH_SIZE",
    "NCCL_PROXY_CPUSET",
    "NCCL_PROXY_DUMP_SIGNAL",
    "NCCL_PROXY_PROFILE",
    "NCCL_PXN_C2C",
    "NCCL_PXN_DISABLE",
    "NCCL_RAS_ADDR",
    "NCCL_RAS_ENABLE",
    "NCCL_RAS_TIMEOUT_FACTOR",
    "NCCL_REPORT_CONNECT_PROGRESS",
    "NCCL_RUNTIME_CONNECT",
    "NCCL_SET_CPU_STACK_SIZE",
    "NCCL_SET_STACK_SIZE",
    "NCCL_SET_THREAD_NAME",
    "NCCL_SHM_DISABLE",
    "NCCL_SHM_LOCALITY",
    "NCCL_SHM_MEMCPY_MODE",
    "NCCL_SHM_USE_CUDA_MEMCPY",
    "NCCL_SINGLE_PROC_MEM_REG_ENABLE",
    "NCCL_SOCKET_FAMILY",
    "NCCL_SOCKET_IFNAME",
    "NCCL_SOCKET_INLINE",
    "NCCL_SOCKET_MIN_TASKSIZE",
    "NCCL_SOCKET_NTHREADS",
    "NCCL_SOCKET_RCVBUF",
    "NCCL_SOCKET_RETRY_CNT",
    "NCCL_SOCKET_RETRY_SLEEP_MSEC",
    "NCCL_SOCKET_SNDBUF",
    "NCCL_SYM_CTAS",
    "NCCL_SYM_KERNEL",
    "NCCL_THREAD_THRESHOLDS",
    "NCCL_TOPO_DUMP_FILE",
    "NCCL_TOPO_DUMP_FILE_RANK",
    "NCCL_TOPO_FILE",
    "NCCL_TUNER_PLUGIN",
    "NCCL_UID_STAGGER_RATE",
    "NCCL_UID_STAGGER_THRESHOLD",
    "NCCL_UNPACK_DOUBLE_NCHANNELS",
    "NCCL_USE_CMAKE",
    "NCCL_WARN_ENABLE_DEBUG_INFO",
    "NCCL_WIN_ENABLE",
    "NCCL_WIN_STRIDE",
    "NCCL_WORK_ARGS_BYTES",
    "NCCL_WORK_FIFO_BYTES",
    "NCCL_WORK_FIFO_DEPTH",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_does_harm_by_its_value() {
        for (name, value, verdict) in [
            ("NCCL_P2P_DISABLE", "1", Some(Fail)),
            ("NCCL_P2P_DISABLE", "0", None),
            ("NCCL_NET", "Socket", Some(Fail)),
            ("NCCL_NET", "AWS Libfabric", None),
            ("FI_PROVIDER", "tcp;ofi_rxm", Some(Fail)),
            ("FI_PROVIDER", "efa", None),
            ("NCCL_MAX_NCHANNELS", "2", Some(Warn)),
            ("NCCL_MAX_NCHANNELS", "32", None),
            ("NCCL_ALGO", "Ring", Some(Warn)),
            ("CUDA_LAUNCH_BLOCKING", "1", Some(Fail)),
            ("HOME", "/root", None),
        ] {
            assert_eq!(remark(name, value).map(|remark| remark.verdict), verdict, "{name}={value}");
        }
    }

    #[test]
    fn a_misspelled_name_is_named() {
        assert_eq!(misspelled("NCCL_P2P_DISABLED"), Some("NCCL_P2P_DISABLE"));
        assert_eq!(misspelled("NCCL_SOCKET_IFNAMES"), Some("NCCL_SOCKET_IFNAME"));
        assert_eq!(misspelled("NCCL_DEBUG"), None);
        assert_eq!(misspelled("NCCL_BLOCKING_WAIT"), None);
        assert_eq!(misspelled("PATH"), None);
    }
}
