//! The numbers of the blocks that a rank computes: weights to compute with, gradients, and the parts that it owns, with their
//! master weights and moments.
//!
//! What is split over the ranks that learn the same weights is what the layout says. Whole weights stay; split ones are gathered
//! before a block is computed, one block ahead, and go when it has been. Whole gradients are added up once a step, split
//! ones after each micro-batch; both while the next block is computed.

mod owned;
mod reduce;

use std::ops::Range;
use std::sync::Arc;

use bedplate_comm::{CommError, Elements, Group, Pending};
use bedplate_kernels::{AdamW, Buffer, Device, View, ViewMut};
use bedplate_layout::Sharding;
use bedplate_network::{HeldBlock, Network, Weights};

pub(crate) use owned::Owned;
use reduce::Reducing;

use crate::ranks::RunRanks;
use crate::trained::Trained;

/// The blocks of a rank. Computes in `E`.
pub(crate) struct WeightStore<E: Trained> {
    sharding: Sharding,
    /// Whether gathered weights stay from the forward pass to the backward pass.
    keeps_gathered: bool,
    working: Weights<E>,
    gradients: Weights<f32>,
    owned: Vec<Owned<E>>,
    gathering: Vec<Gathering<E>>,
    reducing: Vec<Reducing>,
    /// Buffers between two uses.
    spare_weights: Vec<HeldBlock<E>>,
    spare_gradients: Vec<HeldBlock<f32>>,
    bytes: usize,
}

/// A section of a block on its way here.
struct Gathering<E: Trained> {
    owned: usize,
    pending: Pending<(LentPart<E>, Section<E>)>,
}

/// A rank's part while it is read by others.
pub(crate) struct LentPart<E: Trained>(Arc<HeldBlock<E>>);

impl<E: Trained> Elements<E> for LentPart<E> {
    fn view(&self) -> View<'_, E> {
        Elements::view(&*self.0)
    }

    fn view_mut(&mut self) -> ViewMut<'_, E> {
        unreachable!("what is gathered is only read")
    }
}

/// A range of a block's buffer.
pub(crate) struct Section<E: Trained> {
    held: HeldBlock<E>,
    range: Range<usize>,
}

impl<E: Trained> Elements<E> for Section<E> {
    fn view(&self) -> View<'_, E> {
        Elements::view(&self.held).range(self.range.clone())
    }

    fn view_mut(&mut self) -> ViewMut<'_, E> {
        Elements::view_mut(&mut self.held).range(self.range.clone())
    }
}

/// Whether ranks split the optimizer's state, gradients, and weights.
pub(crate) fn splits_weights(sharding: Sharding) -> bool {
    matches!(sharding, Sharding::Weights | Sharding::WeightsWithin(_))
}

pub(crate) fn splits_gradients(sharding: Sharding) -> bool {
    splits_weights(sharding) || sharding == Sharding::Gradients
}

impl<E: Trained> WeightStore<E> {
    /// Room for some blocks of a network. Without `learns` there are neither gradients nor moments.
    pub(crate) fn new(
        device: &Device,
        network: &Network,
        ranks: &RunRanks,
        blocks: &[usize],
        learns: bool,
        keeps_gathered: bool,
    ) -> Result<Self, CommError> {
        let sharding = ranks.layout().sharding;
        let mut store = Self {
            sharding,
            keeps_gathered,
            working: Weights::absent(network),
            gradients: Weights::absent(network),
            owned: Vec::new(),
            gathering: Vec::new(),
            reducing: Vec::new(),
            spare_weights: Vec::new(),
            spare_gradients: Vec::new(),
            bytes: 0,
        };
        for block in blocks {
            let table = &network.blocks()[*block];
            if !splits_weights(sharding) {
                // Where nobody else has a part of them, they are never sent.
                let held = match sharding {
                    Sharding::None => Box::new(device.zeros(table.len)),
                    _ => ranks.memory(device, table.len)?,
                };
                store.working.put(*block, held);
                store.bytes += table.len * size_of::<E>();
            }
            if learns && !splits_gradients(sharding) {
                store.gradients.put(*block, ranks.memory(device, table.len)?);
                store.bytes += table.len * 4;
            }
            for section in &table.sections {
                let owned = Owned::new(device, table, *block, section, ranks, learns)?;
                store.bytes += owned.bytes();
                store.owned.push(owned);
            }
        }
        Ok(store)
    }

