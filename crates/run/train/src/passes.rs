//! A micro-batch's way through this rank's blocks and back.

mod assess;
mod chunks;
mod mail;

use std::ops::Range;

use bedplate_comm::CommError;
use bedplate_data::Batch;
use bedplate_kernels::Device;
use bedplate_network::{BatchTokens, Network, Room};

use crate::adapter::Adapters;
use crate::checkpoint::Snapshot;
use crate::copies::Copies;
use crate::pipeline::{Direction, Pass};
use crate::ranks::RunRanks;
use crate::store::WeightStore;
use crate::trained::Trained;
use crate::trainer::{Trainer, micro_batches};
use crate::upkeep::TrainedState;
use crate::{TrainError, adapter};
use chunks::SequenceChunk;
use mail::expect;

pub(crate) use chunks::Chunks;

/// What a target's loss counts in a step, and a micro-batch's share of it by which the load-balancing loss counts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Weighing {
    pub(crate) scale: f32,
    pub(crate) balance: f32,
}

/// Takes over the rows of a batch that are a rank's.
fn pick(from: &Batch, rows: &[usize], to: &mut Batch) {
    let pick = |from: &[u32], to: &mut Vec<u32>| {
        to.clear();
        to.extend(rows.iter().map(|row| from[*row]));
    };
    pick(&from.tokens, &mut to.tokens);
    pick(&from.targets, &mut to.targets);
    pick(&from.first_keys, &mut to.first_keys);
    pick(&from.positions, &mut to.positions);
    to.padding.clone_from(&from.padding);
}

/// A batch as a network takes it.
pub fn tokens_of(batch: &Batch) -> BatchTokens<'_> {
    BatchTokens {
        tokens: &batch.tokens,
        targets: &batch.targets,
        positions: &batch.positions,
        first_keys: &batch.first_keys,
        padding: &batch.padding,
    }
}

/// The blocks of a chunk but the head.
fn before_head(blocks: &Range<usize>, network: &Network) -> Range<usize> {
    blocks.start..blocks.end.min(network.blocks().len() - 1)
}

impl<E: Trained> Trainer<E> {
    /// Forward and backward of all micro-batches; gives the sum of this rank's losses. Gradients are those of all ranks
    /// afterwards.
    pub(crate) fn learn(&mut self, batches: &[Batch], weighing: Weighing) -> Result<f64, TrainError> {
        match &mut self.adapters {
            None => self.store.clear_gradients(&self.device),
            Some(adapters) => adapters.clear_gradient(&self.device),
        }
        let count = micro_batches(&self.config, &self.ranks).max(batches.len());
        let passes = self.ranks.stage().passes(count);
        let mut uses = self.uses(&passes).into_iter();
        uses.next();
        let mut loss = 0.0;
        for (number, pass) in passes.iter().enumerate() {
            let next = passes.get(number + 1);
            let batch = batches.get(pass.micro_batch);
            let weighing = Weighing { balance: batch.map_or(0.0, |_| weighing.balance), ..weighing };
            match pass.direction {
                Direction::Forward => self.forward_pass(*pass, batch, next, &mut uses)?,
                Direction::Backward => {
                    let is_last = pass.micro_batch + 1 == count;
                    loss += self.backward_pass(*pass, weighing, is_last, next, &mut uses)?;
                }
            }
        }
        self.settle()?;
        // Tensor ranks without rows of their own have all computed the same losses.
        let counts = self.network.part().has_cut_rows || self.ranks.at().tensor == 0;
        Ok(if counts { loss } else { 0.0 })
    }

    /// Waits for everything that was started during the passes.
    fn settle(&mut self) -> Result<(), TrainError> {
        let Self { device, network, store, adapters, chunks, ranks, .. } = self;
        if let Some(mail) = &mut chunks.mail {
            mail.finish(ranks)?;
        }
        match adapters {
            None => store.finish_reductions(device, network, ranks)?,
            Some(adapters) => adapters.reduce(device, ranks)?,
        }
        Ok(ranks.check()?)
    }

