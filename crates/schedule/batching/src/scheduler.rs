//! The scheduler of one replica: requests in, steps out, completions back.
//!
//! `submit` takes requests, `step` plans the next engine step, `complete` says that it ran. Nothing here reads
//! a clock; the caller passes the time in nanoseconds. How a step is planned is in `plan` and `admit`,
//! preemption in `preempt`, and what a completed step changes in `complete`.
//!
//! All decodes advance together, so a sequence keeps no count per token: it remembers the decode step at which
//! it joined and what it had then. A stretch of decode-only steps is one step with `repeats`.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use bedplate_random::mix;

use crate::blocks::{BlockId, BlockList, CountedBlocks};
use crate::cache::{KvCache, Occupancy};
use crate::growth::GrowthRing;
use crate::keys::{BlockKey, BlockKeys};
use crate::options::{OptionsFlaw, SchedulerOptions};
use crate::prefix::{Evicted, Reach};
use crate::queue::{Queue, due};
use crate::reason::RequestRefusal;
use crate::request::{Request, SequenceId, SequenceStart};
use crate::sequence::{Sequence, SequencePhase, SequenceTable};
use crate::step::{Completion, Step};

/// The load of a replica, for a router. It does not change while sequences merely decode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Load {
    /// Prompt tokens yet to be computed, of waiting and of running requests.
    pub pending_tokens: u64,
    /// Prompt tokens of all requests here.
    pub held_tokens: u64,
    /// Sequences here, waiting or running.
    pub sequences: u32,
    pub waiting: u32,
}

/// A scheduled completion: its decode step, its sequence and that sequence's epoch.
type Ending = Reverse<(u64, u32, u32)>;

/// The request scheduler of one replica.
#[derive(Debug, Clone)]
pub struct Scheduler<B = Vec<BlockId>> {
    pub(crate) options: SchedulerOptions,
    pub(crate) cache: KvCache<B>,
    pub(crate) sequences: SequenceTable<B>,
    pub(crate) queue: Queue,
    pub(crate) ring: GrowthRing,
    /// Decode steps so far.
    pub(crate) decode_steps: u64,
    pub(crate) decoding: Vec<u32>,
    /// Sequences whose prompt is being computed, in the order of admission.
    pub(crate) prefilling: Vec<u32>,
    pub(crate) endings: BinaryHeap<Ending>,
    /// Sum over the decoding sequences of the tokens in their KV.
    pub(crate) decode_context: u64,
    pub(crate) slots_taken: u32,
    /// Blocks promised to admitted sequences and not given yet.
    pub(crate) outstanding: u32,
    pub(crate) host_blocks_used: u32,
    pub(crate) arrivals: u64,
    pub(crate) load: Load,
    pub(crate) step: Step,
    pub(crate) completion: Completion,
    pub(crate) is_step_running: bool,
    /// Steps of the running stretch that have their blocks.
    pub(crate) grown: u32,
    /// Steps of the running stretch whose tokens are counted for their tenants.
    pub(crate) charged: u32,
}

impl Scheduler {
    /// The scheduler of an engine.
    pub fn new(options: SchedulerOptions) -> Result<Self, OptionsFlaw> {
        Self::empty(options)
    }

    /// The blocks of a sequence that runs, in the order of its tokens.
    pub fn table(&self, sequence: SequenceId) -> &[BlockId] {
        &self.sequences[sequence.0].table
    }

    /// The blocks of a sequence, where it runs.
    pub fn running_table(&self, sequence: SequenceId) -> Option<&[BlockId]> {
        let runs = self.sequences.contains(sequence.0)
            && matches!(
                self.sequences[sequence.0].phase,
                SequencePhase::Prefilling | SequencePhase::Decoding
            );
        runs.then(|| self.table(sequence))
    }

    /// From now on remembers which prefixes are evicted, for a caller that keeps them elsewhere.
    pub fn watch_evictions(&mut self) {
        self.cache.watch_evictions();
    }

    /// The blocks evicted since this was last asked.
    pub fn take_evicted(&mut self) -> Vec<Evicted> {
        self.cache.take_evicted()
    }

    /// Makes room for KV that the caller has from elsewhere, under the keys of a prompt: how many of its blocks are cached already,
    /// and the blocks to fill for those that follow, as far as there is room beside running sequences. They are evictable until a
    /// request holds them. Only between `complete` and the next `step`.
    pub fn adopt(&mut self, keys: &BlockKeys) -> (u32, Vec<BlockId>) {
        assert!(!self.is_step_running, "blocks are adopted between steps");
        if !self.options.keeps_prefixes || keys.is_empty() {
            return (0, Vec::new());
        }
        let cached = self.cache.cached(keys, keys.len());
        let kept = self.outstanding + self.options.watermark_blocks + cached.idle;
        self.cache.adopt(keys, self.cache.available().saturating_sub(kept))
    }
}

impl Scheduler<CountedBlocks> {
    /// The scheduler of a simulated replica, which decides the same and knows no blocks by their numbers.
    pub fn counting(options: SchedulerOptions) -> Result<Self, OptionsFlaw> {
        Self::empty(options)
    }
}

