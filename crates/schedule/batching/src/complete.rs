//! What a completed step changes: tokens, finished prompts, forked samples, finished sequences.

use std::cmp::Reverse;

use crate::blocks::BlockList;
use crate::reason::{PreemptReason, Preemption};
use crate::request::SequenceId;
use crate::scheduler::Scheduler;
use crate::sequence::{Sequence, SequencePhase};
use crate::step::{Completion, SequenceProgress};

impl<B: BlockList> Scheduler<B> {
    /// Reports that the planned step ran, `executed` times where it may be repeated.
    pub fn complete(&mut self, executed: u32) -> &Completion {
        assert!(self.is_step_running, "there is a step to complete");
        assert!((1..=self.step.repeats).contains(&executed), "it ran as often as it may");
        self.completion.clear();
        self.settle(executed, executed);
        if self.step.decodes {
            self.advance_decodes(executed);
        }
        self.is_step_running = false;
        self.grown = 0;
        self.end_sequences();
        for at in 0..self.step.chunks.len() {
            let chunk = self.step.chunks[at];
            self.advance_prompt(chunk.sequence.0, chunk.tokens);
        }
        if !self.step.chunks.is_empty() {
            let sequences = &self.sequences;
            self.prefilling.retain(|slot| sequences[*slot].phase == SequencePhase::Prefilling);
        }
        &self.completion
    }

    fn advance_decodes(&mut self, steps: u32) {
        self.decode_steps += u64::from(steps);
        self.decode_context += self.decoding.len() as u64 * u64::from(steps);
    }

    fn end_sequences(&mut self) {
        while let Some(Reverse((step, slot, epoch))) = self.endings.peek().copied() {
            let is_current = self.is_current(slot, epoch);
            if is_current && step > self.decode_steps {
                return;
            }
            self.endings.pop();
            if is_current {
                self.finish(slot);
            }
        }
    }

    fn advance_prompt(&mut self, slot: u32, tokens: u32) {
        let sequence = &mut self.sequences[slot];
        sequence.computed += tokens;
        self.load.pending_tokens -= u64::from(tokens);
        if sequence.computed < sequence.target {
            return;
        }
        sequence.generated += 1;
        let generated = sequence.generated;
        self.completion.started.push(SequenceProgress {
            sequence: SequenceId(slot),
            request: sequence.request,
            generated,
        });
        self.share_computed(slot);
        self.join(slot);
        if self.sequences[slot].samples > 1 {
            self.fork(slot);
        }
        let sequence = &self.sequences[slot];
        if sequence.generated >= sequence.output_tokens {
            self.finish(slot);
        }
    }

    /// Starts the other samples of a prompt that has just been computed. A full block is shared through the tree;
    /// a block that the prompt fills in part is copied, because each sample continues in it.
    pub(crate) fn fork(&mut self, slot: u32) {
        let samples = std::mem::replace(&mut self.sequences[slot].samples, 1);
        let promised = std::mem::take(&mut self.sequences[slot].promised_to_samples);
        self.outstanding -= promised;
        let promised_each = self.sequences[slot].held.blocks + promised / (samples - 1);
        for _ in 1..samples {
            self.fork_one(slot, promised_each);
        }
    }

    fn fork_one(&mut self, slot: u32, promised: u32) {
        let origin = &self.sequences[slot];
        let own = self.options.blocks_for(origin.prompt_tokens) - origin.held.blocks;
        // While a step is being planned the sample decodes at once, and needs a block for that.
        let at_once = origin.prompt_tokens + u32::from(self.grown > 0);
        let needed = self.options.blocks_for(at_once) - origin.held.blocks;
        let (held, prompt_tokens, generated) = (origin.held, origin.prompt_tokens, origin.generated);
        let place = (origin.place.0, self.arrivals, self.sequences.next());
        self.arrivals += 1;
        let sibling = self.sequences.add(self.sequences[slot].sibling(place, promised));
        self.load.sequences += 1;
        let tenant = self.sequences[sibling].tenant;
        self.queue.enter_again(tenant);
        if needed > self.cache.available() {
            self.send_back(sibling);
            return;
        }
        self.cache.hold_again(held);
        let mut table = B::default();
        table.append(&self.sequences[slot].table, 0..held.blocks);
        let sequence = &mut self.sequences[sibling];
        sequence.table = table;
        self.cache.allocate(own, &mut sequence.table);
        sequence.computed = prompt_tokens;
        sequence.generated = generated;
        self.outstanding += sequence.outstanding();
        let request = sequence.request;
        self.join(sibling);
        self.completion.started.push(SequenceProgress { sequence: SequenceId(sibling), request, generated });
        if generated >= self.sequences[sibling].output_tokens {
            self.finish(sibling);
        }
    }

