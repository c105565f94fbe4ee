//! Which sequence is preempted when blocks run out, and what happens to its KV.

use crate::blocks::BlockList;
use crate::options::PreemptionMode;
use crate::prefix::HeldPrefix;
use crate::reason::{PreemptReason, Preemption};
use crate::request::SequenceId;
use crate::scheduler::Scheduler;
use crate::sequence::{Resume, Sequence, SequencePhase};
use crate::step::SwapOut;

impl<B: BlockList> Scheduler<B> {
    /// The running sequence that is due last.
    pub(crate) fn least_urgent(&self) -> Option<u32> {
        let running = self.decoding.iter().chain(&self.prefilling).copied();
        running.max_by_key(|slot| self.sequences[*slot].place)
    }

    /// Takes a running sequence out and puts it back into the queue, at its old place.
    pub(crate) fn preempt(&mut self, slot: u32, reason: PreemptReason) {
        let resume = self.way_back(slot);
        let was_decoding = self.sequences[slot].phase == SequencePhase::Decoding;
        if let Resume::SwapIn { host_blocks } = resume {
            let mut blocks = self.sequences[slot].table.numbers().to_vec();
            blocks.truncate(host_blocks as usize);
            self.step.swapped_out.push(SwapOut { sequence: SequenceId(slot), blocks });
        }
        self.take_out(slot);
        let sequence = &mut self.sequences[slot];
        let is_swapped = matches!(resume, Resume::SwapIn { .. });
        if let Resume::SwapIn { host_blocks } = resume {
            self.host_blocks_used += host_blocks;
            self.step.swapped_out_tokens += u64::from(sequence.computed);
            sequence.target = sequence.computed;
        } else {
            sequence.target = sequence.prompt_tokens + sequence.generated;
        }
        sequence.computed = 0;
        sequence.phase = SequencePhase::Waiting(resume);
        let Sequence { request, tenant, place, .. } = *sequence;
        self.load.pending_tokens += u64::from(self.sequences[slot].pending());
        self.queue.push(tenant, place);
        let sequence = SequenceId(slot);
        self.step.preempted.push(Preemption { sequence, request, reason, was_decoding, is_swapped });
    }

    fn way_back(&self, slot: u32) -> Resume {
        let sequence = &self.sequences[slot];
        if sequence.generated == 0 && sequence.phase == SequencePhase::Prefilling {
            return Resume::Prompt;
        }
        if self.options.preemption == PreemptionMode::Swap && sequence.phase == SequencePhase::Decoding {
            let host_blocks = self.options.blocks_for(self.context(slot));
            if self.host_blocks_used + host_blocks <= self.options.host_blocks {
                return Resume::SwapIn { host_blocks };
            }
        }
        Resume::Recompute
    }

    /// Takes a sequence off the replica: its counts are updated, full blocks with keys stay in the tree,
    /// the others are freed.
    pub(crate) fn take_out(&mut self, slot: u32) {
        match self.sequences[slot].phase {
            SequencePhase::Decoding => self.leave_decodes(slot),
            SequencePhase::Prefilling => {
                self.load.pending_tokens -= u64::from(self.sequences[slot].pending());
                self.prefilling.retain(|each| *each != slot);
            }
            SequencePhase::Waiting(_) | SequencePhase::Gone => {
                unreachable!("only running sequences are taken out")
            }
        }
        self.outstanding -= self.sequences[slot].outstanding();
        self.slots_taken -= self.sequences[slot].samples;
        self.share_computed(slot);
        let sequence = &mut self.sequences[slot];
        self.cache.release(sequence.held);
        self.cache.free(&mut sequence.table, sequence.held.blocks);
        sequence.held = HeldPrefix::NOTHING;
        sequence.promised = 0;
        sequence.promised_to_samples = 0;
    }

    /// Moves the full blocks whose keys are known into the tree.
    pub(crate) fn share_computed(&mut self, slot: u32) {
        let sequence = &mut self.sequences[slot];
        let full = (sequence.computed / self.options.block_tokens).min(sequence.keys.len());
        if full > sequence.held.blocks {
            sequence.held = self.cache.share(sequence.held, &sequence.keys, full, &mut sequence.table);
        }
    }

    /// Frees the host memory of a swapped sequence.
    pub(crate) fn forget_host_blocks(&mut self, slot: u32) {
        if let SequencePhase::Waiting(Resume::SwapIn { host_blocks }) = self.sequences[slot].phase {
            self.host_blocks_used -= host_blocks;
        }
    }

    /// Removes a sequence that neither waits nor runs any more.
    pub(crate) fn retire(&mut self, slot: u32) {
        let sequence = &self.sequences[slot];
        self.load.sequences -= 1;
        self.load.held_tokens -= u64::from(sequence.weight);
        if let SequencePhase::Waiting(_) = sequence.phase {
            self.load.pending_tokens -= u64::from(sequence.pending());
        }
        self.queue.leave(sequence.tenant);
        self.sequences.remove(slot);
    }
}
