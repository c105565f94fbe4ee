//! Which replicas may have how much of a prompt, without asking each of them.
//!
//! It knows of some keys, the milestones, which replicas have got them; that bounds from above what a replica has of a prompt, to
//! within the keys between two milestones. A router then asks only those replicas that might be the best. What replicas lose is
//! found out by counting anew, once as much has come as there was: until then bounds are too high, never too low.

use crate::index::KeyIndex;
use crate::request::BlockKey;
use crate::scheduler::Scheduler;

/// The milestones of a pool's replicas.
#[derive(Debug, Clone)]
pub struct Census {
    /// By group of 64 replicas and key: one bit for each of them.
    holders: KeyIndex<u64>,
    /// How many entries call for counting anew.
    limit: usize,
}

/// The fewest entries for which counting anew is worth it.
const SMALL: usize = 1024;

impl Default for Census {
    fn default() -> Self {
        Self { holders: KeyIndex::new(0), limit: SMALL }
    }
}

impl Census {
    /// Counts what a replica has got since this was last called for it, which must be before the next `bounds`.
    pub fn add(&mut self, replica: usize, scheduler: &mut Scheduler) {
        scheduler.new_milestones().for_each(|key| self.note(replica, key));
    }

    /// Whether so much has come that counting anew pays.
    pub fn is_stale(&self) -> bool {
        self.holders.len() > self.limit
    }

    /// Counts anew what all replicas have.
    pub fn count<'a>(&mut self, schedulers: impl Iterator<Item = &'a Scheduler>) {
        self.holders = KeyIndex::new(0);
        for (replica, scheduler) in schedulers.enumerate() {
            scheduler.milestones().for_each(|key| self.note(replica, key));
        }
        self.limit = (2 * self.holders.len()).max(SMALL);
    }

    /// For each of the replicas, the most blocks that it can have of a prompt with these keys.
    pub fn bounds(&self, keys: &[BlockKey], replicas: usize, bounds: &mut Vec<u32>) {
        bounds.clear();
        bounds.resize(replicas, keys.len() as u32);
        for (group, bounds) in bounds.chunks_mut(64).enumerate() {
            let mut left = u64::MAX >> (64 - bounds.len());
            for (at, key) in keys.iter().enumerate().filter(|(_, key)| key.is_milestone()) {
                let holders = self.holders.get(group as u32, *key).unwrap_or(0);
                let mut lost = left & !holders;
                while lost != 0 {
                    bounds[lost.trailing_zeros() as usize] = at as u32;
                    lost &= lost - 1;
                }
                left &= holders;
                if left == 0 {
                    break;
                }
            }
        }
    }

    fn note(&mut self, replica: usize, key: BlockKey) {
        let (group, bit) = ((replica / 64) as u32, 1 << (replica % 64));
        let before = self.holders.get(group, key).unwrap_or(0);
        self.holders.set(group, key, before | bit);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Request, SchedulerOptions};

    fn keys(family: u64, branch: usize, blocks: usize) -> Vec<BlockKey> {
        let content = |at: usize| if at < branch { family } else { 100 + family * 10 + branch as u64 };
        let mut last = BlockKey(7);
        (0..blocks)
            .map(|at| {
                last = last.then(content(at));
                last
            })
            .collect()
    }

    proptest! {
        /// Small replicas lose what they have all the time.
        #[test]
        fn no_replica_has_more_than_its_bound(
            requests in prop::collection::vec((0usize..70, 0u64..3, 0usize..12, 1usize..16), 1..120),
        ) {
            let options = SchedulerOptions {
                blocks: 24, watermark_blocks: 0, token_budget: 512, ..SchedulerOptions::default()
            };
            let mut replicas: Vec<Scheduler> =
                (0..70).map(|_| Scheduler::new(options.clone()).unwrap()).collect();
            replicas.iter_mut().for_each(Scheduler::watch_milestones);
            let (mut census, mut bounds) = (Census { limit: 8, ..Census::default() }, Vec::new());
            for (number, (replica, family, branch, blocks)) in requests.into_iter().enumerate() {
                let keys = keys(family, branch, blocks);
                if census.is_stale() {
                    census.count(replicas.iter());
                }
                census.bounds(&keys, replicas.len(), &mut bounds);
                for (replica, bound) in replicas.iter().zip(&bounds) {
                    prop_assert!(replica.cached_tokens(&keys) <= bound * options.block_tokens);
                }
                let request = Request {
                    keys, ..Request::new(number as u64, blocks as u32 * options.block_tokens + 1, 1)
                };
                let scheduler = &mut replicas[replica % 3 * 34];
                scheduler.submit(request, 0).unwrap();
                while !scheduler.is_empty() {
                    scheduler.step(0, 1);
                    scheduler.complete(1);
                }
                census.add(replica % 3 * 34, scheduler);
            }
        }
    }
}
