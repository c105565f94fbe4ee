//! Moving a cache from prompt workers to decode workers.
//!
//! Every GPU that keeps a share of the cache sends its share over its own link, so the time is that of one
//! GPU's bytes. Queueing is left to the caller: a simulator that shares links must model it.

use bedplate_units::{Bytes, Seconds};

use super::Replica;
use super::wires::TRAINING;
use crate::collective::MachineLinks;

/// What carries a cache from one engine to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvLink {
    /// NVLink inside a scale-up domain.
    ScaleUp,
    /// EFA or InfiniBand.
    ScaleOut,
    /// Through host memory: out over PCIe or NVLink-C2C, across the network, and in again.
    Host,
}

impl Replica {
    /// Seconds to move the cache of `tokens` tokens to another engine.
    pub fn kv_transfer(&self, tokens: u64, link: KvLink) -> Seconds {
        let bytes = self.kv_bytes_per_gpu(tokens);
        let links = self.links();
        Seconds::new(match link {
            KvLink::ScaleUp => links.send(bytes, true).busy(),
            KvLink::ScaleOut => links.send(bytes, false).busy(),
            KvLink::Host => 2.0 * bytes / links.host + links.send(bytes, false).busy(),
        })
    }

    /// The same to an engine with links or a layout of its own: fewer GPUs that keep the cache, or slower links, take longer to receive it
    /// than the others to send it.
    pub fn kv_transfer_to(&self, other: &Replica, tokens: u64, link: KvLink) -> Seconds {
        let (sent, received) = (self.kv_transfer(tokens, link), other.kv_transfer(tokens, link));
        Seconds::new(sent.get().max(received.get()))
    }

    /// Bytes of the cache of `tokens` tokens on each GPU that keeps it.
    fn kv_bytes_per_gpu(&self, tokens: u64) -> f64 {
        let parallel = self.deployment().parallel;
        let holders = f64::from(parallel.tensor) * f64::from(parallel.pipeline);
        let memory = self.memory();
        let total: Bytes = memory.kv_per_token * tokens as f64 + memory.kv_per_sequence;
        total.get() / holders
    }

    fn links(&self) -> MachineLinks {
        MachineLinks::new(&self.deployment().hardware, &TRAINING)
    }
}
