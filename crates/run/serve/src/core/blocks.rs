//! Blocks on their way: evicted, swapped, spare, told to others and taken over from them.

use bedplate_batching::{BlockId, BlockKeys, SequenceId};
use bedplate_kernels::{Device, Element};
use bedplate_network::KvPool;

use super::{Core, EngineParts};
use crate::ask::Wants;
use crate::compose::TokenRun;
use crate::events;
use crate::live::{LiveSequence, Spare};
use crate::worker_group::WorkerOrder;
use crate::{SampleEvent, Teller};

/// Blocks of a prompt that another engine computed.
pub(crate) struct Adopted {
    pub(crate) prompt: Vec<u32>,
    pub(crate) adapter: Option<usize>,
    /// The number of the first block.
    pub(crate) first: usize,
    pub(crate) blocks: Vec<Box<[u8]>>,
}

impl<E: Element> Core<E> {
    /// Carries out what the plan says about blocks, before anything is written to them.
    pub(super) fn move_blocks(&mut self) {
        self.parts.spill_evicted();
        let EngineParts { device, pool, scheduler, .. } = &mut self.parts;
        for out in &scheduler.last_step().swapped_out {
            events::swapped_out(out.sequence.0, out.blocks.len());
            let blocks = out.blocks.iter().map(|block| read_block(device, pool, block.0)).collect();
            self.swapped.insert(out.sequence.0, blocks);
        }
        for admission in &scheduler.last_step().admitted {
            if let Some(blocks) = self.swapped.remove(&admission.sequence.0) {
                // What the prefix tree still had is in the table already, and equal.
                for (block, bytes) in scheduler.table(admission.sequence).iter().zip(&blocks) {
                    pool.write(device, block.0, bytes);
                }
            }
        }
        self.settle_spares();
    }

    /// Blocks that stood in for others, where the scheduler has given these now; those of preempted sequences are of no use.
    pub(super) fn settle_spares(&mut self) {
        let preempted: Vec<SequenceId> =
            self.parts.scheduler.last_step().preempted.iter().map(|preemption| preemption.sequence).collect();
        self.state.preemptions += preempted.len() as u64;
        self.parts.scheduler.last_step().preempted.iter().for_each(|each| events::preempted(each.request.0));
        for sequence in &preempted {
            let live = self.live(*sequence);
            (live.seen, live.is_behind) = (0, live.ahead > 0);
        }
        let mut copies = Vec::new();
        for (at, live) in self.slots.iter_mut().enumerate() {
            let Some(LiveSequence { spare: spare @ Some(_), .. }) = live else { continue };
            let Some(Spare { index, block }) = *spare else { continue };
            let sequence = SequenceId(at as u32);
            if preempted.contains(&sequence) {
                *spare = None;
                self.spares.push(block);
            } else if let Some(given) = self.parts.scheduler.table(sequence).get(index) {
                copies.push((block, given.0));
                *spare = None;
                self.spares.push(block);
            }
        }
        copies.into_iter().for_each(|(from, to)| self.copy_block(from, to));
    }

    /// Copies a block on all ranks.
    pub(super) fn copy_block(&mut self, from: u32, to: u32) {
        let EngineParts { device, pool, group, .. } = &mut self.parts;
        if let Some(group) = group {
            group.say(&WorkerOrder::Copy(vec![(from, to)]));
        }
        pool.copy(device, &[(from, to)]);
    }

    /// Gives spare blocks back that no right speculative token lies in.
    pub(super) fn free_spare(&mut self, sequence: SequenceId) {
        let block_tokens = self.parts.scheduler.options().block_tokens as usize;
        let Some(live) = &mut self.slots[sequence.0 as usize] else { return };
        // The last token is not in the pool.
        if let Some(spare) = live.spare
            && live.tokens.len() <= spare.index * block_tokens + 1
        {
            live.spare = None;
            self.spares.push(spare.block);
        }
    }

