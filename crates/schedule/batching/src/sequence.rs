//! One sequence on a replica, and the table of all of them.

use crate::blocks::BlockList;
use crate::growth::RingPlace;
use crate::keys::BlockKeys;
use crate::prefix::HeldPrefix;
use crate::queue::QueuePlace;
use crate::request::{Request, RequestId, SequenceStart};

/// How a waiting sequence continues once it is admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resume {
    /// Computes its prompt.
    Prompt,
    /// Computes its prompt and what it had generated before it was preempted.
    Recompute,
    /// Brings its KV back from this many blocks of host memory.
    SwapIn { host_blocks: u32 },
    /// Has its KV sent by another replica.
    Transferred,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SequencePhase {
    Waiting(Resume),
    Prefilling,
    Decoding,
    /// Finished or dropped; the slot is free for another.
    Gone,
}

#[derive(Debug, Clone)]
pub(crate) struct Sequence<B> {
    pub(crate) request: RequestId,
    pub(crate) tenant: u32,
    pub(crate) place: QueuePlace,
    pub(crate) priority: i8,
    pub(crate) deadline: Option<u64>,
    pub(crate) prompt_tokens: u32,
    pub(crate) output_tokens: u32,
    /// Sequences that this one represents until its prompt is computed; 1 afterwards.
    pub(crate) samples: u32,
    pub(crate) phase: SequencePhase,
    /// Tokens whose KV must be present before the sequence decodes.
    pub(crate) target: u32,
    /// Tokens in its KV; while it decodes, those at the decode step `joined_at`.
    pub(crate) computed: u32,
    /// Tokens generated; while it decodes, those at the decode step `joined_at`.
    pub(crate) generated: u32,
    pub(crate) joined_at: u64,
    pub(crate) held: HeldPrefix,
    /// Its blocks in the order of its tokens: those it shares, then its own.
    pub(crate) table: B,
    /// All blocks promised to it when it was admitted.
    pub(crate) promised: u32,
    /// Blocks promised to the samples that are yet to be forked from it.
    pub(crate) promised_to_samples: u32,
    pub(crate) ring: RingPlace,
    /// Position in the list of decoding sequences.
    pub(crate) position: u32,
    /// Counts how often it joined the decodes, to tell stale completions from current ones.
    pub(crate) epoch: u32,
    /// Tokens that it adds to the replica's load while it is here.
    pub(crate) weight: u32,
    pub(crate) keys: BlockKeys,
    /// No cached prefix takes the place of its prompt.
    pub(crate) computes_all: bool,
}

impl<B: BlockList> Sequence<B> {
    pub(crate) fn new(request: Request, tenant: u32, place: QueuePlace) -> Self {
        let is_transferred = request.start == SequenceStart::Transferred;
        Self {
            request: request.id,
            tenant,
            place,
            priority: request.priority,
            deadline: request.deadline,
            prompt_tokens: request.prompt_tokens,
            output_tokens: request.output_tokens,
            samples: u32::from(request.samples),
            phase: SequencePhase::Waiting(if is_transferred { Resume::Transferred } else { Resume::Prompt }),
            target: request.prompt_tokens,
            computed: 0,
            generated: u32::from(is_transferred),
            joined_at: 0,
            held: HeldPrefix::NOTHING,
            table: B::default(),
            promised: 0,
            promised_to_samples: 0,
            ring: RingPlace::default(),
            position: 0,
            epoch: 0,
            weight: request.prompt_tokens,
            keys: request.keys,
            computes_all: request.computes_all,
        }
    }

    /// Another sample of the same prompt, whose KV is in the tree.
    pub(crate) fn sibling(&self, place: QueuePlace, promised: u32) -> Self {
        Self {
            place,
            samples: 1,
            phase: SequencePhase::Waiting(Resume::Prompt),
            computed: 0,
            generated: 0,
            table: B::default(),
            promised,
            promised_to_samples: 0,
            epoch: 0,
            weight: 0,
            keys: self.keys.first(self.held.blocks),
            ..*self
        }
    }

    /// Blocks that it has.
    pub(crate) fn blocks(&self) -> u32 {
        self.table.len()
    }

    /// Blocks promised and not given yet.
    pub(crate) fn outstanding(&self) -> u32 {
        self.promised.saturating_sub(self.blocks()) + self.promised_to_samples
    }

    /// Prompt tokens yet to be computed.
    pub(crate) fn pending(&self) -> u32 {
        match self.phase {
            SequencePhase::Waiting(Resume::Prompt | Resume::Recompute) | SequencePhase::Prefilling => {
                self.target - self.computed
            }
            _ => 0,
        }
    }
}

/// Sequences by number; numbers of finished ones are reused.
#[derive(Debug, Clone)]
pub(crate) struct SequenceTable<B> {
    slots: Vec<Sequence<B>>,
    vacant: Vec<u32>,
}

impl<B: BlockList> SequenceTable<B> {
    pub(crate) fn new() -> Self {
        Self { slots: Vec::new(), vacant: Vec::new() }
    }

    /// The number that the next sequence gets.
    pub(crate) fn next(&self) -> u32 {
        self.vacant.last().copied().unwrap_or(self.slots.len() as u32)
    }

    pub(crate) fn add(&mut self, mut sequence: Sequence<B>) -> u32 {
        let slot = self.next();
        if self.vacant.pop().is_some() {
            let previous = &mut self.slots[slot as usize];
            // The list of blocks keeps its allocation, and the epoch continues so that stale completions stay stale.
            sequence.epoch = previous.epoch;
            sequence.table = std::mem::take(&mut previous.table);
            *previous = sequence;
        } else {
            self.slots.push(sequence);
        }
        slot
    }

    pub(crate) fn remove(&mut self, slot: u32) {
        self.slots[slot as usize].phase = SequencePhase::Gone;
        self.vacant.push(slot);
    }

    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Sequence<B>> {
        self.slots.iter().filter(|sequence| sequence.phase != SequencePhase::Gone)
    }

    pub(crate) fn contains(&self, slot: u32) -> bool {
        self.slots.get(slot as usize).is_some_and(|sequence| sequence.phase != SequencePhase::Gone)
    }
}

impl<B> std::ops::Index<u32> for SequenceTable<B> {
    type Output = Sequence<B>;

    fn index(&self, slot: u32) -> &Sequence<B> {
        &self.slots[slot as usize]
    }
}

impl<B> std::ops::IndexMut<u32> for SequenceTable<B> {
    fn index_mut(&mut self, slot: u32) -> &mut Sequence<B> {
        &mut self.slots[slot as usize]
    }
}
