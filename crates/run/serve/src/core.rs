//! The engine's own thread: plan a step, compute its rows, sample tokens, tell them.
//!
//! The scheduler counts one token per sequence and step. Where speculative tokens were right a sequence has more: they are told at once, their keys
//! and values are in place already, and the scheduler catches up in steps that need no rows for the sequence.
//!
//! A token is told after the device that computed it was found well; see [`Core::trouble`].

mod blocks;
#[cfg(test)]
mod predicted_tests;
mod prompt;
mod sample;
mod speculation;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bedplate_batching::{
    Completion, Request, RequestId, Scheduler, SequenceId, SequenceProgress, SequenceStart, StepShape,
};
use bedplate_kernels::{CudaError, Device, Element};
use bedplate_network::{Adapter, KvPool, Network, PackedWeights, RowAdapters, ServingRoom};

pub(crate) use blocks::Adopted;

use crate::ask::Wants;
use crate::compose::{Composed, TokenRun};
use crate::draft::{DraftModel, Speculation};
use crate::events;
use crate::keys::EngineKeys;
use crate::live::{LiveRequest, LiveSequence};
use crate::speculate::speculate;
use crate::spill::Spill;
use crate::worker_group::{WorkerGroup, WorkerOrder};
use crate::{Ask, EngineState, Refusal, SampleEvent, Teller};

const IS_HERE: &str = "the scheduler names sequences that are here";

/// Sequences that are speculated on at most, and the blocks that stand in for theirs.
pub(crate) const MOST_SPECULATED: usize = 8;

/// What an engine computes with.
pub(crate) struct EngineParts<E: Element> {
    pub(crate) device: Device,
    pub(crate) network: Network,
    pub(crate) weights: PackedWeights<E>,
    pub(crate) pool: KvPool<E>,
    pub(crate) room: ServingRoom<E>,
    pub(crate) scheduler: Scheduler,
    pub(crate) adapters: Vec<(String, Adapter)>,
    pub(crate) spill: Spill,
    pub(crate) keys: EngineKeys,
    pub(crate) end_tokens: Vec<u32>,
    pub(crate) draft: Option<DraftModel<E>>,
    pub(crate) speculative: usize,
    /// Rows of a step that have room for logits.
    pub(crate) wanted: usize,
    pub(crate) seed: u64,
    /// The other ranks, where the model is cut.
    pub(crate) group: Option<WorkerGroup>,
}

pub(crate) struct Core<E: Element> {
    parts: EngineParts<E>,
    jobs: BTreeMap<u64, LiveRequest>,
    slots: Vec<Option<LiveSequence>>,
    swapped: BTreeMap<u32, Vec<Box<[u8]>>>,
    spares: Vec<u32>,
    composed: Composed,
    /// A piece of a prompt whose log-probabilities are wanted.
    piece: Composed,
    logits: Logits,
    /// Requests that have finished and were not asked for.
    finished: u32,
    began: Instant,
    state: EngineState,
    shared: Arc<Mutex<EngineState>>,
    log: StepLog,
}

/// What a step held and how long it took, from its plan to the last token told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepRecord {
    pub shape: StepShape,
    pub took: Duration,
}

/// Steps since they were asked for; none where nobody asked.
pub(crate) type StepLog = Arc<Mutex<Option<Vec<StepRecord>>>>;

/// Room for sampling.
#[derive(Default)]
struct Logits {
    row: Vec<f32>,
    changed: Vec<f32>,
    mask: Vec<u32>,
    /// After each wanted row, where a GPU has found it: the most likely token, or the one that it has sampled for a sequence.
    found: Vec<u32>,
    sampled_for: Vec<Option<SequenceId>>,
}

