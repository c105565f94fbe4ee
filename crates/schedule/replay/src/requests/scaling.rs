//! How many replicas a pool should have.

use super::fleet::Scaling;
use super::replica::Replica;

/// Enough for the present sequences at the target number per replica, within the bounds.
pub(crate) fn desired_replicas(scaling: &Scaling, pool: usize, replicas: &[Replica]) -> u32 {
    let present = replicas.iter().filter(|replica| replica.pool == pool);
    let sequences: u32 = present.map(|replica| replica.scheduler.load().sequences).sum();
    let least = scaling.least.max(1);
    sequences.div_ceil(scaling.sequences.max(1)).clamp(least, scaling.most.max(least))
}
