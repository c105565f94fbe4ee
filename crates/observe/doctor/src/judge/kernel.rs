//! Kernel modules and limits of the operating system.

use super::Expected;
use crate::check::{Check, Stack};
use crate::facts::{NodeFacts, SystemLimit};

pub(super) fn judge(facts: &NodeFacts, expected: &Expected<'_>) -> Vec<Check> {
    let mut checks = Vec::new();
    checks.extend(nvidia(facts));
    checks.extend(gpu_direct(facts, expected));
    checks.extend(gdrcopy(facts));
    checks.extend(storage(facts));
    checks.extend(locked_memory(facts, expected));
    checks.extend(open_files(facts));
    checks.extend(processes(facts));
    checks.extend(huge_pages(facts));
    checks.extend(shared_memory(facts));
    checks.extend(processor(facts));
    checks
}

fn pass(rule: &str, found: impl Into<String>) -> Check {
    Check::pass(rule, Stack::Kernel, found)
}

fn warn(rule: &str, found: impl Into<String>) -> Check {
    Check::warn(rule, Stack::Kernel, found)
}

fn fail(rule: &str, found: impl Into<String>) -> Check {
    Check::fail(rule, Stack::Kernel, found)
}

fn nvidia(facts: &NodeFacts) -> Option<Check> {
    if !facts.has_gpus() {
        return None;
    }
    if !facts.has_module("nvidia") && facts.driver.is_none() {
        return Some(
            fail("driver/nvidia", "there are GPUs and the module nvidia is not loaded")
                .because("no program can use the GPUs")
                .fixed_by("install the driver for this kernel, then `modprobe nvidia`; after a kernel update rebuild it (`dkms autoinstall`)"),
        );
    }
    let told = facts.driver.as_ref().map_or_else(
        || "loaded".to_owned(),
        |driver| format!("{}{}", driver.version, if driver.is_open { ", open modules" } else { "" }),
    );
    Some(pass("driver/nvidia", format!("driver {told}")))
}

/// Cards read GPU memory through nvidia-peermem, EFA's own module, or DMA-BUF of the open modules.
fn gpu_direct(facts: &NodeFacts, expected: &Expected<'_>) -> Option<Check> {
    if !facts.has_gpus() || !facts.has_rdma() {
        return None;
    }
    let modules = ["nvidia_peermem", "nv_peer_mem", "efa_nv_peermem"];
    if let Some(module) = modules.iter().find(|name| facts.has_module(name)) {
        return Some(pass("driver/gpu-direct-rdma", format!("{module} is loaded")));
    }
    let has_dma_buf =
        facts.driver.as_ref().is_some_and(|driver| driver.is_open && driver.version.is_at_least(&[515]))
            && facts.kernel.as_ref().is_none_or(|kernel| kernel.is_at_least(&[5, 12]));
    if has_dma_buf || (expected.is_efa() && facts.has_module("efa")) {
        return Some(pass("driver/gpu-direct-rdma", "by DMA-BUF, or by the driver efa itself"));
    }
    Some(
        fail("driver/gpu-direct-rdma", "neither nvidia-peermem nor DMA-BUF is there")
            .because("every byte between nodes is copied through the host's memory")
            .costing(expected.price.as_ref().and_then(|price| price.without_gpu_direct()))
            .fixed_by("`modprobe nvidia-peermem`, or install the driver's open kernel modules"),
    )
}

fn gdrcopy(facts: &NodeFacts) -> Option<Check> {
    if !facts.has_gpus() || !facts.has_rdma() {
        return None;
    }
    if facts.has_module("gdrdrv") {
        return Some(pass("driver/gdrcopy", "gdrdrv is loaded"));
    }
    Some(
        warn("driver/gdrcopy", "gdrdrv is not loaded")
            .because("small messages and flushes take a detour; latency grows by some microseconds")
            .fixed_by("install gdrcopy and `modprobe gdrdrv`"),
    )
}

fn storage(facts: &NodeFacts) -> Vec<Check> {
    let mut checks = Vec::new();
    for mount in &facts.mounts {
        let rule = "storage/lustre";
        checks.push(if mount.is_mounted {
            pass(rule, format!("{} is mounted", mount.path))
        } else {
            fail(rule, format!("{} is in /etc/fstab and not mounted", mount.path))
                .because("jobs read and write another file system in its place, or nothing")
                .fixed_by(format!(
                    "`modprobe lustre && mount {}`; the client must fit the kernel",
                    mount.path
                ))
        });
    }
    if facts.has_module("nvidia_fs") {
        checks.push(pass("driver/nvidia-fs", "nvidia-fs is loaded: storage can write to GPU memory"));
    }
    checks
}