    /// The blocks that some passes compute with, in order.
    fn uses(&self, passes: &[Pass]) -> Vec<usize> {
        let of = |pass: &Pass| {
            let blocks = &self.chunks.chunks[pass.chunk].blocks;
            let layers = before_head(blocks, &self.network);
            let mut used: Vec<usize> = layers.collect();
            if pass.direction == Direction::Backward {
                if blocks.end == self.network.blocks().len() {
                    used.push(blocks.end - 1);
                }
                used.reverse();
            }
            used
        };
        passes.iter().flat_map(of).collect()
    }

    fn forward_pass(
        &mut self,
        pass: Pass,
        batch: Option<&Batch>,
        next: Option<&Pass>,
        uses: &mut dyn Iterator<Item = usize>,
    ) -> Result<(), TrainError> {
        let is_first = self.ranks.stage().is_first(pass.chunk);
        let Self { device, network, store, adapters, chunks, copies, snapshot, ranks, .. } = self;
        let Chunks { chunks, mail, idle, own, rows } = chunks;
        let SequenceChunk { blocks, workspace, in_flight, shares } = &mut chunks[pass.chunk];
        let slot = pass.micro_batch % *in_flight;
        let mut room = workspace.room(slot);
        load(device, &mut room, batch.unwrap_or(idle), rows, own);
        if let Some(mail) = mail.as_mut().filter(|_| !is_first) {
            mail.streams.forward_in.take(device, ranks, room.input_mut())?;
        }
        // A GPU waits for a message on the GPU itself: nothing may come between the two that waits for all of its work.
        if device.is_cpu() {
            expect(device, ranks, mail, next)?;
        }
        for block in before_head(blocks, network) {
            adapter::enter(device, network, store, adapters.as_deref(), ranks, block, uses.next())?;
            network.forward_block(device, block, store.working().block(block), &mut room);
            store.release(block, true);
            tend(device, store, adapters.as_deref(), copies, snapshot, ranks)?;
        }
        let is_last = ranks.stage().is_last(pass.chunk);
        if let Some(mail) = mail.as_mut() {
            mail.forward_shares(device, ranks, &mut room, &mut shares[slot], is_first, is_last)?;
            if !is_last {
                mail.streams.forward_out.send(device, ranks, room.output())?;
            }
        }
        if !device.is_cpu() {
            expect(device, ranks, mail, next)?;
        }
        Ok(())
    }

    fn backward_pass(
        &mut self,
        pass: Pass,
        weighing: Weighing,
        is_last_batch: bool,
        next: Option<&Pass>,
        uses: &mut dyn Iterator<Item = usize>,
    ) -> Result<f64, TrainError> {
        let (is_first, is_last) =
            (self.ranks.stage().is_first(pass.chunk), self.ranks.stage().is_last(pass.chunk));
        let slot = pass.micro_batch % self.chunks.chunks[pass.chunk].in_flight;
        let mut loss = 0.0;
        if is_last {
            loss = self.head_backward(pass.chunk, slot, weighing, is_last_batch, uses.next())?;
        }
        let Self { device, network, store, adapters, chunks, copies, snapshot, ranks, .. } = self;
        let Chunks { chunks, mail, .. } = chunks;
        let SequenceChunk { blocks, workspace, shares, .. } = &mut chunks[pass.chunk];
        let mut room = workspace.room(slot);
        if let Some(mail) = mail {
            if !is_last {
                mail.streams.back_in.take(device, ranks, room.output_gradient_mut())?;
            }
            mail.backward_shares(device, ranks, &mut room, &mut shares[slot], is_first, is_last)?;
        }
        if device.is_cpu() {
            expect(device, ranks, mail, next)?;
        }
        for block in before_head(blocks, network).rev() {
            adapter::enter(device, network, store, adapters.as_deref(), ranks, block, uses.next())?;
            match adapters {
                None => {
                    store.open_gradient(device, network, ranks, block);
                    ranks.check()?;
                    let (weights, gradients) = store.weights_and_gradients();
                    let gradient = Some(gradients.block_mut(block));
                    let weights = weights.block(block);
                    network.backward_block(device, block, weights, &mut room, gradient, weighing.balance);
                    store.gradient_ready(device, ranks, block, is_last_batch);
                }
                Some(adapters) => {
                    let weights = store.working().block(block);
                    let gradient = adapters.cleared_gradient(device, block, weights.len());
                    network.backward_block(device, block, weights, &mut room, gradient, weighing.balance);
                    adapters.project(device, block);
                }
            }
            store.release(block, false);
            tend(device, store, adapters.as_deref(), copies, snapshot, ranks)?;
        }
        if let Some(mail) = mail.as_mut().filter(|_| !is_first) {
            mail.streams.back_out.send(device, ranks, room.input_gradient())?;
        }
        if !device.is_cpu() {
            expect(device, ranks, mail, next)?;
        }
        Ok(loss)
    }

