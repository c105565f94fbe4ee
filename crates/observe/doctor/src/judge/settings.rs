//! Environment variables that a job would inherit.

use super::Expected;
use crate::check::{Check, Stack};
use crate::environment::{misspelled, remark};
use crate::facts::NodeFacts;

pub(super) fn judge(facts: &NodeFacts, expected: &Expected<'_>) -> Vec<Check> {
    let mut checks: Vec<Check> = facts
        .environment
        .iter()
        .filter_map(|(name, value)| {
            Some(priced(remark(name, value)?.check(Stack::Framework), name, expected))
        })
        .collect();
    checks.extend(facts.environment.keys().filter_map(|name| unknown(name)));
    checks.extend(connections(facts, expected));
    if checks.is_empty() {
        let found = "no variable of NCCL, libfabric, CUDA or PyTorch does harm";
        checks.push(Check::pass("environment/variables", Stack::Framework, found));
    }
    checks
}

fn priced(check: Check, name: &str, expected: &Expected<'_>) -> Check {
    let price = expected.price.as_ref();
    let cost = match name {
        "NCCL_P2P_DISABLE" | "NCCL_P2P_LEVEL" => price.and_then(|price| price.without_nvlink()),
        "NCCL_IB_DISABLE" | "NCCL_NET" | "NCCL_NET_PLUGIN" | "FI_PROVIDER" => {
            price.and_then(|price| price.without_rdma())
        }
        "NCCL_NET_GDR_LEVEL" | "FI_EFA_USE_DEVICE_RDMA" => price.and_then(|price| price.without_gpu_direct()),
        _ => None,
    };
    check.costing(cost)
}

fn unknown(name: &str) -> Option<Check> {
    let meant = misspelled(name)?;
    let check = Check::warn("environment/unknown", Stack::Framework, format!("NCCL does not read {name}"));
    Some(
        check
            .because("a setting that is not read has no effect, and no message says so")
            .fixed_by(format!("perhaps {meant} is meant")),
    )
}

/// One hardware queue orders tensor-parallel overlap before Blackwell; since then it only prevents overlap.
fn connections(facts: &NodeFacts, expected: &Expected<'_>) -> Option<Check> {
    let value = facts.environment.get("CUDA_DEVICE_MAX_CONNECTIONS")?;
    if value != "1" || !expected.generation().starts_with("blackwell") {
        return None;
    }
    let check = Check::warn(
        "environment/cuda-device-max-connections",
        Stack::Framework,
        "CUDA_DEVICE_MAX_CONNECTIONS=1 is set",
    );
    Some(
        check
            .because("on Blackwell it keeps communication and computation from overlapping")
            .fixed_by("unset it, or set it to 32"),
    )
}