/// RDMA pins memory: a buffer that cannot be locked cannot be registered.
fn locked_memory(facts: &NodeFacts, expected: &Expected<'_>) -> Option<Check> {
    const RULE: &str = "limit/locked-memory";
    match facts.limits.locked_memory? {
        SystemLimit::Unlimited => Some(pass(RULE, "locked memory is unlimited")),
        SystemLimit::At(bytes) if !facts.has_rdma() && expected.instance.is_none() => {
            Some(pass(RULE, format!("locked memory is limited to {}; no RDMA here", mib(bytes))))
        }
        SystemLimit::At(bytes) => Some(
            fail(RULE, format!("locked memory is limited to {}", mib(bytes)))
                .because("RDMA cannot register its buffers; NCCL fails with `ibv_reg_mr failed: Cannot allocate memory` or falls back")
                .costing(expected.price.as_ref().and_then(|price| price.without_rdma()))
                .fixed_by("`* - memlock unlimited` in /etc/security/limits.d, LimitMEMLOCK=infinity for slurmd and containerd, `--ulimit memlock=-1` for docker"),
        ),
    }
}

fn mib(bytes: u64) -> String {
    if bytes < 1 << 20 { format!("{} KiB", bytes >> 10) } else { format!("{} MiB", bytes >> 20) }
}

fn open_files(facts: &NodeFacts) -> Option<Check> {
    const ENOUGH: u64 = 65_536;
    match facts.limits.open_files? {
        SystemLimit::At(count) if count < ENOUGH => Some(
            warn("limit/open-files", format!("a process may open {count} files"))
                .because("a rank holds sockets to all others and files of its data; large jobs end with `Too many open files`")
                .fixed_by("`* - nofile 1048576` in /etc/security/limits.d, LimitNOFILE for the service that starts jobs"),
        ),
        SystemLimit::At(count) => Some(pass("limit/open-files", format!("a process may open {count} files"))),
        SystemLimit::Unlimited => Some(pass("limit/open-files", "open files are unlimited")),
    }
}

fn processes(facts: &NodeFacts) -> Option<Check> {
    const ENOUGH: u64 = 16_384;
    match facts.limits.processes? {
        SystemLimit::At(count) if count < ENOUGH && facts.has_gpus() => Some(
            warn("limit/processes", format!("a user may have {count} processes and threads"))
                .because("eight ranks with their loaders and NCCL's threads use thousands")
                .fixed_by("`* - nproc unlimited` in /etc/security/limits.d"),
        ),
        _ => None,
    }
}

/// libfabric's EFA provider takes its buffers from huge pages.
fn huge_pages(facts: &NodeFacts) -> Option<Check> {
    let count = facts.limits.huge_pages?;
    if facts.pci.efa_cards == 0 && !facts.has_module("efa") {
        return None;
    }
    if count > 0 {
        return Some(pass("limit/huge-pages", format!("{count} huge pages are set aside")));
    }
    Some(
        warn("limit/huge-pages", "no huge pages are set aside")
            .because("EFA's buffers then use small pages: more misses, and fork may need twice the memory")
            .fixed_by("vm.nr_hugepages=5128 in /etc/sysctl.d, as the EFA installer sets it"),
    )
}

fn shared_memory(facts: &NodeFacts) -> Option<Check> {
    const RULE: &str = "limit/shared-memory";
    let bytes = facts.limits.shared_memory_bytes?;
    let gpus = facts.gpus.len().max(1) as u64;
    if bytes >= gpus << 30 {
        return Some(pass(RULE, format!("/dev/shm has {}", mib(bytes))));
    }
    let check = if bytes <= 64 << 20 { fail } else { warn };
    Some(
        check(RULE, format!("/dev/shm has {}", mib(bytes)))
            .because("NCCL and data loaders exchange data there; they end with `Bus error` or `No space left on device`")
            .fixed_by("`--shm-size=16g` or `--ipc=host` for docker, an emptyDir of medium Memory for Kubernetes"),
    )
}

fn processor(facts: &NodeFacts) -> Vec<Check> {
    let mut checks = Vec::new();
    if facts.limits.numa_balancing == Some(true) && facts.has_gpus() {
        checks.push(
            warn("kernel/numa-balancing", "automatic NUMA balancing is on")
                .because("the kernel unmaps pages to watch who uses them: pauses in ranks, and in collectives with them")
                .fixed_by("kernel.numa_balancing=0 in /etc/sysctl.d"),
        );
    }
    if let Some(governor) = facts.limits.governor.as_deref().filter(|governor| *governor != "performance") {
        checks.push(
            warn("kernel/governor", format!("processor clocks follow the governor `{governor}`"))
                .because("the thread that launches kernels sleeps and wakes at a low clock: host-bound steps get longer")
                .fixed_by("`cpupower frequency-set -g performance`"),
        );
    }
    checks
}
