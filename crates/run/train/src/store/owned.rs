//! What a rank owns of a section of a block: master weights, moments, and the sum of its gradient.

use std::ops::Range;
use std::sync::Arc;

use bedplate_comm::{CommError, Elements};
use bedplate_kernels::{AdamW, Buffer, Device, View, ViewMut};
use bedplate_layout::Sharding;
use bedplate_network::{Block, HeldBlock, Network, Section, Weights};

use super::{splits_gradients, splits_weights};
use crate::optimizer::{self, Stretch};
use crate::ranks::{RunRanks, Sharers};
use crate::trained::Trained;

/// A range of a block, with the optimizer's state of its numbers.
pub(crate) struct Owned<E: Trained> {
    pub(crate) block: usize,
    /// The section that it is a share of, in the block.
    pub(crate) section: Range<usize>,
    is_expert: bool,
    /// Whether other ranks own other parts of the section.
    is_split: bool,
    /// In the block.
    pub(crate) range: Range<usize>,
    /// Elements of the range that are of tensors; behind them there is only padding, as much as the number of ranks asks for.
    pub(crate) used: usize,
    /// Where weights are split: what is gathered.
    pub(super) shard: Option<Arc<HeldBlock<E>>>,
    /// Whether the section has been gathered.
    pub(super) is_here: bool,
    /// Where weights are computed with in another format.
    master: Option<Buffer<f32>>,
    /// Where gradients are split: the sum over all ranks so far.
    pub(super) gradient: Option<Buffer<f32>>,
    pub(crate) first: Buffer<f32>,
    pub(crate) second: Buffer<f32>,
    pub(crate) stretches: Vec<Stretch>,
}

impl<E: Trained> Owned<E> {
    pub(super) fn new(
        device: &Device,
        table: &Block,
        block: usize,
        section: &Section,
        ranks: &RunRanks,
        learns: bool,
    ) -> Result<Self, CommError> {
        let (place, count) = ranks.sharers(section.is_expert).share();
        let each = section.range.len() / count;
        let start = section.range.start + place * each;
        let range = start..start + each;
        let sharding = ranks.layout().sharding;
        let shard = splits_weights(sharding).then(|| ranks.memory(device, each)).transpose()?.map(Arc::new);
        let zeros = |is_wanted: bool| device.zeros(if is_wanted { each } else { 0 });
        let of_section = table.tensors.iter().filter(|tensor| section.range.contains(&tensor.range.start));
        let last = of_section.map(|tensor| tensor.range.end).max().unwrap_or(section.range.start);
        Ok(Self {
            block,
            used: last.saturating_sub(range.start).min(each),
            section: section.range.clone(),
            is_expert: section.is_expert,
            is_split: sharding != Sharding::None,
            shard,
            is_here: false,
            master: (E::has_copy() && learns).then(|| device.zeros(each)),
            gradient: (learns && splits_gradients(sharding)).then(|| device.zeros(each)),
            first: zeros(learns),
            second: zeros(learns),
            stretches: stretches(table, &range),
            range,
        })
    }