    /// The loss, and the gradient of the stream before the head.
    fn head_backward(
        &mut self,
        chunk: usize,
        slot: usize,
        weighing: Weighing,
        is_last_batch: bool,
        next: Option<usize>,
    ) -> Result<f64, TrainError> {
        let Self { device, network, store, adapters, chunks, ranks, .. } = self;
        let head = network.blocks().len() - 1;
        let is_tied = network.architecture().transformer.has_tied_embeddings;
        // The embedding's table serves as the head's matrix.
        let table = is_tied.then_some(0);
        for block in table.into_iter().chain([head]) {
            adapter::enter(device, network, store, adapters.as_deref(), ranks, block, next)?;
        }
        let mut room = chunks.chunks[chunk].workspace.room(slot);
        let loss = match adapters {
            None => {
                for block in table.into_iter().chain([head]) {
                    store.open_gradient(device, network, ranks, block);
                }
                ranks.check()?;
                let (weights, gradients) = store.weights_and_gradients();
                let (own, table) = network.head_gradients(gradients);
                let weights = network.head_weights(weights);
                network.head_backward(device, weights, &mut room, weighing.scale, Some(own), table)
            }
            Some(adapters) => {
                let weights = network.head_weights(store.working());
                let gradient = adapters.cleared_gradient(device, head, weights.own.len());
                let loss = network.head_backward(device, weights, &mut room, weighing.scale, gradient, None);
                adapters.project(device, head);
                loss
            }
        };
        store.release(head, false);
        if adapters.is_none() {
            store.gradient_ready(device, ranks, head, is_last_batch);
        }
        // Where the embedding is a block of this rank too, its own part of the gradient is still to come.
        if let Some(table) = table {
            store.release(table, false);
            let is_here = chunks.chunks.iter().any(|chunk| chunk.blocks.contains(&table));
            if !is_here && adapters.is_none() {
                store.gradient_ready(device, ranks, table, is_last_batch);
            }
        }
        Ok(ranks.check().map(|()| loss)?)
    }
}

/// Goes on with what is done beside the passes.
fn tend<E: Trained>(
    device: &Device,
    store: &WeightStore<E>,
    adapters: Option<&Adapters<E>>,
    copies: &mut Option<Copies>,
    snapshot: &mut Option<Snapshot>,
    ranks: &RunRanks,
) -> Result<(), CommError> {
    let state = TrainedState { device, store, adapters };
    if let Some(copies) = copies {
        copies.advance(device, ranks, &state)?;
    }
    if let Some(snapshot) = snapshot {
        snapshot.advance(&state);
    }
    ranks.check()
}

/// Puts this rank's rows of a micro-batch in place.
fn load<E: Trained>(device: &Device, room: &mut Room<'_, E>, batch: &Batch, rows: &[usize], own: &mut Batch) {
    if rows.is_empty() {
        return room.load(device, tokens_of(batch));
    }
    pick(batch, rows, own);
    room.load(device, tokens_of(own));
}