    /// The blocks that this step fills and somebody wants.
    pub(super) fn take_filled(&mut self, runs: &[TokenRun]) -> Vec<Filled> {
        let block_tokens = self.parts.scheduler.options().block_tokens as usize;
        let mut all = Vec::new();
        for run in runs {
            let Some(live) = &self.slots[run.sequence.0 as usize] else { continue };
            let Some(job) = self.jobs.get_mut(&live.request) else { continue };
            let (first, end) = (job.told_blocks, (run.first + run.tokens.len()) / block_tokens);
            if matches!(job.ask.wants, Wants::Blocks) && end > first {
                job.told_blocks = end;
                let blocks = self.parts.scheduler.table(run.sequence)[first..end].to_vec();
                all.push(Filled { first, blocks, teller: job.teller.clone() });
            }
        }
        all
    }

    /// Takes over blocks from elsewhere.
    pub(crate) fn adopt(&mut self, adopted: Adopted) {
        let Adopted { prompt, adapter, first, blocks } = adopted;
        let EngineParts { pool, scheduler, keys, .. } = &mut self.parts;
        let end = (first + blocks.len()) * scheduler.options().block_tokens as usize;
        if end > prompt.len() || blocks.iter().any(|block| block.len() != pool.block_bytes()) {
            return;
        }
        let keys = keys.of(&prompt[..end], adapter);
        // Without the blocks before them, these are nobody's prefix.
        let cached = scheduler.cached_tokens(&keys, end as u32) / scheduler.options().block_tokens;
        if (cached as usize) < first {
            return;
        }
        let (cached, given) = scheduler.adopt(&keys);
        self.parts.spill_evicted();
        let EngineParts { device, pool, .. } = &mut self.parts;
        for (block, bytes) in given.iter().zip(&blocks[cached as usize - first..]) {
            pool.write(device, block.0, bytes);
        }
    }

    /// Brings blocks of a prompt back that fell out of the pool.
    pub(super) fn restore(&mut self, keys: &BlockKeys) {
        let EngineParts { scheduler, spill, .. } = &mut self.parts;
        if !spill.is_used() {
            return;
        }
        let block_tokens = scheduler.options().block_tokens;
        let cached = scheduler.cached_tokens(keys, keys.len() * block_tokens) / block_tokens;
        let missing = || keys.iter().skip(cached as usize);
        let kept: Vec<Box<[u8]>> = missing().map_while(|key| spill.take(key)).collect();
        let (_, blocks) = scheduler.adopt(&keys.first(cached + kept.len() as u32));
        self.parts.spill_evicted();
        let EngineParts { device, pool, spill, .. } = &mut self.parts;
        let mut kept = missing().zip(kept);
        for (block, (_, bytes)) in blocks.iter().zip(&mut kept) {
            pool.write(device, block.0, &bytes);
        }
        kept.for_each(|(key, bytes)| spill.put(key, bytes));
    }
}

impl<E: Element> EngineParts<E> {
    /// Keeps blocks that had to leave the pool elsewhere. Whoever lets the scheduler give blocks away calls this before anything is
    /// written to them.
    pub(super) fn spill_evicted(&mut self) {
        let Self { device, pool, scheduler, spill, .. } = self;
        for evicted in scheduler.take_evicted() {
            spill.put(evicted.key, read_block(device, pool, evicted.block.0));
        }
    }
}

/// Blocks that a step fills, told layer by layer.
pub(super) struct Filled {
    first: usize,
    blocks: Vec<BlockId>,
    teller: Teller,
}

impl Filled {
    pub(super) fn tell<E: Element>(&self, device: &Device, pool: &KvPool<E>, layer: usize) {
        let offset = (0..layer).map(|before| pool.layer_bytes(before)).sum();
        let read = |block: &BlockId| {
            let mut bytes = vec![0; pool.layer_bytes(layer)].into_boxed_slice();
            pool.read_layer(device, layer, block.0, &mut bytes);
            bytes
        };
        let blocks = self.blocks.iter().map(read).collect();
        if device.check().is_ok() {
            self.teller.tell(SampleEvent::Blocks { first: self.first, offset, blocks });
        }
    }
}

fn read_block<E: Element>(device: &Device, pool: &KvPool<E>, block: u32) -> Box<[u8]> {
    let mut bytes = vec![0; pool.block_bytes()].into_boxed_slice();
    pool.read(device, block, &mut bytes);
    bytes
}
