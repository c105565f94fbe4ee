//! A micro-batch's way through this rank's blocks and back.

use std::ops::Range;

use bedplate_comm::CommError;
use bedplate_data::{Batch, IGNORED};
use bedplate_kernels::{Buffer, Device};
use bedplate_network::{Network, Room, Tokens, Workspace, WorkspaceShape, cut_rows};

use crate::adapter::Adapters;
use crate::checkpoint::Snapshot;
use crate::copies::Copies;
use crate::links::Exchange;
use crate::pipeline::{self, Direction, Pass};
use crate::ranks::Ranks;
use crate::store::Store;
use crate::trained::Trained;
use crate::trainer::{Trainer, micro_batches};
use crate::upkeep::State;
use crate::{TrainError, adapter};

/// What a target's loss counts in a step, and a micro-batch's share of it by which the load-balancing loss counts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Weighing {
    pub(crate) scale: f32,
    pub(crate) balance: f32,
}

/// The chunks of blocks that a rank computes, and its connections to neighbouring stages.
pub(crate) struct Chunks<E: Trained> {
    chunks: Vec<Chunk<E>>,
    mail: Option<Mail<E>>,
    /// A micro-batch that does not count.
    idle: Batch,
    /// The rows of a micro-batch that are this rank's.
    own: Batch,
    /// Which those are; none where all are.
    rows: Vec<usize>,
}

struct Chunk<E: Trained> {
    blocks: Range<usize>,
    workspace: Workspace<E>,
    in_flight: usize,
    /// How busy experts are, of this chunk's layers and those before, for each micro-batch in flight; empty where it does not
    /// matter.
    shares: Vec<Buffer<f32>>,
}

struct Mail<E: Trained> {
    /// And their gradients.
    streams: Exchange<E>,
    /// How busy experts are goes along with streams, and all of it comes back with gradients.
    shares: Option<Exchange<f32>>,
}

impl<E: Trained> Chunks<E> {
    pub(crate) fn new(
        device: &Device,
        network: &Network,
        ranks: &Ranks,
        shape: WorkspaceShape,
        micro_batches: usize,
    ) -> Self {
        let (stage, layers) = (ranks.stage(), network.layer_count());
        let passes = stage.passes(micro_batches);
        let shares = if stage.stages > 1 { network.balanced_shares() } else { 0 };
        let chunk = |chunk| {
            let blocks = stage.blocks(chunk, layers);
            let in_flight = pipeline::in_flight(&passes, chunk);
            let workspace = Workspace::of_stage(device, network, blocks.clone(), in_flight, shape);
            let shares = (0..in_flight).map(|_| device.zeros(shares)).collect();
            Chunk { blocks, workspace, in_flight, shares }
        };
        let mut chunks: Vec<Chunk<E>> = (0..stage.chunks).map(chunk).collect();
        let stream = chunks[0].workspace.room(0).output().len();
        let mail = ranks.links.as_ref().map(|links| Mail {
            streams: Exchange::new(&links.streams, stream),
            shares: (shares > 0).then(|| Exchange::new(&links.shares, shares)),
        });
        let (rows, own) = (own_rows(network, shape), Batch::default());
        Self { chunks, mail, idle: idle_batch(shape), own, rows }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.workspace.bytes()).sum()
    }

    /// The blocks whose weights this rank needs, in order: its own, and the embedding's where its table serves as the head's matrix.
    pub(crate) fn blocks(&self, network: &Network) -> Vec<usize> {
        let mut blocks: Vec<usize> = self.chunks.iter().flat_map(|chunk| chunk.blocks.clone()).collect();
        let has_head = blocks.contains(&(network.blocks().len() - 1));
        let is_tied = network.architecture().transformer.has_tied_embeddings;
        if has_head && is_tied && !blocks.contains(&0) {
            blocks.push(0);
        }
        blocks.sort_unstable();
        blocks
    }
}

/// The rows of a micro-batch that a rank has where sequences are cut; empty where it has all.
fn own_rows(network: &Network, shape: WorkspaceShape) -> Vec<usize> {
    let (context, sequence) = (network.part().context, shape.sequence);
    if context.is_whole() {
        return Vec::new();
    }
    let of = |number: usize| cut_rows(context, sequence).map(move |row| number * sequence + row);
    (0..shape.sequences).flat_map(of).collect()
}

