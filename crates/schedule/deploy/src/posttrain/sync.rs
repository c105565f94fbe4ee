//! How new weights get from the ranks that trained them to the replicas that roll out.

use bedplate_perf::Hardware;
use bedplate_units::Seconds;

use super::rollout::Rolled;

/// Share of a link's bandwidth that large transfers reach; an assumption, not measured.
const REACH: f64 = 0.8;

/// All GPUs have both. Each gathers its rollout shard from the ranks that hold it: those of its own domain over
/// NVLink, the others over the network, both at once.
pub(super) fn within(rolled: &Rolled, hardware: &Hardware, gpus: u32) -> Seconds {
    let shard = rolled.weights.get() / f64::from(rolled.layout.gpus());
    let inside = (f64::from(hardware.domain) / f64::from(gpus)).min(1.0);
    let up = shard * inside / (hardware.scale_up * REACH);
    let out = shard * (1.0 - inside) / (network(hardware) * REACH);
    Seconds::new(up.max(out))
}

/// Each rollout GPU receives its shard once; replicas pass it on to each other, so the trainers send one copy.
pub(super) fn between(rolled: &Rolled, hardware: &Hardware, training_gpus: u32) -> Seconds {
    let received = rolled.weights.get() / f64::from(rolled.layout.gpus());
    let sent = rolled.weights.get() / f64::from(training_gpus.max(1));
    Seconds::new(received.max(sent) / (network(hardware) * REACH))
}

fn network(hardware: &Hardware) -> f64 {
    hardware.scale_out / hardware.oversubscription
}
