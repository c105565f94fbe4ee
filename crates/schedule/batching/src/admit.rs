//! Which waiting sequences start to run.

use crate::blocks::BlockList;
use crate::options::LatePolicy;
use crate::prefix::Cached;
use crate::reason::{Admission, AdmitReason, Drop, PreemptReason, Wait, WaitReason};
use crate::request::SequenceId;
use crate::scheduler::Scheduler;
use crate::sequence::{Resume, Sequence, SequencePhase};

/// What an admission needs.
struct Demand {
    /// What the tree has of the full blocks that may come from it.
    cached: Cached,
    /// New blocks needed at once.
    fresh: u32,
    /// All blocks promised to it.
    promised: u32,
    /// Blocks promised to its other samples.
    promised_to_samples: u32,
}

impl<B: BlockList> Scheduler<B> {
    /// Admits in the queue's order until tokens, slots or blocks run out; no sequence overtakes another.
    pub(crate) fn admit_waiting(&mut self, now: u64, budget: &mut u32) {
        let is_short_of_blocks = !self.step.preempted.is_empty();
        while let Some(slot) = self.queue.first() {
            if self.drop_if_late(slot, now) {
                continue;
            }
            let reason = if is_short_of_blocks {
                WaitReason::AfterPreemption
            } else if *budget < self.decodes_at_once(slot).max(1) {
                WaitReason::BudgetUsed { token_budget: self.options.token_budget }
            } else {
                match self.demand(slot) {
                    Ok(demand) => {
                        self.admit(slot, &demand, budget);
                        continue;
                    }
                    Err(reason) if self.drive_out_for(slot, reason) => continue,
                    Err(reason) => reason,
                }
            };
            let request = self.sequences[slot].request;
            self.step.wait = Some(Wait { sequence: SequenceId(slot), request, reason });
            return;
        }
    }

    /// Tokens of the step that go to decodes if this sequence is admitted: zero where a prompt comes first.
    fn decodes_at_once(&self, slot: u32) -> u32 {
        match self.sequences[slot].phase {
            SequencePhase::Waiting(Resume::SwapIn { .. } | Resume::Transferred) => {
                self.sequences[slot].samples
            }
            _ => 0,
        }
    }

    /// What the sequence would need, or what it lacks.
    fn demand(&self, slot: u32) -> Result<Demand, WaitReason> {
        let sequence = &self.sequences[slot];
        let max_seqs = self.options.max_seqs;
        if self.slots_taken + sequence.samples > max_seqs {
            return Err(WaitReason::SlotsTaken { max_seqs, wanted: sequence.samples });
        }
        let computes = matches!(sequence.phase, SequencePhase::Waiting(Resume::Prompt | Resume::Recompute));
        // A prompt computes at least its last token; a sequence with its KV present writes one more.
        let tokens = if computes { sequence.target } else { sequence.target + 1 };
        let shareable = match computes && sequence.computes_all {
            true => 0,
            false => (tokens - 1) / self.options.block_tokens,
        };
        let cached = self.cache.cached(&sequence.keys, shareable);
        let total = self.options.blocks_for(tokens);
        let reserve = self.options.reserve_for(sequence.prompt_tokens, sequence.output_tokens);
        let promised = total.max(reserve);
        let own_of_sample = self.options.blocks_for(sequence.prompt_tokens + 1).max(reserve)
            - sequence.prompt_tokens / self.options.block_tokens;
        let promised_to_samples = (sequence.samples - 1) * own_of_sample;
        let fresh = self.options.blocks_for(sequence.target) - cached.blocks;
        let reachable = self.cache.available() - cached.idle;
        if self.decoding.is_empty() && self.prefilling.is_empty() && total - cached.blocks <= reachable {
            // Alone, it may use everything: there is no other sequence for the watermark to protect.
            let promised = promised.min(cached.blocks + reachable);
            let left = cached.blocks + reachable - promised;
            return Ok(Demand {
                cached,
                fresh,
                promised,
                promised_to_samples: promised_to_samples.min(left),
            });
        }
        let needed = promised - cached.blocks + promised_to_samples + self.options.watermark_blocks;
        let available = reachable.saturating_sub(self.outstanding);
        if needed > available {
            return Err(WaitReason::BlocksTaken { needed, available });
        }
        Ok(Demand { cached, fresh, promised, promised_to_samples })
    }