    pub(super) fn sharers<'a>(&self, ranks: &'a RunRanks) -> &'a Sharers {
        ranks.sharers(self.is_expert)
    }

    pub(crate) fn is_expert(&self) -> bool {
        self.is_expert
    }

    /// Whether this rank gives a tensor of this range to a checkpoint: numbers that several ranks have are given by the first.
    pub(crate) fn is_given(&self, ranks: &RunRanks, is_cut: bool) -> bool {
        let is_second_table = ranks.tied.is_some() && self.block == 0 && ranks.at().pipeline > 0;
        self.sharers(ranks).is_first_copy() && !is_second_table && (is_cut || ranks.at().tensor == 0)
    }

    pub(super) fn bytes(&self) -> usize {
        let moments = self.first.bytes() + self.second.bytes();
        let shard = self.shard.as_ref().map_or(0, |shard| Elements::view(&**shard).len() * size_of::<E>());
        let others = [&self.master, &self.gradient].into_iter().flatten().map(Buffer::bytes).sum::<usize>();
        moments + shard + others
    }

    /// The gradient of what is owned, once it has been added up over ranks.
    pub(crate) fn gradient<'a>(&'a self, gradients: &'a Weights<f32>) -> View<'a, f32> {
        match &self.gradient {
            Some(gradient) => gradient.view(),
            None => gradients.block(self.block).range(self.range.clone()),
        }
    }

    pub(super) fn gradient_mut<'a>(&'a mut self, gradients: &'a mut Weights<f32>) -> ViewMut<'a, f32> {
        match &mut self.gradient {
            Some(gradient) => gradient.view_mut(),
            None => gradients.block_mut(self.block).range(self.range.clone()),
        }
    }

    /// Adds a micro-batch's gradient to the sum.
    pub(super) fn add(&mut self, device: &Device, part: View<'_, f32>) {
        if let Some(gradient) = &mut self.gradient {
            device.add(part, gradient.view_mut());
        }
    }

    /// Of what counts here: numbers that several ranks hold count on the first of them.
    pub(super) fn sum_of_squares(
        &self,
        device: &Device,
        network: &Network,
        ranks: &RunRanks,
        gradients: &Weights<f32>,
    ) -> f64 {
        if !self.is_given(ranks, true) {
            return 0.0;
        }
        let all = self.gradient(gradients);
        if ranks.tensor.is_none() {
            return device.sum_of_squares(all);
        }
        let tensors = network.blocks()[self.block].tensors.iter();
        let counted = tensors.filter(|tensor| tensor.is_cut() || ranks.at().tensor == 0);
        let ranges = counted
            .map(|tensor| tensor.range.start.max(self.range.start)..tensor.range.end.min(self.range.end));
        let within = |range: Range<usize>| range.start - self.range.start..range.end - self.range.start;
        let some = ranges.filter(|range| !range.is_empty());
        some.map(|range| device.sum_of_squares(all.range(within(range)))).sum()
    }

    /// Takes over master weights; whole weights to compute with are the store's.
    pub(super) fn set_master(&mut self, device: &Device, values: View<'_, f32>) {
        if let Some(master) = &mut self.master {
            device.copy(values, master.view_mut());
        }
        if let Some(shard) = &mut self.shard {
            device.convert(values, Elements::view_mut(alone(shard)));
        }
    }

    pub(super) fn write_master(
        &mut self,
        device: &Device,
        working: &mut Weights<E>,
        range: Range<usize>,
        values: &[f32],
    ) {
        if let Some(master) = &mut self.master {
            device.write(master.range_mut(range.clone()), values);
        }
        let rounded: Vec<E> = values.iter().map(|value| E::narrow(*value)).collect();
        match &mut self.shard {
            Some(shard) => device.write(Elements::view_mut(alone(shard)).range(range), &rounded),
            None => device.write(working.block_mut(self.block).range(self.in_block(range)), &rounded),
        }
    }

    /// The master weights of a range; where they are computed with in another format, [`round`](Self::round) comes afterwards.
    pub(super) fn master_mut<'a>(
        &'a mut self,
        working: &'a mut Weights<E>,
        range: Range<usize>,
    ) -> ViewMut<'a, f32> {
        let in_block = self.in_block(range.clone());
        let numbers = match &mut self.shard {
            Some(shard) => Elements::view_mut(alone(shard)).range(range.clone()),
            None => working.block_mut(self.block).range(in_block),
        };
        E::apart(numbers, self.master.as_mut().map(|master| master.range_mut(range))).0
    }

    /// Makes the weights to compute with from master weights beside them.
    pub(super) fn round(&mut self, device: &Device, working: &mut Weights<E>) {
        let Some(master) = &self.master else { return };
        let to = match &mut self.shard {
            Some(shard) => Elements::view_mut(alone(shard)),
            None => working.block_mut(self.block).range(self.range.clone()),
        };
        device.convert(master.view(), to);
    }

    /// Master weights as others may have them.
    pub(super) fn put_master(
        &self,
        device: &Device,
        working: &Weights<E>,
        range: Range<usize>,
        to: ViewMut<'_, f32>,
    ) {
        match (&self.master, &self.shard) {
            (Some(master), _) => device.copy(master.range(range), to),
            (None, Some(shard)) => device.convert(Elements::view(&**shard).range(range), to),
            (None, None) => device.convert(working.block(self.block).range(self.in_block(range)), to),
        }
    }

    /// Whether the master weights are a whole block as it is computed with, in memory that only this rank reaches.
    fn is_block(&self, working: &Weights<E>) -> bool {
        let is_private = !self.is_split && !E::has_copy();
        is_private && self.range == (0..working.block(self.block).len())
    }

    /// How many numbers the buffer of a part has, where it can be [exchanged](Self::exchange).
    pub(super) fn room(&self, part: usize, working: &Weights<E>) -> Option<usize> {
        match part {
            1 => Some(self.first.len()),
            2 => Some(self.second.len()),
            _ if self.is_block(working) => Some(self.range.len()),
            _ => self.master.as_ref().map(Buffer::len),
        }
    }

    /// Gives a part another buffer of the same length, and what was its own.
    pub(super) fn exchange(
        &mut self,
        part: usize,
        working: &mut Weights<E>,
        numbers: Buffer<f32>,
    ) -> Buffer<f32> {
        match (part, &mut self.master) {
            (1, _) => std::mem::replace(&mut self.first, numbers),
            (2, _) => std::mem::replace(&mut self.second, numbers),
            (_, Some(master)) => std::mem::replace(master, numbers),
            (_, None) => E::into_f32(working.replace(self.block, E::from_f32(numbers))),
        }
    }

    pub(super) fn read_master(
        &self,
        device: &Device,
        working: &Weights<E>,
        range: Range<usize>,
        values: &mut [f32],
    ) {
        if let Some(master) = &self.master {
            return device.read(master.range(range), values);
        }
        let mut numbers = vec![E::default(); range.len()];
        match &self.shard {
            Some(shard) => device.read(Elements::view(&**shard).range(range), &mut numbers),
            None => device.read(working.block(self.block).range(self.in_block(range)), &mut numbers),
        }
        values.iter_mut().zip(numbers).for_each(|(value, number)| *value = number.widen());
    }

    fn in_block(&self, range: Range<usize>) -> Range<usize> {
        self.range.start + range.start..self.range.start + range.end
    }

    pub(super) fn update(
        &mut self,
        device: &Device,
        step: &AdamW,
        gradients: &Weights<f32>,
        working: &mut Weights<E>,
    ) {
        let Self { block, range, shard, master, gradient, first, second, stretches, .. } = self;
        let numbers = match shard {
            Some(shard) => Elements::view_mut(alone(shard)),
            None => working.block_mut(*block).range(range.clone()),
        };
        let (weights, copy) = E::apart(numbers, master.as_mut().map(Buffer::view_mut));
        let gradient = match gradient {
            Some(gradient) => gradient.view(),
            None => gradients.block(*block).range(range.clone()),
        };
        let state = [weights, first.view_mut(), second.view_mut()];
        optimizer::learn(device, step, stretches, gradient, state, copy);
    }
}

/// A part that nobody reads now.
fn alone<E: Trained>(shard: &mut Arc<HeldBlock<E>>) -> &mut HeldBlock<E> {
    Arc::get_mut(shard).expect("weights are changed when no rank gathers them")
}

/// Neighbouring tensors that are decayed alike become one stretch, the padding between them included: it is zero and
/// stays so.
fn stretches(block: &Block, owned: &Range<usize>) -> Vec<Stretch> {
    let mut found: Vec<Stretch> = Vec::new();
    for tensor in &block.tensors {
        let range = tensor.range.start.max(owned.start)..tensor.range.end.min(owned.end);
        let is_decayed = tensor.kind.is_matrix();
        match found.last_mut() {
            _ if range.is_empty() => {}
            Some(last) if last.is_decayed == is_decayed => last.range.end = range.end - owned.start,
            _ => {
                found.push(Stretch { range: range.start - owned.start..range.end - owned.start, is_decayed })
            }
        }
    }
    found
}