    /// Bytes of everything that stays, and of what comes and goes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn owned(&self) -> &[Owned<E>] {
        &self.owned
    }

    /// The weights of the blocks that are here now.
    pub(crate) fn working(&self) -> &Weights<E> {
        &self.working
    }

    pub(crate) fn working_mut(&mut self) -> &mut Weights<E> {
        &mut self.working
    }

    /// Both at once: what a backward pass reads and what it adds to.
    pub(crate) fn weights_and_gradients(&mut self) -> (&Weights<E>, &mut Weights<f32>) {
        (&self.working, &mut self.gradients)
    }

    /// Puts a block's weights in place from a whole block of master weights.
    pub(crate) fn set_block(&mut self, device: &Device, block: usize, master: View<'_, f32>) {
        if self.working.has_block(block) {
            device.convert(master, self.working.block_mut(block));
        }
        for owned in self.owned.iter_mut().filter(|owned| owned.block == block) {
            owned.set_master(device, master.range(owned.range.clone()));
        }
    }

    /// A copy of the weights as they are, where they are whole.
    pub(crate) fn copy_of_whole(&self, device: &Device, network: &Network) -> Option<Weights<E>> {
        if splits_weights(self.sharding) {
            return None;
        }
        let mut copy = Weights::of_blocks(device, network, |block| self.working.has_block(block));
        copy.convert_from(device, &self.working);
        Some(copy)
    }

    /// Writes into the master weights of an owned range, `range` counted from its start. Whoever does calls
    /// [`publish`](Self::publish) afterwards.
    pub(crate) fn write_master(
        &mut self,
        device: &Device,
        owned: usize,
        range: Range<usize>,
        values: &[f32],
    ) {
        let Self { owned: all, working, .. } = self;
        all[owned].write_master(device, working, range, values);
    }

    /// A part of the state of an owned range, to be written. [`round`](Self::round) comes afterwards.
    pub(crate) fn part_mut(&mut self, part: usize, owned: usize, range: Range<usize>) -> ViewMut<'_, f32> {
        let Self { owned: all, working, .. } = self;
        match part {
            0 => all[owned].master_mut(working, range),
            1 => all[owned].first.range_mut(range),
            _ => all[owned].second.range_mut(range),
        }
    }

    /// Makes the weights to compute with from master weights that were written.
    pub(crate) fn round(&mut self, device: &Device) {
        let Self { owned, working, .. } = self;
        owned.iter_mut().for_each(|owned| owned.round(device, working));
    }

    /// Copies a part of the state of an owned range.
    pub(crate) fn put_part(
        &self,
        device: &Device,
        [part, owned]: [usize; 2],
        range: Range<usize>,
        to: ViewMut<'_, f32>,
    ) {
        let of = &self.owned[owned];
        match part {
            0 => of.put_master(device, &self.working, range, to),
            1 => device.copy(of.first.range(range), to),
            _ => device.copy(of.second.range(range), to),
        }
    }

    /// How many numbers the buffer of a part has, where another can [take its place](Self::exchange).
    pub(crate) fn room(&self, part: usize, owned: usize) -> Option<usize> {
        self.owned[owned].room(part, &self.working)
    }

    /// Gives a part another buffer of the same length, and what was its own.
    pub(crate) fn exchange(&mut self, part: usize, owned: usize, numbers: Buffer<f32>) -> Buffer<f32> {
        let Self { owned: all, working, .. } = self;
        all[owned].exchange(part, working, numbers)
    }

    /// Takes a part of the state of an owned range out of this store, which has ended. Memory that other ranks reach is copied.
    pub(crate) fn take_part(&mut self, device: &Device, part: usize, owned: usize) -> Buffer<f32> {
        if self.room(part, owned).is_some() {
            return self.exchange(part, owned, device.zeros(0));
        }
        let used = self.owned[owned].used;
        let mut copied = device.zeros(used);
        self.put_part(device, [part, owned], 0..used, copied.view_mut());
        copied
    }

    /// The gradient of an owned range, once it has been added up over ranks.
    pub(crate) fn gradient(&self, owned: usize) -> View<'_, f32> {
        let of = &self.owned[owned];
        of.gradient(&self.gradients).range(0..of.used)
    }

    pub(crate) fn read_master(&self, device: &Device, owned: usize, range: Range<usize>, values: &mut [f32]) {
        self.owned[owned].read_master(device, &self.working, range, values);
    }

    pub(crate) fn owned_mut(&mut self) -> &mut [Owned<E>] {
        &mut self.owned
    }

    /// Has a block on its way here, if it is split and not here yet.
    pub(crate) fn prefetch(&mut self, device: &Device, network: &Network, ranks: &RunRanks, block: usize) {
        let is_coming = |gathering: &Gathering<E>| self.owned[gathering.owned].block == block;
        if self.working.has_block(block) || self.gathering.iter().any(is_coming) {
            return;
        }
        let len = network.blocks()[block].len;
        let Some(held) = self.spare(device, ranks, len) else { return };
        let first = self.sections_of(block).next().expect("a block has a section");
        self.gather(device, ranks, first, held);
    }

    fn sections_of(&self, block: usize) -> impl Iterator<Item = usize> {
        let owned = self.owned.iter().enumerate();
        owned.filter(move |(_, owned)| owned.block == block).map(|(index, _)| index)
    }

    /// A buffer of a block's length, from the last use or new.
    fn spare(&mut self, device: &Device, ranks: &RunRanks, len: usize) -> Option<HeldBlock<E>> {
        match self.spare_weights.iter().position(|held| Elements::view(held).len() == len) {
            Some(index) => Some(self.spare_weights.swap_remove(index)),
            None => {
                self.bytes += len * size_of::<E>();
                ranks.note(ranks.memory(device, len))
            }
        }
    }

    fn gather(&mut self, device: &Device, ranks: &RunRanks, index: usize, held: HeldBlock<E>) {
        let owned = &mut self.owned[index];
        let Some(group) = owned.sharers(ranks).split.clone() else {
            return self.arrived_whole(device, index, held);
        };
        let Some(shard) = owned.shard.clone() else { return };
        let section = Section { held, range: owned.section.clone() };
        if let Some(pending) = ranks.note(group.start_all_gather(device, LentPart(shard), section)) {
            self.gathering.push(Gathering { owned: index, pending });
        }
    }

    /// A section that nobody shares is copied.
    fn arrived_whole(&mut self, device: &Device, index: usize, mut held: HeldBlock<E>) {
        let Owned { shard, section, block, .. } = &self.owned[index];
        if let Some(shard) = shard {
            device.copy(Elements::view(&**shard), Elements::view_mut(&mut held).range(section.clone()));
        }
        let block = *block;
        self.working.put(block, held);
    }

    /// Waits until a block's weights are here. Says whether they have just come.
    pub(crate) fn need(
        &mut self,
        device: &Device,
        network: &Network,
        ranks: &RunRanks,
        block: usize,
    ) -> bool {
        if !splits_weights(self.sharding) || self.sections_of(block).all(|index| self.owned[index].is_here) {
            return false;
        }
        self.prefetch(device, network, ranks, block);
        let sections: Vec<usize> = self.sections_of(block).collect();
        for (number, index) in sections.iter().enumerate() {
            self.arrive(ranks, *index);
            // The next section goes into the same buffer, so it can only be asked for now.
            if let Some(next) = sections.get(number + 1)
                && self.is_to_come(*next)
                && self.working.has_block(block)
            {
                let held = self.working.take(block);
                self.gather(device, ranks, *next, held);
            }
        }
        true
    }

    /// Whether a section of split weights has not been gathered since it was last released.
    fn is_to_come(&self, index: usize) -> bool {
        splits_weights(self.sharding) && !self.owned[index].is_here
    }

    fn arrive(&mut self, ranks: &RunRanks, index: usize) {
        let Some(place) = self.gathering.iter().position(|gathering| gathering.owned == index) else {
            self.owned[index].is_here = true;
            return;
        };
        let Gathering { pending, .. } = self.gathering.remove(place);
        let ((_, section), outcome) = ranks.waits.time(|| pending.wait());
        ranks.note(outcome);
        let owned = &mut self.owned[index];
        owned.is_here = true;
        self.working.put(owned.block, section.held);
    }

    /// Lets go of a block's gathered weights. Those of the forward pass may be kept for the backward pass.
    pub(crate) fn release(&mut self, block: usize, is_forward: bool) {
        if !splits_weights(self.sharding) || is_forward && self.keeps_gathered {
            return;
        }
        if self.working.has_block(block) {
            let held = self.working.take(block);
            self.spare_weights.push(held);
        }
        self.owned.iter_mut().filter(|owned| owned.block == block).for_each(|owned| owned.is_here = false);
    }

    /// One step of the optimizer over what is owned; afterwards the other ranks have the new weights.
    pub(crate) fn update(&mut self, device: &Device, step: &AdamW) {
        let Self { owned, working, gradients, .. } = self;
        owned.iter_mut().for_each(|owned| owned.update(device, step, gradients, working));
    }

    /// Gives the other ranks what this one owns of whole weights.
    pub(crate) fn publish(&mut self, device: &Device, ranks: &RunRanks) -> Result<(), CommError> {
        if splits_weights(self.sharding) || self.sharding == Sharding::None {
            return Ok(());
        }
        let split = |owned: &Owned<E>| owned.sharers(ranks).split.clone();
        let groups: Vec<(usize, Range<usize>, Arc<Group>)> = self
            .owned
            .iter()
            .filter_map(|owned| Some((owned.block, owned.section.clone(), split(owned)?)))
            .collect();
        for (block, section, group) in groups {
            let numbers = self.working.block_mut(block).range(section);
            ranks.waits.time(|| group.all_gather_in_place(device, numbers))?;
        }
        Ok(())
    }
}
