//! Environment variables that make training slow, fragile or wrong.

use crate::check::{Check, CheckVerdict, Stack};

/// What is wrong with a variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VariableFlaw {
    name: String,
    value: String,
    verdict: CheckVerdict,
    why: &'static str,
    fix: &'static str,
}

impl VariableFlaw {
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

struct Rule(&'static str, When, CheckVerdict, &'static str, &'static str);

const YES: When = When::Is(&["1", "true", "yes", "on"]);
const NO: When = When::Is(&["0", "false", "no", "off"]);

use CheckVerdict::{Fail, Warn};

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
pub(crate) fn remark(name: &str, value: &str) -> Option<VariableFlaw> {
    let rule = RULES.iter().find(|rule| rule.0 == name && rule.1.applies(value))?;
    let Rule(_, _, verdict, why, fix) = rule;
    Some(VariableFlaw { name: name.to_owned(), value: value.to_owned(), verdict: *verdict, why, fix })
}

/// The variable that was probably meant, for a name that NCCL does not read.
pub(crate) fn misspelled(name: &str) -> Option<&'static str> {
    let is_read = NCCL_VARIABLES.lines().any(|known| known == name) || READ_BY_OTHERS.contains(&name);
    if !name.starts_with("NCCL_") || is_read {
        return None;
    }
    bedplate_diag::nearest(name, NCCL_VARIABLES.lines())
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

/// What NCCL 2.18 to 2.28 reads, from its source; a name a line.
const NCCL_VARIABLES: &str = include_str!("nccl-variables.txt");

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
