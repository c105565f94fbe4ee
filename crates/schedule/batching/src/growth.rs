//! Which running sequences need another block, and in which step.
//!
//! All decodes advance together, one token per decode step, and steps are counted. A sequence needs a block
//! once every `block_tokens` steps; it is in the slot of that step, modulo that number. A
//! step visits one slot instead of all sequences.

#[derive(Debug, Clone)]
pub(crate) struct GrowthRing {
    slots: Vec<Vec<u32>>,
}

/// The position of a sequence in the ring.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RingPlace {
    pub(crate) slot: u32,
    pub(crate) position: u32,
}

impl GrowthRing {
    pub(crate) fn new(block_tokens: u32) -> Self {
        Self { slots: vec![Vec::new(); block_tokens as usize] }
    }

    /// Sequences that need a block in a step.
    pub(crate) fn due(&self, step: u64) -> &[u32] {
        &self.slots[(step % self.slots.len() as u64) as usize]
    }

    pub(crate) fn add(&mut self, sequence: u32, step: u64) -> RingPlace {
        let slot = (step % self.slots.len() as u64) as usize;
        self.slots[slot].push(sequence);
        RingPlace { slot: slot as u32, position: self.slots[slot].len() as u32 - 1 }
    }

    /// Removes a sequence; returns the one that takes its position, if any.
    pub(crate) fn remove(&mut self, place: RingPlace) -> Option<u32> {
        let slot = &mut self.slots[place.slot as usize];
        slot.swap_remove(place.position as usize);
        slot.get(place.position as usize).copied()
    }

    /// How many of the steps `from..from + limit` can get all their blocks out of `available`.
    pub(crate) fn steps_within(&self, from: u64, limit: u32, available: u32) -> u32 {
        let mut left = available;
        for step in 0..limit {
            let wanted = self.due(from + u64::from(step)).len() as u32;
            if wanted > left {
                return step;
            }
            left -= wanted;
        }
        limit
    }
}
