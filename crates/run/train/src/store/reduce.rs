//! Gradients on their way to the ranks that own them.

use std::sync::Arc;

use bedplate_comm::{CommError, Elements, Group, Pending, Reduction};
use bedplate_kernels::Device;
use bedplate_layout::Sharding;
use bedplate_network::{HeldBlock, Network};

use super::{Owned, WeightStore, splits_gradients};
use crate::ranks::RunRanks;
use crate::trained::Trained;

/// A block's gradient that is being added up over ranks.
pub(super) enum Reducing {
    /// As a whole, or in place to this rank's share.
    Whole { block: usize, pending: Pending<HeldBlock<f32>> },
    /// One micro-batch's, to a part that is then added to the sum.
    Split { owned: usize, pending: Pending<(HeldBlock<f32>, HeldBlock<f32>)> },
}

/// Split gradients of one length that exist at once: one is computed while the one before is added up.
const AT_ONCE: usize = 2;

impl<E: Trained> WeightStore<E> {
    /// Sets all sums to zero.
    pub(crate) fn clear_gradients(&mut self, device: &Device) {
        self.gradients.fill(device, 0.0);
        for gradient in self.owned.iter_mut().filter_map(|owned| owned.gradient.as_mut()) {
            device.fill(gradient.view_mut(), 0.0);
        }
    }

    /// Makes room for a block's gradient, if there is none yet.
    pub(crate) fn open_gradient(
        &mut self,
        device: &Device,
        network: &Network,
        ranks: &RunRanks,
        block: usize,
    ) {
        if self.gradients.has_block(block) {
            return;
        }
        let len = network.blocks()[block].len;
        while self.is_full(len) {
            let oldest = self.reducing.remove(0);
            self.settle(device, ranks, oldest);
        }
        let held = self.spare_gradient(device, ranks, len);
        if let Some(mut held) = held {
            device.fill(Elements::view_mut(&mut held), 0.0);
            self.gradients.put(block, held);
        }
    }

    /// Whether enough gradients of a length are under way and none is free.
    fn is_full(&self, len: usize) -> bool {
        let has_len = |held: &HeldBlock<f32>| Elements::view(held).len() == len;
        let is_under_way = |reducing: &&Reducing| matches!(reducing, Reducing::Split { owned, .. } if self.owned[*owned].section.len() == len);
        let under_way = self.reducing.iter().filter(is_under_way).count();
        !self.spare_gradients.iter().any(has_len) && under_way >= AT_ONCE
    }

    fn spare_gradient(&mut self, device: &Device, ranks: &RunRanks, len: usize) -> Option<HeldBlock<f32>> {
        match self.spare_gradients.iter().position(|held| Elements::view(held).len() == len) {
            Some(index) => Some(self.spare_gradients.swap_remove(index)),
            None => {
                self.bytes += 4 * len;
                ranks.note(ranks.memory(device, len))
            }
        }
    }

    /// A micro-batch has added to a block's gradient; `is_last` says that no other will in this step.
    pub(crate) fn gradient_ready(&mut self, device: &Device, ranks: &RunRanks, block: usize, is_last: bool) {
        let is_split = splits_gradients(self.sharding);
        if !is_split && !is_last || !self.gradients.has_block(block) {
            return;
        }
        let sections: Vec<usize> = self.sections_of(block).collect();
        match (sections.as_slice(), is_split) {
            ([only], true) => self.start_split(device, ranks, *only),
            ([only], false) => self.start_whole(device, ranks, *only),
            (several, true) => {
                let held = self.gradients.take(block);
                several.iter().for_each(|owned| self.split_now(device, ranks, *owned, &held));
                self.spare_gradients.push(held);
            }
            (several, false) => several.iter().for_each(|owned| self.reduce_now(device, ranks, *owned)),
        }
    }

    /// The group over which a section's whole gradient is added up.
    fn reducers(&self, ranks: &RunRanks, owned: usize) -> Option<Arc<Group>> {
        let sharers = self.owned[owned].sharers(ranks);
        if self.sharding == Sharding::None { sharers.copies.clone() } else { sharers.split.clone() }
    }

    fn start_whole(&mut self, device: &Device, ranks: &RunRanks, index: usize) {
        let Some(group) = self.reducers(ranks, index) else { return };
        let block = self.owned[index].block;
        let held = self.gradients.take(block);
        let started = match self.sharding {
            Sharding::None => group.start_all_reduce(device, held, Reduction::Sum),
            _ => group.start_reduce_scatter_in_place(device, held, Reduction::Sum),
        };
        if let Some(pending) = ranks.note(started) {
            self.reducing.push(Reducing::Whole { block, pending });
        }
    }

