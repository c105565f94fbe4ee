//! The keys of a prompt's blocks.
//!
//! Keys of consecutive blocks that are consecutive numbers are one *run*: a run is its *origin*, the number that each of its keys exceeds
//! its position by, and where it ends. An engine hashes every block, so that each key is a run of its own; a prompt that is
//! generated or traced has a few runs, however long it is, and what is done with its keys is done once for a run.

use bedplate_random::mix;

/// The identity of one full block of tokens together with everything before it, usually a chained hash. Equal
/// keys at equal positions mean equal KV.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockKey(pub u64);

impl BlockKey {
    /// The key of the next block, whose tokens are identified by `content`.
    pub fn then(self, content: u64) -> BlockKey {
        BlockKey(mix(self.0 ^ mix(content)))
    }

    /// The key at a position of a run.
    pub(crate) fn at(position: u32, origin: u64) -> Self {
        Self(origin.wrapping_add(position.into()))
    }
}

/// Keys at consecutive positions that are consecutive numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeyRun {
    pub(crate) origin: u64,
    /// The position behind its last key; it begins where the run before it ends.
    pub(crate) end: u32,
}

/// The keys of full blocks from the beginning of a prompt.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BlockKeys {
    runs: Vec<KeyRun>,
}

impl BlockKeys {
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// How many blocks they are the keys of.
    pub fn len(&self) -> u32 {
        self.runs.last().map_or(0, |run| run.end)
    }

    pub fn last(&self) -> Option<BlockKey> {
        self.runs.last().map(|run| BlockKey::at(run.end - 1, run.origin))
    }

    pub fn push(&mut self, key: BlockKey) {
        let position = self.len();
        self.push_run(key.0.wrapping_sub(position.into()), position + 1);
    }

    /// Adds keys up to the position `end`, each of them `origin` plus its position. Nothing else may have keys of this origin than what
    /// begins with all the keys before them.
    pub fn push_run(&mut self, origin: u64, end: u32) {
        if end <= self.len() {
            return;
        }
        match self.runs.last_mut() {
            Some(last) if last.origin == origin => last.end = end,
            _ => self.runs.push(KeyRun { origin, end }),
        }
    }

    /// The first keys of these.
    pub fn first(&self, blocks: u32) -> Self {
        let mut runs = self.runs_before(blocks).to_vec();
        if let Some(last) = runs.last_mut() {
            last.end = last.end.min(blocks);
        }
        Self { runs }
    }

    pub fn iter(&self) -> impl Iterator<Item = BlockKey> {
        let mut start = 0;
        self.runs.iter().flat_map(move |run| {
            let positions = start..run.end;
            start = run.end;
            positions.map(|position| BlockKey::at(position, run.origin))
        })
    }

    /// The runs that begin before a position.
    pub(crate) fn runs_before(&self, position: u32) -> &[KeyRun] {
        let whole = match self.runs.as_slice() {
            _ if position == 0 => return &[],
            // What is asked for most is the beginning of a prompt that ends in its last run.
            [.., before, _] if before.end < position => return &self.runs,
            runs => runs.partition_point(|run| run.end < position),
        };
        &self.runs[..self.runs.len().min(whole + 1)]
    }

    /// The runs that have keys at positions from `start` on.
    pub(crate) fn runs_from(&self, start: u32) -> &[KeyRun] {
        let before = self.runs_before(start + 1).len();
        &self.runs[before.saturating_sub(1)..]
    }
}

impl FromIterator<BlockKey> for BlockKeys {
    fn from_iter<I: IntoIterator<Item = BlockKey>>(keys: I) -> Self {
        let mut all = Self::default();
        all.extend(keys);
        all
    }
}

impl Extend<BlockKey> for BlockKeys {
    fn extend<I: IntoIterator<Item = BlockKey>>(&mut self, keys: I) {
        keys.into_iter().for_each(|key| self.push(key));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn runs_are_the_keys_that_they_were_made_of(
            list in prop::collection::vec(prop_oneof![0u64..4, Just(1000), (0u64..20).prop_map(|at| 500 + at)], 0..20),
            blocks in 0u32..25,
        ) {
            let list: Vec<BlockKey> = list.into_iter().map(BlockKey).collect();
            let keys: BlockKeys = list.iter().copied().collect();
            prop_assert_eq!(keys.len() as usize, list.len());
            prop_assert_eq!(keys.last(), list.last().copied());
            prop_assert_eq!(keys.iter().collect::<Vec<_>>(), list.clone());
            let beginning: BlockKeys = list.iter().copied().take(blocks as usize).collect();
            prop_assert_eq!(keys.first(blocks), beginning);
            let begins = |at: usize| if at == 0 { 0 } else { keys.runs[at - 1].end };
            let before = (0..keys.runs.len()).take_while(|at| begins(*at) < blocks).count();
            prop_assert_eq!(keys.runs_before(blocks), &keys.runs[..before]);
            if blocks < keys.len() {
                let ended = keys.runs.iter().take_while(|run| run.end <= blocks).count();
                prop_assert_eq!(keys.runs_from(blocks), &keys.runs[ended..]);
            }
        }
    }
}