fn idle_batch(shape: WorkspaceShape) -> Batch {
    let rows = shape.rows();
    Batch {
        tokens: vec![0; rows],
        targets: vec![IGNORED; rows],
        first_keys: vec![0; rows],
        positions: (0..rows).map(|row| (row % shape.sequence) as u32).collect(),
        padding: vec![0; shape.sequences],
        rows: shape.sequences,
        ..Batch::default()
    }
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

fn tokens_of(batch: &Batch) -> Tokens<'_> {
    Tokens {
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
        let Chunk { blocks, workspace, in_flight, shares } = &mut chunks[pass.chunk];
        let slot = pass.micro_batch % *in_flight;
        let mut room = workspace.room(slot);
        load(device, &mut room, batch.unwrap_or(idle), rows, own);
        if let Some(mail) = mail.as_mut().filter(|_| !is_first) {
            mail.streams.forward_in.take(device, ranks, room.input_mut())?;
        }
        expect(device, ranks, mail, next)?;
        for block in before_head(blocks, network) {
            adapter::enter(device, network, store, adapters.as_deref(), ranks, block, uses.next())?;
            network.forward_block(device, block, store.working().block(block), &mut room);
            store.release(block, true);
            tend(device, store, adapters.as_deref(), copies, snapshot, ranks)?;
        }
        let is_last = ranks.stage().is_last(pass.chunk);
        if let Some(mail) = mail {
            mail.forward_shares(device, ranks, &mut room, &mut shares[slot], is_first, is_last)?;
            if !is_last {
                mail.streams.forward_out.send(device, ranks, room.output())?;
            }
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
        let Chunk { blocks, workspace, shares, .. } = &mut chunks[pass.chunk];
        let mut room = workspace.room(slot);
        if let Some(mail) = mail {
            if !is_last {
                mail.streams.back_in.take(device, ranks, room.output_gradient_mut())?;
            }
            mail.backward_shares(device, ranks, &mut room, &mut shares[slot], is_first, is_last)?;
        }
        expect(device, ranks, mail, next)?;
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

    /// The sum of the losses of this rank's rows of a micro-batch, without learning.
    pub(crate) fn assess(&mut self, batch: &Batch) -> Result<f64, TrainError> {
        let mut loss = 0.0;
        let head = self.network.blocks().len() - 1;
        for chunk in 0..self.chunks.chunks.len() {
            let pass = Pass { direction: Direction::Forward, chunk, micro_batch: 0 };
            let blocks: Vec<usize> =
                before_head(&self.chunks.chunks[chunk].blocks, &self.network).skip(1).collect();
            self.forward_pass(pass, Some(batch), None, &mut blocks.into_iter())?;
            if self.ranks.stage().is_last(chunk) {
                self.enter_head()?;
                let Self { device, network, store, chunks, .. } = self;
                let mut room = chunks.chunks[chunk].workspace.room(0);
                loss += network.head_loss(device, network.head_weights(store.working()), &mut room);
                store.release(head, false);
            }
        }
        // What was kept for a backward pass that does not come.
        self.release_all();
        self.ranks.check()?;
        let counts = self.network.part().has_cut_rows || self.ranks.at().tensor == 0;
        Ok(if counts { loss } else { 0.0 })
    }

    /// The logits after the last token of a text, on all ranks. A text that is too long loses its beginning.
    pub(crate) fn logits_after(&mut self, text: &[u32]) -> Result<Vec<f32>, TrainError> {
        let sequence = self.config.data.sequence;
        let context = if text.len() <= sequence { text } else { &text[text.len() - sequence / 2..] };
        let mut batch = self.chunks.idle.clone();
        batch.tokens[..context.len()].copy_from_slice(context);
        self.assess(&batch)?;
        let last = context.len().max(1) - 1;
        let vocab = self.network.architecture().transformer.vocab as usize;
        let mut logits = vec![0.0_f32; vocab];
        let chunk = self.chunks.chunks.len() - 1;
        if self.ranks.stage().is_last(chunk) {
            self.enter_head()?;
            let Self { device, network, store, chunks, .. } = self;
            let mut room = chunks.chunks[chunk].workspace.room(0);
            network.logits(device, network.head_weights(store.working()), &mut room, last, &mut logits);
        }
        self.release_all();
        // All ranks of the last stage have them; one tells the others.
        let at = self.ranks.at();
        let is_giver = self.ranks.stage().is_last(chunk) && [at.data, at.tensor, at.context] == [0; 3];
        let given = |logit: &f32| if is_giver { f64::from(*logit) } else { 0.0 };
        let mut sums: Vec<f64> = logits.iter().map(given).collect();
        self.ranks.sum_over_all(&self.device, &mut sums)?;
        Ok(sums.into_iter().map(|sum| sum as f32).collect())
    }

    fn enter_head(&mut self) -> Result<(), CommError> {
        let Self { device, network, store, adapters, ranks, .. } = self;
        let is_tied = network.architecture().transformer.has_tied_embeddings;
        for block in is_tied.then_some(0).into_iter().chain([network.blocks().len() - 1]) {
            adapter::enter(device, network, store, adapters.as_deref(), ranks, block, None)?;
        }
        Ok(())
    }

    fn release_all(&mut self) {
        (0..self.network.blocks().len()).for_each(|block| self.store.release(block, false));
    }

    /// Computes the micro-batches again and looks at the output of every block.
    pub(crate) fn explain_non_finite(
        &mut self,
        batches: &[Batch],
        loss: f64,
        gradient_norm: f64,
    ) -> Result<TrainError, TrainError> {
        let count = micro_batches(&self.config, &self.ranks).max(batches.len());
        let mut found = None;
        for number in 0..count {
            let batch = batches.get(number).cloned().unwrap_or_else(|| self.chunks.idle.clone());
            self.assess(&batch)?;
            found = found.or_else(|| self.first_non_finite(&batch));
        }
        // The first block of all ranks that has one; blocks and samples are small enough to be exact.
        let nothing = [f64::INFINITY, f64::INFINITY];
        let own = found.map_or(nothing, |(block, sample)| [block as f64, sample as f64]);
        let all = self.ranks.gather(&self.device, &own)?;
        let first = all.chunks(2).min_by(|a, b| a[0].total_cmp(&b[0]).then(a[1].total_cmp(&b[1])));
        let first = first.filter(|first| first[0].is_finite());
        Ok(TrainError::NotFinite {
            step: self.step,
            loss,
            gradient_norm,
            first_sample: self.samples,
            block: first.map(|first| self.network.blocks()[first[0] as usize].name.clone()),
            sample: first.map(|first| first[1] as u64),
        })
    }

    /// The first of this rank's blocks whose output is not finite, and the sample.
    fn first_non_finite(&mut self, batch: &Batch) -> Option<(usize, u64)> {
        let Self { device, network, chunks, .. } = self;
        let hidden = network.architecture().transformer.hidden as usize;
        let sequence = chunks.chunks[0].workspace.shape().sequence;
        let own = sequence / network.part().context.degree;
        for chunk in &mut chunks.chunks {
            let room = chunk.workspace.room(0);
            for block in before_head(&chunk.blocks, network) {
                if let Some(at) = device.first_non_finite(room.stream_after(block)) {
                    return Some((block, batch.first_sample + (at / hidden / own) as u64));
                }
            }
        }
        None
    }
}

/// Goes on with what is done beside the passes.
fn tend<E: Trained>(
    device: &Device,
    store: &Store<E>,
    adapters: Option<&Adapters<E>>,
    copies: &mut Option<Copies>,
    snapshot: &mut Option<Snapshot>,
    ranks: &Ranks,
) -> Result<(), CommError> {
    let state = State { device, store, adapters };
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

/// Has the message come that the next pass begins with.
fn expect<E: Trained>(
    device: &Device,
    ranks: &Ranks,
    mail: &mut Option<Mail<E>>,
    next: Option<&Pass>,
) -> Result<(), CommError> {
    let (Some(mail), Some(next)) = (mail, next) else { return Ok(()) };
    match next.direction {
        Direction::Forward if !ranks.stage().is_first(next.chunk) => {
            mail.streams.forward_in.expect(device, ranks)
        }
        Direction::Backward if !ranks.stage().is_last(next.chunk) => {
            mail.streams.back_in.expect(device, ranks)
        }
        _ => Ok(()),
    }
}

impl<E: Trained> Mail<E> {
    fn finish(&mut self, ranks: &Ranks) -> Result<(), CommError> {
        self.streams.finish(ranks)?;
        self.shares.as_mut().map_or(Ok(()), |shares| shares.finish(ranks))
    }

    /// Adds the shares of this chunk's layers to those of the layers before.
    fn forward_shares(
        &mut self,
        device: &Device,
        ranks: &Ranks,
        room: &mut Room<'_, E>,
        shares: &mut Buffer<f32>,
        is_first: bool,
        is_last: bool,
    ) -> Result<(), CommError> {
        let Some(mail) = &mut self.shares else { return Ok(()) };
        match is_first {
            true => device.fill(shares.view_mut(), 0.0),
            false => mail.forward_in.take(device, ranks, shares.view_mut())?,
        }
        let own = room.expert_shares_mut();
        if !own.is_empty() {
            device.add(own.view(), shares.view_mut());
        }
        if !is_last {
            mail.forward_out.send(device, ranks, shares.view())?;
        }
        Ok(())
    }

    /// Puts the shares of all layers in place before the backward pass.
    fn backward_shares(
        &mut self,
        device: &Device,
        ranks: &Ranks,
        room: &mut Room<'_, E>,
        shares: &mut Buffer<f32>,
        is_first: bool,
        is_last: bool,
    ) -> Result<(), CommError> {
        let Some(mail) = &mut self.shares else { return Ok(()) };
        if !is_last {
            mail.back_in.take(device, ranks, shares.view_mut())?;
        }
        let own = room.expert_shares_mut();
        if !own.is_empty() {
            device.copy(shares.view(), own);
        }
        if !is_first {
            mail.back_out.send(device, ranks, shares.view())?;
        }
        Ok(())
    }
}