impl<B: BlockList> Scheduler<B> {
    fn empty(options: SchedulerOptions) -> Result<Self, OptionsFlaw> {
        if let Some(flaw) = options.flaw() {
            return Err(flaw);
        }
        Ok(Self {
            cache: KvCache::new(options.blocks, options.keeps_prefixes),
            sequences: SequenceTable::new(),
            queue: Queue::new(&options.fairness),
            ring: GrowthRing::new(options.block_tokens),
            decode_steps: 0,
            decoding: Vec::new(),
            prefilling: Vec::new(),
            endings: BinaryHeap::new(),
            decode_context: 0,
            slots_taken: 0,
            outstanding: 0,
            host_blocks_used: 0,
            arrivals: 0,
            load: Load::default(),
            step: Step::default(),
            completion: Completion::default(),
            is_step_running: false,
            grown: 0,
            charged: 0,
            options,
        })
    }

    pub fn options(&self) -> &SchedulerOptions {
        &self.options
    }

    /// Queues a request, or says why it can never run here.
    pub fn submit(&mut self, mut request: Request, now: u64) -> Result<SequenceId, RequestRefusal> {
        if let Some(refusal) = self.refusal(&request) {
            return Err(refusal);
        }
        if request.samples > 1 {
            complete_keys(&mut request, self.options.block_tokens);
        } else if !self.options.keeps_prefixes {
            request.keys = BlockKeys::default();
        }
        let tenant = self.queue.enter(request.tenant);
        let place = (due(&request, now, &self.options), self.arrivals, self.sequences.next());
        self.arrivals += 1;
        let sequence = Sequence::new(request, tenant, place);
        self.load.pending_tokens += u64::from(sequence.pending());
        self.load.held_tokens += u64::from(sequence.weight);
        self.load.sequences += 1;
        let slot = self.sequences.add(sequence);
        self.queue.push(tenant, place);
        Ok(SequenceId(slot))
    }

    /// Why a request can never run here.
    pub fn refusal(&self, request: &Request) -> Option<RequestRefusal> {
        let Request { prompt_tokens, output_tokens, samples, .. } = *request;
        let given = u32::from(request.start == SequenceStart::Transferred);
        if prompt_tokens == 0 || output_tokens <= given || samples == 0 {
            return Some(RequestRefusal::NothingToDo { prompt_tokens, output_tokens, samples });
        }
        let tokens = u64::from(prompt_tokens) + u64::from(output_tokens);
        let SchedulerOptions { context_limit: limit, blocks, max_seqs, .. } = self.options;
        if tokens > u64::from(limit) {
            return Some(RequestRefusal::ContextTooLong { tokens, limit });
        }
        // The last token is never in the KV.
        let needed = (tokens - 1).div_ceil(u64::from(self.options.block_tokens));
        if needed > u64::from(blocks) {
            return Some(RequestRefusal::MoreBlocksThanExist { needed, blocks });
        }
        (u32::from(samples) > max_seqs).then_some(RequestRefusal::MoreSamplesThanSlots { samples, max_seqs })
    }

    /// How many tokens of a prompt are in the prefix tree, of which these are the keys; those of its output may follow.
    pub fn cached_tokens(&self, keys: &BlockKeys, prompt_tokens: u32) -> u32 {
        self.cache.known(keys, prompt_tokens / self.options.block_tokens) * self.options.block_tokens
    }

    pub fn load(&self) -> Load {
        Load { waiting: self.queue.len(), ..self.load }
    }

    pub fn occupancy(&self) -> Occupancy {
        self.cache.occupancy()
    }

    /// The step that was planned last.
    pub fn last_step(&self) -> &Step {
        &self.step
    }

    /// Whether there are no requests.
    pub fn is_empty(&self) -> bool {
        self.load.sequences == 0
    }

    /// Sequences that decode, in an arbitrary but deterministic order.
    pub fn decoding(&self) -> impl ExactSizeIterator<Item = SequenceId> {
        self.decoding.iter().copied().map(SequenceId)
    }

    /// What the step that was completed last changed.
    pub fn completion(&self) -> &Completion {
        &self.completion
    }

    /// Keeps count for a `PrefixIndex` from now on.
    pub fn watch_reach(&mut self) {
        self.cache.tree_mut().watch_changes();
    }

    pub(crate) fn take_reach(&mut self) -> impl Iterator<Item = Reach> {
        self.cache.tree_mut().take_changes()
    }

    /// Reports generated tokens as keys of full blocks, so that later requests can share them.
    pub fn add_keys(&mut self, sequence: SequenceId, keys: &[BlockKey]) {
        if self.options.keeps_prefixes {
            self.sequences[sequence.0].keys.extend(keys.iter().copied());
        }
    }

    /// Ends a sequence before its output is full: it is done, or its user went away. Only between
    /// `complete` and the next `step`.
    pub fn stop(&mut self, sequence: SequenceId) {
        assert!(!self.is_step_running, "a sequence is stopped between steps");
        let slot = sequence.0;
        if !self.sequences.contains(slot) {
            return;
        }
        match self.sequences[slot].phase {
            SequencePhase::Waiting(_) => {
                let Sequence { tenant, place, .. } = self.sequences[slot];
                self.queue.remove(tenant, place);
                self.forget_host_blocks(slot);
                self.retire(slot);
            }
            SequencePhase::Prefilling | SequencePhase::Decoding => {
                self.take_out(slot);
                self.retire(slot);
            }
            SequencePhase::Gone => {}
        }
    }
}

/// Samples share their prompt through the tree, so its blocks need keys, even if unique ones.
fn complete_keys(request: &mut Request, block_tokens: u32) {
    let own = BlockKey(mix(request.id.0 ^ 0x73616d_706c6573));
    let origin = request.keys.last().unwrap_or(own).then(own.0);
    request.keys.push_run(origin.0, request.prompt_tokens / block_tokens);
}
