//! GPUs: are all of them there, and do their settings let them run at full speed?

use super::Expected;
use crate::check::{Check, Stack};
use crate::facts::{GpuFacts, NodeFacts};

pub(super) fn judge(facts: &NodeFacts, expected: &Expected<'_>) -> Vec<Check> {
    let mut checks = vec![count(facts, expected)];
    checks.extend(kind(facts, expected));
    for gpu in &facts.gpus {
        checks.extend(settings(gpu));
        checks.extend(clock(gpu, expected));
        checks.extend(throttled(gpu, expected));
        checks.extend(links(gpu, expected));
    }
    checks.extend(fabric_manager(facts));
    if facts.gpus.len() > 1 {
        checks.extend(unlike_the_others(&facts.gpus));
    }
    if !facts.gpus.is_empty() && checks.iter().all(|check| check.gpu.is_none()) {
        let found = format!("settings of all {} GPUs are as they should be", facts.gpus.len());
        checks.push(Check::pass("gpu/settings", Stack::Hardware, found));
    }
    checks
}

fn warn(rule: &str, gpu: &GpuFacts, found: String) -> Check {
    Check::warn(rule, Stack::Hardware, format!("GPU {}: {found}", gpu.index)).of_gpu(gpu.index)
}

fn fail(rule: &str, gpu: &GpuFacts, found: String) -> Check {
    Check::fail(rule, Stack::Hardware, format!("GPU {}: {found}", gpu.index)).of_gpu(gpu.index)
}

fn count(facts: &NodeFacts, expected: &Expected<'_>) -> Check {
    const RULE: &str = "gpu/count";
    let seen = facts.gpus.len() as u32;
    let by_catalog = expected.instance.map_or(0, |instance| instance.accelerators);
    let should = by_catalog.max(facts.pci.nvidia_gpus);
    let is_neuron = expected.accelerator.is_some_and(|it| it.vendor.to_lowercase() != "nvidia");
    if facts.hides_gpus {
        return Check::pass(RULE, Stack::Hardware, "its GPUs are held by other jobs and were not looked at");
    }
    if should == 0 || is_neuron {
        return Check::pass(RULE, Stack::Hardware, format!("{seen} GPUs of NVIDIA"));
    }
    if seen >= should {
        return Check::pass(RULE, Stack::Hardware, format!("all {seen} GPUs answer"));
    }
    let place = if facts.pci.nvidia_gpus < by_catalog {
        "missing from the PCI bus"
    } else {
        "on the bus but do not answer"
    };
    Check::fail(RULE, Stack::Hardware, format!("{seen} of {should} GPUs answer: {} {place}", should - seen))
        .because("a gang that counts on the node's GPUs cannot start, or waits for a rank that never comes")
        .fixed_by("look for XID 79 in the kernel log; drain the node, power-cycle it, and replace it when the GPU stays away")
}

fn kind(facts: &NodeFacts, expected: &Expected<'_>) -> Option<Check> {
    let (accelerator, gpu) = (expected.accelerator?, facts.gpus.first()?);
    expected.instance?;
    let is_it = accelerator.aliases.iter().any(|alias| alias.eq_ignore_ascii_case(&gpu.name))
        || accelerator.name.eq_ignore_ascii_case(&gpu.name);
    let found = format!("GPUs are {}", gpu.name);
    if is_it {
        return Some(Check::pass("gpu/kind", Stack::Hardware, found));
    }
    let check = Check::fail(
        "gpu/kind",
        Stack::Hardware,
        format!("{found}; the catalog has {} here", accelerator.title),
    );
    Some(
        check
            .because("plans and predictions are for other hardware")
            .fixed_by("name the right instance with --like"),
    )
}

fn settings(gpu: &GpuFacts) -> Vec<Check> {
    let mut checks = Vec::new();
    if gpu.is_persistent == Some(false) {
        checks.push(
            warn("gpu/persistence", gpu, "persistence mode is off".into())
                .because("the driver unloads between jobs: starts take seconds longer, and clocks and settings are lost")
                .fixed_by("run nvidia-persistenced, or `nvidia-smi -pm 1`"),
        );
    }
    if gpu.has_ecc == Some(false) {
        checks.push(
            fail("gpu/ecc", gpu, "ECC is off".into())
                .because("a flipped bit in a weight or gradient goes unnoticed")
                .fixed_by("`nvidia-smi -e 1`, then reset the GPU"),
        );
    }
    if gpu.has_mig == Some(true) {
        checks.push(
            fail("gpu/mig", gpu, "MIG is on".into())
                .because(
                    "slices of a GPU have no NVLink and no peer access; NCCL cannot use them for one job",
                )
                .fixed_by("`nvidia-smi -mig 0` on nodes for training"),
        );
    }
    if let Some(mode) =
        gpu.compute_mode.as_deref().filter(|mode| *mode == "Prohibited" || *mode == "Exclusive_Process")
    {
        let check = if mode == "Prohibited" { fail } else { warn };
        checks.push(
            check("gpu/compute-mode", gpu, format!("compute mode is {mode}"))
                .because("programs that open the GPU a second time are refused")
                .fixed_by("`nvidia-smi -c DEFAULT`"),
        );
    }
    if let (Some(width), Some(most)) = (gpu.link_width, gpu.link_width_most)
        && width < most
    {
        checks.push(
            fail("gpu/pcie-width", gpu, format!("PCIe runs on {width} of {most} lanes"))
                .because(
                    "copies to and from the host, and the network's reads, run at a fraction of their rate",
                )
                .fixed_by("reseat the GPU or its riser; on rented hardware replace the node"),
        );
    }
    checks
}

