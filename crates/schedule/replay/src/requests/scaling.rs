//! How many replicas a pool should have, and which one goes first.

use std::cmp::Reverse;

use super::fleet::Scaling;
use super::replica::SimulatedReplica;

impl Scaling {
    /// Enough replicas for these sequences at the target number per replica, within the bounds. What runs replicas and what
    /// simulates them both ask here.
    pub fn desired(&self, sequences: u32) -> u32 {
        let least = self.least.max(1);
        sequences.div_ceil(self.sequences.max(1)).clamp(least, self.most.max(least))
    }
}

/// What a pool should have for the sequences that it holds.
pub(crate) fn desired_replicas(scaling: &Scaling, pool: usize, replicas: &[SimulatedReplica]) -> u32 {
    let present = replicas.iter().filter(|replica| replica.pool == pool);
    scaling.desired(present.map(|replica| replica.scheduler.load().sequences).sum())
}

/// Which replica is closed where there are too many: of those that are open, by number and sequences, the one with the fewest
/// sequences, the newest among equals.
pub fn replica_to_close(open: impl Iterator<Item = (usize, u32)>) -> Option<usize> {
    open.min_by_key(|(number, sequences)| (*sequences, Reverse(*number))).map(|(number, _)| number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_follow_the_sequences_within_the_bounds() {
        let scaling = Scaling { least: 2, most: 5, sequences: 8, interval: 1, cold_start: 0 };
        let desired = [0, 16, 17, 40, 41, u32::MAX].map(|sequences| scaling.desired(sequences));
        assert_eq!(desired, [2, 2, 3, 5, 5, 5]);
        let careless = Scaling { least: 0, most: 0, sequences: 0, ..scaling };
        assert_eq!(careless.desired(3), 1);
    }

    #[test]
    fn the_idlest_and_newest_replica_goes_first() {
        assert_eq!(replica_to_close([(0, 1), (1, 0), (2, 0), (3, 2)].into_iter()), Some(2));
        assert_eq!(replica_to_close(std::iter::empty()), None);
    }
}
