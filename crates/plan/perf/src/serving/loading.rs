//! Cold start: weights read from storage into GPU memory.

use bedplate_catalog::StorageClass;
use bedplate_transformer::ParameterPart;
use bedplate_units::{Bytes, Seconds};

use super::Replica;

/// GPUs that share the disks and the network of one host.
const GPUS_PER_HOST: u32 = 8;

/// The parts of a cold start.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ColdStart {
    /// Bytes that one host reads.
    pub bytes_per_host: Bytes,
    /// Reading and copying to GPUs, which overlap.
    pub load: Seconds,
    /// Process start, CUDA context, compilation and graph capture.
    pub warm_up: Seconds,
}

impl ColdStart {
    pub fn total(&self) -> Seconds {
        self.load + self.warm_up
    }
}

impl Replica {
    /// Seconds until a new replica serves, its weights read from `class`. Each host reads what its GPUs hold,
    /// once, and hosts read in parallel.
    pub fn cold_start(&self, class: &StorageClass) -> ColdStart {
        let deployment = self.deployment();
        let gpus = deployment.parallel.gpus();
        let on_host = f64::from(gpus.min(GPUS_PER_HOST));
        let model = &deployment.model.transformer;
        let weights = |part: ParameterPart| deployment.weights.of(part);
        let whole = model.weights_bytes_by(weights);
        let held = self.memory().weights_per_gpu * on_host;
        // Copies of the same shard on one host are read once.
        let bytes = if held < whole { held } else { whole };
        let read = bytes.get() / client_rate(class);
        let copy = self.memory().weights_per_gpu.get() / (deployment.hardware.host_link * HOST_REACH);
        let latency = class.latency.map_or(0.0, |latency| latency.get());
        ColdStart {
            bytes_per_host: bytes,
            load: Seconds::new(latency + read.max(copy)),
            warm_up: Seconds::new(WARM_UP),
        }
    }
}

/// Bytes per second that one host reads from a class, by the figures the catalog has.
fn client_rate(class: &StorageClass) -> f64 {
    class
        .throughput_per_client
        .or(class.throughput_per_volume)
        .or(class.throughput_per_tib.map(|rate| rate * PROVISIONED_TIB))
        .map_or(LOCAL_DISKS, |rate| rate.get())
}

/// Assumed size of a file system with only a known rate per TiB.
const PROVISIONED_TIB: f64 = 50.0;
/// Bytes per second of the eight NVMe disks of a p5 host together, where a class states no rate.
const LOCAL_DISKS: f64 = 20e9;
/// Share of the host link that pinned copies reach.
const HOST_REACH: f64 = 0.8;
/// Seconds until a loaded engine serves: context, compilation, graph capture. Engines report 40 to 90.
const WARM_UP: f64 = 60.0;
