//! Collectives by themselves, as benchmarks measure them, priced by the model that prices steps.

use crate::collective::{MachineLinks, RankGroup};
use crate::{Constants, Hardware};

/// One collective over all GPUs of a machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum CollectiveCall {
    /// `bytes` are those of the whole result.
    AllGather {
        bytes: f64,
    },
    AllReduce {
        bytes: f64,
    },
    /// Each rank sends `bytes`, spread evenly.
    AllToAll {
        bytes: f64,
        by: Initiator,
    },
    /// Tokens to their experts, or back.
    Experts {
        tokens: f64,
        visits: f64,
        bytes_per_token: f64,
        is_deduplicated: bool,
    },
}

/// Who starts the messages of an all-to-all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Initiator {
    Nccl,
    /// NVSHMEM called by the host.
    Host,
    /// NVSHMEM called inside a kernel.
    Device,
}

/// Seconds of a collective over all GPUs of `hardware`.
pub fn collective_seconds(hardware: &Hardware, constants: &Constants, call: &CollectiveCall) -> f64 {
    let links = MachineLinks::new(hardware, constants);
    let gpus = f64::from(hardware.gpus);
    let all = RankGroup::new(gpus, 1.0);
    match *call {
        CollectiveCall::AllGather { bytes } => links.gather(all, bytes).busy(),
        CollectiveCall::AllReduce { bytes } => links.reduce(all, bytes),
        CollectiveCall::AllToAll { bytes, by: Initiator::Nccl } => {
            links.alltoall(all, bytes, crate::collective::TokenCopies::PerExpert).busy()
        }
        CollectiveCall::AllToAll { bytes, by: Initiator::Host } => links.put_by_host(bytes),
        CollectiveCall::AllToAll { bytes, by: Initiator::Device } => links.put_by_device(bytes),
        CollectiveCall::Experts { tokens, visits, bytes_per_token, is_deduplicated } => {
            let domain = f64::from(hardware.domain).min(gpus);
            let domains = gpus / domain;
            let copies = |places: f64| places * (1.0 - (1.0 - 1.0 / places).powf(visits));
            let bytes = tokens * bytes_per_token;
            if is_deduplicated {
                // One copy for each domain, which then goes on inside.
                let far = copies(domains) * (1.0 - 1.0 / domains) * bytes;
                let near = copies(gpus) * (1.0 - 1.0 / domain) * bytes;
                return links.dispatch(near, 0.0) + links.dispatch(0.0, far);
            }
            let far = visits * (1.0 - domain / gpus) * bytes;
            let near = visits * (domain - 1.0) / gpus * bytes;
            links.dispatch(near, far)
        }
    }
}
