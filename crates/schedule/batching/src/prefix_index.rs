//! Which replicas have how much of a prompt, without asking each of them.
//!
//! It knows of every run of keys how far each replica has it, but for what replicas lost since they last reported and for pieces that
//! have lost only their ends. So a replica has at most what is known here, and a router asks only those that might be the best.

use crate::blocks::BlockList;
use crate::index::RunIndex;
use crate::keys::BlockKeys;
use crate::prefix::Reach;
use crate::scheduler::Scheduler;

/// Who has a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holders {
    Nobody,
    /// One replica, up to this position.
    One {
        replica: u32,
        end: u32,
    },
    /// Several: the number of a row with the position of each replica, 0 for those without.
    Row(u32),
}

/// What the replicas of a pool have cached.
#[derive(Debug, Clone)]
pub struct PrefixIndex {
    holders: RunIndex<Holders>,
    rows: Vec<Vec<u32>>,
    vacant: Vec<u32>,
}

impl Default for PrefixIndex {
    fn default() -> Self {
        Self { holders: RunIndex::new(Holders::Nobody), rows: Vec::new(), vacant: Vec::new() }
    }
}

impl PrefixIndex {
    /// Counts what changed at a replica since this was last called for it. What it gained must be counted before the next `bounds`.
    pub fn update<B: BlockList>(&mut self, replica: usize, scheduler: &mut Scheduler<B>) {
        for reach in scheduler.take_reach() {
            self.note(replica, reach);
        }
    }

    /// For each of the replicas, the most blocks that it can have of the first `most` blocks with these keys.
    pub fn bounds(&self, keys: &BlockKeys, most: u32, replicas: usize, bounds: &mut Vec<u32>) {
        bounds.clear();
        bounds.resize(replicas, 0);
        for run in keys.runs_before(most) {
            let limit = run.end.min(most);
            match self.holders.get(run.origin) {
                None | Some(Holders::Nobody) => return,
                Some(Holders::One { replica, end }) => {
                    let bound = &mut bounds[replica as usize];
                    *bound = (*bound).max(end.min(limit));
                }
                Some(Holders::Row(row)) => {
                    for (bound, end) in bounds.iter_mut().zip(&self.rows[row as usize]) {
                        // Who has none of this run keeps what it has of those before it.
                        *bound = (*bound).max((*end).min(limit));
                    }
                }
            }
        }
    }

    fn note(&mut self, replica: usize, Reach { origin, end }: Reach) {
        let new = Holders::One { replica: replica as u32, end };
        match self.holders.get(origin) {
            None | Some(Holders::Nobody) if end > 0 => self.holders.set(origin, new),
            Some(Holders::One { replica: only, .. }) if only as usize == replica => match end {
                0 => self.holders.remove(origin),
                _ => self.holders.set(origin, new),
            },
            Some(Holders::One { replica: other, end: reached }) if end > 0 => {
                let row = self.vacant.pop().unwrap_or_else(|| {
                    self.rows.push(Vec::new());
                    self.rows.len() as u32 - 1
                });
                let ends = &mut self.rows[row as usize];
                ends.resize(replica.max(other as usize) + 1, 0);
                (ends[replica], ends[other as usize]) = (end, reached);
                self.holders.set(origin, Holders::Row(row));
            }
            Some(Holders::Row(row)) => {
                let ends = &mut self.rows[row as usize];
                ends.resize(ends.len().max(replica + 1), 0);
                ends[replica] = end;
                if end == 0 && ends.iter().all(|end| *end == 0) {
                    ends.clear();
                    self.vacant.push(row);
                    self.holders.remove(origin);
                }
            }
            None | Some(Holders::Nobody | Holders::One { .. }) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{BlockKey, Request, SchedulerOptions};

    /// Of the beginning of a family and of what branches off it, as few runs or as one for every block.
    fn keys(family: u64, branch: u32, blocks: u32, is_listed: bool) -> BlockKeys {
        let mut keys = BlockKeys::default();
        let (trunk, own) = (BlockKey(family).then(1).0, BlockKey(family).then(2 + u64::from(branch)).0);
        keys.push_run(trunk, branch.min(blocks));
        keys.push_run(own, blocks);
        match is_listed {
            true => keys.iter().map(|key| key.then(7)).collect(),
            false => keys,
        }
    }

    proptest! {
        /// Small replicas lose what they have all the time.
        #[test]
        fn a_replica_has_what_its_bound_says_or_has_lost_some(
            requests in prop::collection::vec((0usize..70, 0u64..3, 0u32..12, 1u32..16, any::<bool>()), 1..120),
        ) {
            let options = SchedulerOptions {
                blocks: 24, watermark_blocks: 0, token_budget: 512, ..SchedulerOptions::default()
            };
            let mut replicas: Vec<Scheduler> =
                (0..70).map(|_| Scheduler::new(options.clone()).unwrap()).collect();
            replicas.iter_mut().for_each(Scheduler::watch_reach);
            replicas.iter_mut().for_each(Scheduler::watch_evictions);
            let mut has_lost = [false; 70];
            let (mut prefix_index, mut bounds) = (PrefixIndex::default(), Vec::new());
            for (number, (replica, family, branch, blocks, is_listed)) in requests.into_iter().enumerate() {
                let keys = keys(family, branch, blocks, is_listed);
                prefix_index.bounds(&keys, blocks, replicas.len(), &mut bounds);
                for (at, (replica, bound)) in replicas.iter().zip(&bounds).enumerate() {
                    let cached = replica.cached_tokens(&keys, blocks * options.block_tokens);
                    prop_assert!(cached <= bound * options.block_tokens);
                    prop_assert!(has_lost[at] || cached == bound * options.block_tokens);
                }
                let request = Request {
                    keys, ..Request::new(number as u64, blocks * options.block_tokens + 1, 1)
                };
                let replica = replica % 3 * 34;
                let scheduler = &mut replicas[replica];
                scheduler.submit(request, 0).unwrap();
                while !scheduler.is_empty() {
                    scheduler.step(0, 1);
                    scheduler.complete(1);
                }
                has_lost[replica] |= !scheduler.take_evicted().is_empty();
                prefix_index.update(replica, scheduler);
            }
        }
    }
}