/// Clocks or power held below what the board allows.
fn clock(gpu: &GpuFacts, expected: &Expected<'_>) -> Vec<Check> {
    let mut checks = Vec::new();
    if let (Some(limit), Some(most)) = (gpu.clock_limit, gpu.clock_most)
        && limit < 0.98 * most
        && most > 0.0
    {
        checks.push(
            warn("gpu/clock", gpu, format!("application clock is {limit} MHz of {most} MHz"))
                .because("all GPUs of a job wait for the slowest")
                .costing(expected.price.as_ref().and_then(|price| price.at_clock(limit / most)))
                .fixed_by("`nvidia-smi -rac`, and `nvidia-smi -rgc` where clocks are locked"),
        );
    }
    if let (Some(limit), Some(default)) = (gpu.power_limit, gpu.power_default)
        && limit < 0.99 * default
    {
        checks.push(
            warn("gpu/power", gpu, format!("power limit is {limit} W of {default} W"))
                .because("under load the clock falls until the power fits, and all GPUs of a job wait for the slowest")
                .fixed_by(format!("`nvidia-smi -i {} -pl {default}`, unless the limit is wanted", gpu.index)),
        );
    }
    checks
}

/// NVML's bits: hardware slowdown, thermal slowdown by software and hardware, power brake.
fn throttled(gpu: &GpuFacts, expected: &Expected<'_>) -> Option<Check> {
    const REASONS: [(u64, &str); 4] = [
        (0x08, "hardware slowdown"),
        (0x20, "too hot (software)"),
        (0x40, "too hot (hardware)"),
        (0x80, "power brake"),
    ];
    let bits = gpu.throttle_reasons?;
    let reasons: Vec<&str> =
        REASONS.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, name)| *name).collect();
    if reasons.is_empty() {
        return None;
    }
    Some(
        fail("gpu/slowdown", gpu, format!("clocks are held down now: {}", reasons.join(", ")))
            .because("hardware that protects itself runs at half its clock or less")
            .costing(expected.price.as_ref().and_then(|price| price.at_clock(0.5)))
            .fixed_by("check cooling and power supplies; drain the node while it lasts"),
    )
}

fn links(gpu: &GpuFacts, expected: &Expected<'_>) -> Option<Check> {
    let (up, all) = gpu.nvlinks?;
    if up == all {
        return None;
    }
    Some(
        fail("gpu/nvlink", gpu, format!("{up} of {all} NVLinks are up"))
            .because("traffic within the node falls back to fewer links, or to PCIe")
            .costing(expected.price.as_ref().filter(|_| up == 0).and_then(|price| price.without_nvlink()))
            .fixed_by("look for XID 74 in the kernel log; reset the GPU, restart the fabric manager, replace the node when links stay down"),
    )
}

fn fabric_manager(facts: &NodeFacts) -> Option<Check> {
    if facts.pci.nvswitches == 0 {
        return None;
    }
    let runs = facts.services.iter().any(|name| name.starts_with("nv-fabricmanage"));
    if runs {
        return Some(Check::pass("gpu/fabric-manager", Stack::Hardware, "the fabric manager runs"));
    }
    Some(
        Check::warn("gpu/fabric-manager", Stack::Hardware, "there are NVSwitches and no fabric manager is seen")
            .because("without it CUDA does not start on NVSwitch systems (error 802)")
            .fixed_by("`systemctl enable --now nvidia-fabricmanager`, of exactly the driver's version; inside a container look on the host"),
    )
}

/// GPUs of a node should be equal; one that is not slows all.
fn unlike_the_others(gpus: &[GpuFacts]) -> Vec<Check> {
    let mut checks = Vec::new();
    type Value = fn(&GpuFacts) -> Option<String>;
    let kinds: [(&str, Value); 4] = [
        ("name", |gpu| Some(gpu.name.clone())),
        ("memory", |gpu| Some(format!("{} MiB", gpu.memory_mib?))),
        ("power limit", |gpu| Some(format!("{} W", gpu.power_limit?))),
        ("application clock", |gpu| Some(format!("{} MHz", gpu.clock_limit?))),
    ];
    for (what, value) in kinds {
        let values: Vec<Option<String>> = gpus.iter().map(value).collect();
        let Some(most) = crate::nodes::most_common(&values) else { continue };
        for (gpu, own) in gpus.iter().zip(&values).filter(|(_, own)| **own != most) {
            let (Some(own), Some(most)) = (own, &most) else { continue };
            checks.push(
                warn("gpu/odd-one-out", gpu, format!("{what} is {own}; the others have {most}"))
                    .because("all GPUs of a job wait for the slowest")
                    .fixed_by("give all GPUs the same settings"),
            );
        }
    }
    checks
}