    /// Puts a sample without a block into the queue.
    fn send_back(&mut self, slot: u32) {
        let sequence = &mut self.sequences[slot];
        sequence.held = crate::prefix::HeldPrefix::NOTHING;
        sequence.promised = 0;
        let Sequence { tenant, place, request, .. } = *sequence;
        self.slots_taken -= 1;
        self.load.pending_tokens += u64::from(self.sequences[slot].pending());
        self.queue.push(tenant, place);
        let (sequence, reason) = (SequenceId(slot), PreemptReason::NoBlockForSample);
        let preemption = Preemption { sequence, request, reason, was_decoding: false, is_swapped: false };
        self.completion.preempted.push(preemption);
    }

    /// Lets a sequence whose KV is present decode from the next decode step on. If the others have already been
    /// given their blocks for that step, it gets its own.
    pub(crate) fn join(&mut self, slot: u32) {
        let sequence = &mut self.sequences[slot];
        sequence.phase = SequencePhase::Decoding;
        sequence.joined_at = self.decode_steps;
        sequence.epoch = sequence.epoch.wrapping_add(1);
        sequence.position = self.decoding.len() as u32;
        let room = sequence.blocks() * self.options.block_tokens - sequence.computed;
        sequence.ring = self.ring.add(slot, self.decode_steps + u64::from(room));
        let remaining = sequence.output_tokens - sequence.generated;
        self.endings.push(Reverse((self.decode_steps + u64::from(remaining), slot, sequence.epoch)));
        self.decode_context += u64::from(sequence.computed);
        self.decoding.push(slot);
        self.queue.decodes_change(sequence.tenant, true);
        if room == 0 && self.grown > 0 {
            self.give_block(slot);
        }
    }

    /// Takes a sequence out of the decodes and records what it has.
    pub(crate) fn leave_decodes(&mut self, slot: u32) {
        let sequence = &mut self.sequences[slot];
        let advanced = (self.decode_steps - sequence.joined_at) as u32;
        sequence.computed += advanced;
        sequence.generated += advanced;
        sequence.epoch = sequence.epoch.wrapping_add(1);
        self.decode_context -= u64::from(sequence.computed);
        let Sequence { ring, position, tenant, .. } = *sequence;
        if let Some(moved) = self.ring.remove(ring) {
            self.sequences[moved].ring = ring;
        }
        self.decoding.swap_remove(position as usize);
        if let Some(moved) = self.decoding.get(position as usize).copied() {
            self.sequences[moved].position = position;
        }
        self.queue.decodes_change(tenant, false);
    }

    fn finish(&mut self, slot: u32) {
        self.take_out(slot);
        let Sequence { request, generated, .. } = self.sequences[slot];
        self.completion.finished.push(SequenceProgress { sequence: SequenceId(slot), request, generated });
        self.retire(slot);
    }

    /// Tokens in the KV of a sequence.
    pub(crate) fn context(&self, slot: u32) -> u32 {
        let sequence = &self.sequences[slot];
        match sequence.phase {
            SequencePhase::Decoding => sequence.computed + (self.decode_steps - sequence.joined_at) as u32,
            _ => sequence.computed,
        }
    }

    /// Whether a scheduled completion is still valid for this sequence.
    pub(crate) fn is_current(&self, slot: u32, epoch: u32) -> bool {
        let sequence = &self.sequences[slot];
        sequence.phase == SequencePhase::Decoding && sequence.epoch == epoch
    }
}