    fn admit(&mut self, slot: u32, demand: &Demand, budget: &mut u32) {
        let Sequence { tenant, place, request, .. } = self.sequences[slot];
        let SequencePhase::Waiting(resume) = self.sequences[slot].phase else {
            unreachable!("only waiting sequences are in the queue")
        };
        self.queue.remove(tenant, place);
        let sequence = &mut self.sequences[slot];
        let pending = sequence.pending();
        sequence.held = self.cache.hold(&demand.cached, &mut sequence.table);
        self.cache.allocate(demand.fresh, &mut sequence.table);
        sequence.promised = demand.promised;
        sequence.promised_to_samples = demand.promised_to_samples;
        self.outstanding += sequence.outstanding();
        self.slots_taken += sequence.samples;
        let cached_tokens = sequence.held.blocks * self.options.block_tokens;
        let reason = match resume {
            Resume::Prompt => AdmitReason::Turn { cached_tokens },
            Resume::Recompute => AdmitReason::Recompute { cached_tokens },
            Resume::SwapIn { .. } => AdmitReason::SwapIn { tokens: sequence.target - cached_tokens },
            Resume::Transferred => AdmitReason::Transferred { tokens: sequence.target },
        };
        self.step.admitted.push(Admission { sequence: SequenceId(slot), request, reason });
        match resume {
            Resume::Prompt | Resume::Recompute => {
                sequence.phase = SequencePhase::Prefilling;
                sequence.computed = cached_tokens;
                self.load.pending_tokens -= u64::from(cached_tokens);
                self.prefilling.push(slot);
                self.queue.charge(tenant, pending - cached_tokens);
                self.add_chunk(slot, budget);
            }
            Resume::SwapIn { .. } | Resume::Transferred => {
                if let AdmitReason::SwapIn { tokens } = reason {
                    self.step.swapped_in_tokens += u64::from(tokens);
                }
                *budget -= self.decodes_at_once(slot);
                self.forget_host_blocks(slot);
                self.enter_with_kv(slot);
            }
        }
    }

    /// Lets a sequence decode whose KV is already present.
    fn enter_with_kv(&mut self, slot: u32) {
        let sequence = &mut self.sequences[slot];
        sequence.computed = sequence.target;
        self.join(slot);
        if self.sequences[slot].samples > 1 {
            self.share_computed(slot);
            self.fork(slot);
        }
    }

    fn drop_if_late(&mut self, slot: u32, now: u64) -> bool {
        let Sequence { phase, deadline: Some(deadline), request, tenant, place, .. } = self.sequences[slot]
        else {
            return false;
        };
        let is_new = phase == SequencePhase::Waiting(Resume::Prompt);
        if self.options.late == LatePolicy::Serve || !is_new || deadline >= now {
            return false;
        }
        self.queue.remove(tenant, place);
        self.retire(slot);
        self.step.dropped.push(Drop { request, deadline, late_by: now - deadline });
        true
    }

    /// Preempts decoding sequences of lower priority, the least urgent first, if that gives the waiting one what
    /// it lacks.
    fn drive_out_for(&mut self, slot: u32, reason: WaitReason) -> bool {
        if !self.options.preempts_for_priority {
            return false;
        }
        let Sequence { priority, request, samples, .. } = self.sequences[slot];
        let lower = self.decoding.iter().copied().filter(|each| self.sequences[*each].priority < priority);
        let mut victims: Vec<u32> = lower.collect();
        victims.sort_by_key(|each| std::cmp::Reverse(self.sequences[*each].place));
        let (mut missing, gain): (u32, fn(&Sequence<B>) -> u32) = match reason {
            WaitReason::SlotsTaken { max_seqs, .. } => (self.slots_taken + samples - max_seqs, |_| 1),
            WaitReason::BlocksTaken { needed, available } => {
                (needed - available, |each| each.table.len() - each.held.blocks + each.outstanding())
            }
            WaitReason::BudgetUsed { .. } | WaitReason::AfterPreemption => return false,
        };
        let mut chosen = 0;
        while missing > 0 && chosen < victims.len() {
            missing = missing.saturating_sub(gain(&self.sequences[victims[chosen]]));
            chosen += 1;
        }
        if missing > 0 {
            return false;
        }
        for victim in &victims[..chosen] {
            self.preempt(*victim, PreemptReason::Priority { of: request });
        }
        chosen > 0
    }
}