impl<E: Element> Core<E> {
    pub(crate) fn new(parts: EngineParts<E>, shared: Arc<Mutex<EngineState>>, log: StepLog) -> Self {
        let blocks = parts.scheduler.options().blocks;
        let vocab = parts.network.architecture().transformer.vocab as usize;
        let spares = if parts.speculative > 0 { MOST_SPECULATED } else { 0 };
        let mask = vec![0; vocab.div_ceil(32)];
        let logits = Logits { row: vec![0.0; vocab], mask, ..Logits::default() };
        Self {
            parts,
            jobs: BTreeMap::new(),
            slots: Vec::new(),
            swapped: BTreeMap::new(),
            spares: (blocks..blocks + spares as u32).collect(),
            composed: Composed::default(),
            piece: Composed::default(),
            logits,
            finished: 0,
            began: Instant::now(),
            state: EngineState::default(),
            shared,
            log,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// Takes a request that the handle has checked.
    pub(crate) fn submit(&mut self, id: u64, ask: Ask, adapter: Option<usize>, teller: Teller) {
        let (output_tokens, samples, seed) = match &ask.wants {
            Wants::Text(text) => (text.counted_tokens(), text.samples, text.sampling.seed),
            Wants::Embedding | Wants::Blocks => (1, 1, None),
        };
        let keys = self.parts.keys.of(&ask.prompt, adapter);
        let computes_all = ask.wants_prompt().is_some();
        if !computes_all {
            self.restore(&keys);
        }
        let request = Request {
            id: RequestId(id),
            tenant: ask.tenant,
            priority: ask.priority,
            prompt_tokens: ask.prompt.len() as u32,
            output_tokens,
            samples,
            deadline: None,
            keys: keys.clone(),
            computes_all,
            start: SequenceStart::Prompt,
        };
        let now = self.now();
        events::asked(id, ask.prompt.len(), samples);
        match self.parts.scheduler.submit(request, now) {
            Err(refusal) => {
                let why = Refusal::Never(refusal).to_string();
                events::failed(id, &why);
                teller.tell(SampleEvent::Failed(why));
                self.finished += 1;
            }
            Ok(sequence) => {
                let seed = seed.unwrap_or_else(|| bedplate_random::mix(self.parts.seed ^ id));
                let mut job = LiveRequest {
                    ask,
                    teller,
                    seed,
                    adapter,
                    begun: 0,
                    left: samples,
                    is_admitted: false,
                    told_blocks: 0,
                    told_prompt: 1,
                };
                let live = job.begin_sample(id, &keys);
                self.put(sequence, live);
                self.jobs.insert(id, job);
            }
        }
    }

    fn put(&mut self, sequence: SequenceId, live: LiveSequence) {
        let at = sequence.0 as usize;
        if self.slots.len() <= at {
            self.slots.resize_with(at + 1, || None);
        }
        debug_assert!(self.slots[at].is_none(), "a sequence's number is used once at a time");
        self.slots[at] = Some(live);
    }

    fn live(&mut self, sequence: SequenceId) -> &mut LiveSequence {
        self.slots[sequence.0 as usize].as_mut().expect(IS_HERE)
    }

    /// Tells all requests that they cannot be finished.
    pub(crate) fn fail(&self, reason: &str) {
        for (id, job) in &self.jobs {
            events::failed(*id, reason);
            job.teller.tell(SampleEvent::Failed(reason.to_owned()));
        }
    }

    /// Shows which GPU has failed, where one has.
    pub(crate) fn tell_fault(&mut self) {
        if let Err(CudaError::Fault(fault)) = self.parts.device.check() {
            events::device_failed(&fault);
            self.state.fault = Some(fault);
            self.publish();
        }
    }

    /// Stops what nobody waits for any more.
    pub(crate) fn cancel_left(&mut self) {
        let is_left = |job: &LiveRequest| job.teller.is_cancelled();
        let gone: Vec<u64> = self.jobs.iter().filter(|(_, job)| is_left(job)).map(|(id, _)| *id).collect();
        for id in gone {
            events::cancelled(id);
            self.close(id);
            self.stop_sequences(|live| live.request == id);
        }
        self.end_samples();
    }

    /// Ends samples of which no more is wanted, while others of their request go on.
    fn end_samples(&mut self) {
        let ended =
            self.jobs.iter().flat_map(|(id, job)| job.teller.take_ended().into_iter().map(|of| (*id, of)));
        for (id, sample) in ended.collect::<Vec<_>>() {
            let stopped = self.stop_sequences(|live| (live.request, live.sample) == (id, sample));
            let Some(job) = self.jobs.get_mut(&id) else { continue };
            job.left -= stopped;
            if job.left == 0 {
                self.finish(id);
            }
        }
    }

    /// A request has got all that it asked for.
    fn finish(&mut self, request: u64) -> Option<LiveRequest> {
        events::finished(request);
        self.close(request)
    }

    /// A request is done with.
    fn close(&mut self, request: u64) -> Option<LiveRequest> {
        let job = self.jobs.remove(&request);
        self.finished += u32::from(job.is_some());
        job
    }

    /// How many were stopped.
    fn stop_sequences(&mut self, is_meant: impl Fn(&LiveSequence) -> bool) -> u16 {
        let mut stopped = 0;
        for at in 0..self.slots.len() {
            if self.slots[at].as_ref().is_some_and(&is_meant) {
                self.parts.scheduler.stop(SequenceId(at as u32));
                self.forget(SequenceId(at as u32));
                stopped += 1;
            }
        }
        stopped
    }

    /// Gives up a sequence that the scheduler no longer has.
    fn forget(&mut self, sequence: SequenceId) {
        self.swapped.remove(&sequence.0);
        let live = self.slots[sequence.0 as usize].take();
        self.spares.extend(live.and_then(|live| live.spare).map(|spare| spare.block));
    }

    /// One step: from plan to tokens.
    pub(crate) fn step(&mut self) {
        let begun = Instant::now();
        let now = self.now();
        self.parts.scheduler.step(now, 1);
        self.move_blocks();
        self.tell_admissions();
        if self.parts.scheduler.last_step().is_idle() {
            return;
        }
        let decoding = self.decoding();
        let mut runs = self.runs(&decoding);
        let pieces = self.take_pieces(&mut runs);
        self.composed.fill(&self.parts.scheduler, &mut runs);
        let prepared = begun.elapsed();
        self.compute_pieces(pieces);
        self.compute(&runs);
        if self.trouble().is_err() {
            return;
        }
        self.tell_last_of_pieces(&runs);
        let computed = begun.elapsed();
        self.finish_step(&decoding, &runs);
        let whole = begun.elapsed();
        self.state.steps += 1;
        if let Some(log) = &mut *self.log.lock().unwrap_or_else(std::sync::PoisonError::into_inner) {
            log.push(StepRecord { shape: self.parts.scheduler.last_step().shape, took: whole });
        }
        self.state.step_nanoseconds += whole.as_nanos() as u64;
        self.state.host_nanoseconds += (prepared + (whole - computed)).as_nanos() as u64;
    }

    fn decoding(&self) -> Vec<SequenceId> {
        let scheduler = &self.parts.scheduler;
        if scheduler.last_step().decodes { scheduler.decoding().collect() } else { Vec::new() }
    }

    fn tell_admissions(&mut self) {
        for admission in &self.parts.scheduler.last_step().admitted {
            let Some(job) = self.jobs.get_mut(&admission.request.0) else { continue };
            if let bedplate_batching::AdmitReason::Turn { cached_tokens } = admission.reason
                && !job.is_admitted
            {
                job.is_admitted = true;
                events::admitted(admission.request.0, cached_tokens);
                self.state.prompt_tokens += job.ask.prompt.len() as u64;
                self.state.cached_tokens += u64::from(cached_tokens);
                job.tell(SampleEvent::Admitted { cached_tokens });
            }
        }
    }

    /// The tokens that the step computes.
    fn runs(&mut self, decoding: &[SequenceId]) -> Vec<TokenRun> {
        let chunks = self.parts.scheduler.last_step().chunks.clone();
        let mut runs: Vec<TokenRun> = chunks
            .iter()
            .map(|chunk| {
                let live = self.live(chunk.sequence);
                let range = chunk.start as usize..(chunk.start + chunk.tokens) as usize;
                // Speculative tokens that were right before a preemption need not be sampled again.
                let is_wanted = range.end == live.tokens.len();
                TokenRun {
                    sequence: chunk.sequence,
                    first: range.start,
                    tokens: live.tokens[range].to_vec(),
                    wanted: usize::from(is_wanted),
                    adapter: live.adapter,
                    spare: None,
                }
            })
            .collect();
        runs.extend(decoding.iter().filter_map(|sequence| self.lost_run(*sequence)));
        let speculative = if decoding.len() <= MOST_SPECULATED { self.parts.speculative } else { 0 };
        let waiting = decoding.iter().copied().filter(|sequence| self.ahead_of(*sequence) == 0);
        let mut speculated: Vec<Speculation> = waiting
            .collect::<Vec<_>>()
            .into_iter()
            .map(|of| self.room_to_speculate(of, speculative))
            .collect();
        let EngineParts { device, scheduler, draft, .. } = &mut self.parts;
        match draft {
            Some(draft) => draft.speculate(device, scheduler, &mut speculated),
            None => speculated.iter_mut().for_each(|of| of.tokens = speculate(&of.text, of.most)),
        }
        runs.extend(speculated.into_iter().map(|speculation| self.decode_run(speculation)));
        runs
    }

    fn compute(&mut self, runs: &[TokenRun]) {
        if self.composed.is_empty() {
            return;
        }
        let (filled, samples) = (self.take_filled(runs), self.samples(runs));
        let EngineParts { device, network, weights, pool, room, adapters, group, .. } = &mut self.parts;
        if let Some(group) = group {
            group.say(&WorkerOrder::step(&self.composed.rows()));
        }
        let rows: Vec<_> =
            self.composed.adapted.iter().map(|(rows, at)| (rows.clone(), &adapters[*at].1)).collect();
        let (step, adapters) = (self.composed.rows(), RowAdapters { rows: &rows });
        match filled.is_empty() {
            true => network.answer(device, weights, pool, &step, adapters, room),
            false => network.answer_by_layer(device, weights, pool, &step, adapters, room, |layer, pool| {
                filled.iter().for_each(|filled| filled.tell(device, pool, layer));
            }),
        }
        room.sample(device, &samples);
        room.read_found(device, &mut self.logits.found);
    }

    /// Why the device or the ranks of the model cannot go on, if they cannot.
    pub(crate) fn trouble(&self) -> Result<(), String> {
        self.parts.device.check().map_err(|error| error.to_string())?;
        self.parts.group.as_ref().and_then(WorkerGroup::trouble).map_or(Ok(()), Err)
    }

    /// Nothing is to be done for now.
    pub(crate) fn rest(&self) {
        self.parts.group.iter().for_each(|group| group.say(&WorkerOrder::Rest));
    }

    /// The other ranks are not needed any more.
    pub(crate) fn dismiss(&self) {
        self.parts.group.iter().for_each(|group| group.say(&WorkerOrder::End));
    }

    /// Tells the scheduler, samples and tells tokens, and ends what has ended.
    fn finish_step(&mut self, decoding: &[SequenceId], runs: &[TokenRun]) {
        self.report_keys(decoding);
        self.parts.scheduler.complete(1);
        // Forked samples have been given blocks, into which the part of the prompt is copied below.
        self.parts.spill_evicted();
        let completion = self.parts.scheduler.completion().clone();
        // A number is free for a forked sample as soon as its sequence is finished, so those that decoded come first.
        for sequence in decoding {
            self.advance_or_end(*sequence, *sequence, runs, &completion);
        }
        // Samples follow the sequence that they are forked from. It may end with its first token: its block is known before, and
        // nothing is written there until the next step.
        let (mut origin, mut part) = (SequenceId(0), None);
        for SequenceProgress { sequence, request, .. } in completion.started.iter().copied() {
            match self.slots.get(sequence.0 as usize).is_some_and(Option::is_some) {
                true => (origin, part) = (sequence, self.last_of_prompt(sequence)),
                false => self.start_sample(sequence, request, part),
            }
            self.advance_or_end(sequence, origin, runs, &completion);
        }
        for preemption in &completion.preempted {
            self.start_sample(preemption.sequence, preemption.request, None);
        }
    }

    /// A token more for a sequence, sampled after the last row of `origin`, and its end where that was the last.
    fn advance_or_end(
        &mut self,
        sequence: SequenceId,
        origin: SequenceId,
        runs: &[TokenRun],
        completion: &Completion,
    ) {
        let Some(live) = &self.slots[sequence.0 as usize] else { return };
        let request = RequestId(live.request);
        let has_ended = self.advance(sequence, origin, runs);
        let is_this =
            |progress: &&SequenceProgress| (progress.sequence, progress.request) == (sequence, request);
        let is_finished = completion.finished.iter().any(|progress| is_this(&progress));
        if has_ended && !is_finished {
            self.parts.scheduler.stop(sequence);
        }
        if has_ended || is_finished {
            self.forget(sequence);
        } else {
            self.free_spare(sequence);
        }
    }

    /// Keys of the blocks that this step filled.
    fn report_keys(&mut self, decoding: &[SequenceId]) {
        let block_tokens = self.parts.scheduler.options().block_tokens as usize;
        for sequence in decoding {
            let keys = self.parts.keys;
            let live = self.live(*sequence);
            let computed = live.counted();
            let new = live.take_keys(&keys, block_tokens, computed);
            if !new.is_empty() {
                self.parts.scheduler.add_keys(*sequence, &new);
            }
        }
    }

    /// The block that the prompt of a sequence that runs fills in part.
    fn last_of_prompt(&self, sequence: SequenceId) -> Option<u32> {
        let block_tokens = self.parts.scheduler.options().block_tokens as usize;
        let prompt = self.slots[sequence.0 as usize].as_ref()?.prompt;
        let table = self.parts.scheduler.running_table(sequence)?;
        table.get(prompt / block_tokens).filter(|_| !prompt.is_multiple_of(block_tokens)).map(|block| block.0)
    }

    /// Gives a forked sample a state of its own and, where it runs, its own copy of the block that the prompt fills in part.
    fn start_sample(&mut self, sequence: SequenceId, request: RequestId, part: Option<u32>) {
        let block_tokens = self.parts.scheduler.options().block_tokens as usize;
        let Some(job) = self.jobs.get_mut(&request.0) else { return };
        let full = job.ask.prompt.len() / block_tokens;
        let keys = self.parts.keys.of(&job.ask.prompt[..full * block_tokens], job.adapter);
        let live = job.begin_sample(request.0, &keys);
        self.put(sequence, live);
        if let (Some(from), Some(to)) = (part, self.last_of_prompt(sequence)) {
            self.copy_block(from, to);
        }
    }

    /// Requests that have finished since this was last asked.
    pub(crate) fn take_finished(&mut self) -> u32 {
        std::mem::take(&mut self.finished)
    }

    pub(crate) fn publish(&mut self) {
        let (load, occupancy) = (self.parts.scheduler.load(), self.parts.scheduler.occupancy());
        self.state.requests = self.jobs.len() as u32;
        self.state.waiting = load.waiting;
        self.state.running = load.sequences - load.waiting;
        self.state.used_blocks = occupancy.used();
        self.state.idle_blocks = occupancy.idle;
        self.state.total_blocks = occupancy.total;
        let mut shared = self.shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        shared.clone_from(&self.state);
    }
}