    fn reduce_now(&mut self, device: &Device, ranks: &RunRanks, index: usize) {
        let Some(group) = self.reducers(ranks, index) else { return };
        let Owned { block, section, .. } = &self.owned[index];
        let numbers = self.gradients.block_mut(*block).range(section.clone());
        let outcome = ranks.waits.time(|| match self.sharding {
            Sharding::None => group.all_reduce(device, numbers, Reduction::Sum),
            _ => group.reduce_scatter_in_place(device, numbers, Reduction::Sum),
        });
        ranks.note(outcome);
    }

    fn start_split(&mut self, device: &Device, ranks: &RunRanks, index: usize) {
        let (block, len) = (self.owned[index].block, self.owned[index].range.len());
        let held = self.gradients.take(block);
        let Some(group) = self.owned[index].sharers(ranks).split.clone() else {
            self.owned[index].add(device, Elements::view(&held));
            return self.spare_gradients.push(held);
        };
        let Some(part) = self.spare_gradient(device, ranks, len) else { return };
        let started = group.start_reduce_scatter(device, held, part, Reduction::Sum);
        if let Some(pending) = ranks.note(started) {
            self.reducing.push(Reducing::Split { owned: index, pending });
        }
    }

    fn split_now(&mut self, device: &Device, ranks: &RunRanks, index: usize, held: &HeldBlock<f32>) {
        let (section, len) = (self.owned[index].section.clone(), self.owned[index].range.len());
        let whole = Elements::view(held).range(section);
        let Some(group) = self.owned[index].sharers(ranks).split.clone() else {
            return self.owned[index].add(device, whole);
        };
        let Some(mut part) = self.spare_gradient(device, ranks, len) else { return };
        let reduce = || group.reduce_scatter(device, whole, Elements::view_mut(&mut part), Reduction::Sum);
        ranks.note(ranks.waits.time(reduce));
        self.owned[index].add(device, Elements::view(&part));
        self.spare_gradients.push(part);
    }

    fn settle(&mut self, device: &Device, ranks: &RunRanks, reducing: Reducing) {
        match reducing {
            Reducing::Whole { block, pending } => {
                let (held, outcome) = ranks.waits.time(|| pending.wait());
                ranks.note(outcome);
                self.gradients.put(block, held);
            }
            Reducing::Split { owned, pending } => {
                let ((held, part), outcome) = ranks.waits.time(|| pending.wait());
                ranks.note(outcome);
                self.owned[owned].add(device, Elements::view(&part));
                self.spare_gradients.extend([held, part]);
            }
        }
    }

    /// Waits until the gradients of what this rank owns are those of all ranks.
    pub(crate) fn finish_reductions(
        &mut self,
        device: &Device,
        network: &Network,
        ranks: &RunRanks,
    ) -> Result<(), CommError> {
        for reducing in std::mem::take(&mut self.reducing) {
            self.settle(device, ranks, reducing);
        }
        ranks.check()?;
        let Self { owned, gradients, .. } = self;
        for owned in owned {
            let copies = owned.sharers(ranks).copies.clone();
            if let (Some(gradient), Some(group)) = (&mut owned.gradient, copies) {
                ranks.waits.time(|| group.all_reduce(device, gradient.view_mut(), Reduction::Sum))?;
            }
            if let Some(group) = ranks.tied.as_ref().filter(|_| owned.block == 0) {
                let numbers = owned.gradient_mut(gradients);
                ranks.waits.time(|| group.all_reduce(device, numbers, Reduction::Sum))?;
            }
            let Some(group) = &ranks.tensor else { continue };
            let tensors = network.blocks()[owned.block].tensors.iter();
            for tensor in tensors.filter(|tensor| tensor.is_partial) {
                let range = tensor.range.start.max(owned.range.start)..tensor.range.end.min(owned.range.end);
                if !range.is_empty() {
                    let within = range.start - owned.range.start..range.end - owned.range.start;
                    let numbers = owned.gradient_mut(gradients).range(within);
                    ranks.waits.time(|| group.all_reduce(device, numbers, Reduction::Sum))?;
                }
            }
        }
        Ok(())
    }

    /// The square of the norm of all gradients that this rank counts: each number counts on one rank.
    pub(crate) fn sum_of_squares(&self, device: &Device, network: &Network, ranks: &RunRanks) -> f64 {
        self.owned.iter().map(|owned| owned.sum_of_squares(device, network, ranks, &self.gradients)).sum()
    }
}
