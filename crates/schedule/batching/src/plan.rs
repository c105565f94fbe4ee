//! How the next step is planned: decodes first, then chunks of prompts, then admissions.

use crate::blocks::BlockList;
use crate::options::{LatePolicy, PrefillMode};
use crate::reason::PreemptReason;
use crate::request::SequenceId;
use crate::scheduler::Scheduler;
use crate::step::{PromptChunk, Step};

impl<B: BlockList> Scheduler<B> {
    /// Plans the next step at time `now`. Where it only decodes, up to `horizon` equal steps are planned as one;
    /// an engine uses 1. A step that is not idle must be followed by `complete`.
    pub fn step(&mut self, now: u64, horizon: u32) -> &Step {
        assert!(!self.is_step_running, "a step is completed before the next one is planned");
        self.step.clear();
        self.grown = 0;
        self.charged = 0;
        match self.options.prefill {
            PrefillMode::Mixed => self.plan_mixed(now),
            PrefillMode::Separate => self.plan_separate(now),
        }
        if self.step.decodes {
            self.step.shape.decodes = self.decoding.len() as u32;
            self.step.shape.decode_context = self.decode_context;
        }
        self.is_step_running = !self.step.is_idle();
        if self.is_step_running {
            self.step.repeats = self.repeats(horizon.max(1));
        }
        &self.step
    }

    fn plan_mixed(&mut self, now: u64) {
        self.grow_decodes();
        let mut budget = self.options.token_budget - self.decoding.len() as u32;
        self.continue_prompts(&mut budget);
        self.admit_waiting(now, &mut budget);
        self.step.decodes = !self.decoding.is_empty();
    }

    fn plan_separate(&mut self, now: u64) {
        let mut budget = self.options.token_budget;
        self.continue_prompts(&mut budget);
        self.admit_waiting(now, &mut budget);
        if self.step.chunks.is_empty() {
            self.grow_decodes();
            self.step.decodes = !self.decoding.is_empty();
        }
    }

    /// Gives the decodes their blocks for the next step, preempting the least urgent sequences where blocks are
    /// missing.
    fn grow_decodes(&mut self) {
        loop {
            let wanted = self.ring.due(self.decode_steps).len() as u32;
            let available = self.cache.available();
            if wanted <= available {
                break;
            }
            let victim = self.least_urgent().expect("a sequence that needs a block is running");
            self.preempt(victim, PreemptReason::BlocksForDecode { missing: wanted - available });
        }
        self.give_blocks(self.decode_steps);
        self.grown = 1;
    }

    /// Gives one block to each sequence that needs one in a decode step.
    fn give_blocks(&mut self, step: u64) {
        self.cache.make_free(self.ring.due(step).len() as u32);
        for at in 0..self.ring.due(step).len() {
            let slot = self.ring.due(step)[at];
            self.give_block(slot);
        }
    }

    pub(crate) fn give_block(&mut self, slot: u32) {
        let sequence = &mut self.sequences[slot];
        self.outstanding -= u32::from(sequence.promised > sequence.blocks());
        self.cache.allocate(1, &mut sequence.table);
    }

    /// Brings cache and tenants' counts to where they would be in the middle of a stretch had its steps been
    /// planned one by one: `begun` steps have been given their blocks, and the tokens of `done` steps are counted.
    /// Call it before querying or submitting anything while a stretch runs.
    pub fn settle(&mut self, begun: u32, done: u32) {
        debug_assert!(self.is_step_running && done <= begun && begun <= self.step.repeats);
        if !self.step.decodes {
            return;
        }
        while self.grown < begun {
            self.give_blocks(self.decode_steps + u64::from(self.grown));
            self.grown += 1;
        }
        if done > self.charged {
            self.queue.charge_decodes(done - self.charged);
            self.charged = done;
        }
    }

    fn continue_prompts(&mut self, budget: &mut u32) {
        for at in 0..self.prefilling.len() {
            self.add_chunk(self.prefilling[at], budget);
        }
    }

    /// Plans as much of a sequence's prompt as budget and chunk size allow.
    pub(crate) fn add_chunk(&mut self, slot: u32, budget: &mut u32) {
        let sequence = &self.sequences[slot];
        let rest = sequence.target - sequence.computed;
        let tokens = rest.min(self.options.chunk_tokens).min(*budget);
        if tokens > 0 {
            *budget -= tokens;
            self.step.shape.add_prefill(sequence.computed.into(), tokens.into());
            self.step.chunks.push(PromptChunk {
                sequence: SequenceId(slot),
                start: sequence.computed,
                tokens,
            });
        }
    }

    /// How often the planned step can be repeated before anything but the context changes: until a sequence
    /// ends or blocks run out. Sequences that wait for blocks or a slot keep waiting until then.
    fn repeats(&mut self, horizon: u32) -> u32 {
        let step = &self.step;
        let is_pure = step.shape.is_decode_only() && step.preempted.is_empty();
        if !is_pure || step.swapped_in_tokens > 0 || self.may_admit_without_ending() {
            return 1;
        }
        let ending = self.next_ending().expect("every decoding sequence ends");
        let limit = u64::from(horizon).min(ending - self.decode_steps) as u32;
        // The first step has its blocks.
        1 + self.ring.steps_within(self.decode_steps + 1, limit - 1, self.cache.available())
    }

    /// Whether a sequence could be admitted before a running one ends: the head of the queue may change, be
    /// dropped, or find more to preempt.
    fn may_admit_without_ending(&self) -> bool {
        let Some(first) = self.queue.first() else { return false };
        let drops = self.options.late == LatePolicy::Drop && self.sequences[first].deadline.is_some();
        drops || self.options.preempts_for_priority || self.queue.may_change_order()
    }

    /// The decode step after which the next sequence ends.
    fn next_ending(&mut self) -> Option<u64> {
        while let Some(std::cmp::Reverse((step, slot, epoch))) = self.endings.peek().copied() {
            if self.is_current(slot, epoch) {
                return Some(step);
            }
            self.endings.pop();
        }
        None
    }
}
