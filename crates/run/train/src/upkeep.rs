//! What goes on beside the passes of a step: copies of the state for other ranks, and checkpoints.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use bedplate_comm::CommError;
use bedplate_kernels::{AdamW, Device, ViewMut};

use crate::TrainError;
use crate::adapter::Adapters;
use crate::copies::{Copies, ElementSource};
use crate::optimizer::{Steps, Stretch};
use crate::recovered_state::{
    ElementTarget, Gradient, Holding, Key, Learned, Ready, RecoveredState, SectionPiece,
};
use crate::store::{Owned, WeightStore};
use crate::trained::Trained;
use crate::trainer::Trainer;

/// The parts of the state, as their tensors are called: master weights and two moments.
pub(crate) const PARTS: [&str; 3] = ["weights", "first", "second"];

/// The trained numbers of a rank as they are now.
pub(crate) struct TrainedState<'a, E: Trained> {
    pub(crate) device: &'a Device,
    pub(crate) store: &'a WeightStore<E>,
    pub(crate) adapters: Option<&'a Adapters<E>>,
}

impl<E: Trained> TrainedState<'_, E> {
    /// Numbers of each thing that has weights and moments.
    fn lengths(&self) -> Vec<usize> {
        match self.adapters {
            Some(adapters) => vec![adapters.len()],
            None => self.store.owned().iter().map(|owned| owned.used).collect(),
        }
    }

    /// Numbers of one part of one thing.
    pub(crate) fn read_part(&self, part: usize, index: usize, range: Range<usize>, values: &mut [f32]) {
        let device = self.device;
        match (self.adapters, part) {
            (Some(adapters), part) => device.read(adapters.parts()[part].range(range), values),
            (None, 0) => self.store.read_master(device, index, range, values),
            (None, 1) => device.read(self.store.owned()[index].first.range(range), values),
            (None, _) => device.read(self.store.owned()[index].second.range(range), values),
        }
    }
}

impl<E: Trained> ElementSource for TrainedState<'_, E> {
    fn len(&self) -> usize {
        PARTS.len() * self.lengths().iter().sum::<usize>()
    }

    fn put(&self, range: Range<usize>, to: ViewMut<'_, f32>) {
        let lengths = self.lengths();
        let parts = (0..PARTS.len())
            .flat_map(|part| lengths.iter().enumerate().map(move |(index, len)| ([part, index], *len)));
        put_parts(parts, range, to, |[part, index], range, to| match self.adapters {
            Some(adapters) => self.device.copy(adapters.parts()[part].range(range), to),
            None => self.store.put_part(self.device, [part, index], range, to),
        });
    }
}

/// The gradients of a rank's trained numbers, added up over ranks.
struct Gradients<'a, E: Trained>(TrainedState<'a, E>);

impl<E: Trained> ElementSource for Gradients<'_, E> {
    fn len(&self) -> usize {
        self.0.lengths().iter().sum()
    }

    fn put(&self, range: Range<usize>, to: ViewMut<'_, f32>) {
        let TrainedState { device, store, adapters } = &self.0;
        let parts = self.0.lengths().into_iter().enumerate();
        put_parts(parts, range, to, |index, range, to| match adapters {
            Some(adapters) => device.copy(adapters.gradient().range(range), to),
            None => device.copy(store.gradient(index).range(range), to),
        });
    }
}

/// Copies a range of some things that follow each other, each with its length.
fn put_parts<T>(
    things: impl Iterator<Item = (T, usize)>,
    range: Range<usize>,
    mut to: ViewMut<'_, f32>,
    put: impl Fn(T, Range<usize>, ViewMut<'_, f32>),
) {
    let mut start = 0;
    for (thing, len) in things {
        let own = range.start.max(start)..range.end.min(start + len);
        if !own.is_empty() {
            let to = to.reborrow().range(own.start - range.start..own.end - range.start);
            put(thing, own.start - start..own.end - start, to);
        }
        start += len;
    }
}

/// Where the state of a trainer goes, by its pieces.
struct Places<'a, E: Trained> {
    store: &'a mut WeightStore<E>,
    adapters: Option<&'a mut Adapters<E>>,
    /// Part, number and first of each.
    by_key: &'a BTreeMap<Key, (usize, usize, usize)>,
}

impl<E: Trained> ElementTarget for Places<'_, E> {
    fn room(&mut self, piece: &SectionPiece) -> ViewMut<'_, f32> {
        let (part, index, first) = self.by_key[&piece.key];
        let range = piece.range.start - first..piece.range.end - first;
        match &mut self.adapters {
            Some(adapters) => {
                let [values, first, second] = adapters.parts_mut();
                [values, first, second].into_iter().nth(part).expect("there are three parts").range_mut(range)
            }
            None => self.store.part_mut(part, index, range),
        }
    }
}

impl<E: Trained> Trainer<E> {
    pub(crate) fn state(&self) -> TrainedState<'_, E> {
        TrainedState { device: &self.device, store: &self.store, adapters: self.adapters.as_deref() }
    }

    /// What this rank learns.
    fn learned(&self) -> Vec<Learned> {
        let at = self.ranks.at();
        let key = |expert, block| Key { stage: at.pipeline, tensor: at.tensor, expert, block, part: 0 };
        if let Some(adapters) = &self.adapters {
            let expert = Some(at.expert).filter(|_| self.ranks.layout().expert > 1);
            let range = 0..adapters.len();
            let stretches = vec![Stretch { range: range.clone(), is_decayed: true }];
            return vec![Learned { weights: SectionPiece { key: key(expert, None), range }, stretches }];
        }
        let learned = |owned: &Owned<E>| {
            let start = owned.range.start - owned.section.start;
            let expert = owned.is_expert().then_some(at.expert);
            let range = start..start + owned.used;
            let weights = SectionPiece { key: key(expert, Some(owned.block as u32)), range };
            Learned { weights, stretches: owned.stretches.clone() }
        };
        self.store.owned().iter().map(learned).collect()
    }

    /// What this rank holds, in the order in which [`TrainedState`] gives it.
    pub(crate) fn pieces(&self) -> Vec<SectionPiece> {
        Learned::pieces(&self.learned())
    }

    /// Writes numbers of one part of one thing; [`spread`](Self::spread) comes afterwards.
    pub(crate) fn write_part(&mut self, part: usize, index: usize, range: Range<usize>, values: &[f32]) {
        let Self { device, store, adapters, .. } = self;
        write_part(device, store, adapters.as_deref_mut(), [part, index], range, values);
    }

    /// Starts to keep copies of the state in the neighbour's memory, where no other rank has it.
    pub fn keep_copies(&mut self, every: u64) -> Result<(), CommError> {
        self.keep_copies_after(&mut RecoveredState::default(), every)
    }

    /// The same where ranks may have such copies from the world before.
    pub(crate) fn keep_copies_after(
        &mut self,
        recovered: &mut RecoveredState,
        every: u64,
    ) -> Result<(), CommError> {
        if every > 0 && self.ranks.keeps_copies() {
            let (learned, held) = (self.learned(), (recovered, self.step));
            self.copies = Copies::new(&self.device, &self.ranks, every, learned, held)?;
        }
        Ok(())
    }

    /// Begins the copy of the state with which the ranks of a world begin, whatever its step.
    pub(crate) fn begin_first_copy(&mut self) {
        if let Some(copies) = &mut self.copies {
            copies.begin_first(self.step);
        }
    }

    /// Begins the copy of the state after a step.
    pub(crate) fn begin_copy(&mut self) {
        if let Some(copies) = &mut self.copies {
            copies.begin(self.step);
        }
    }

    /// Keeps the state that all ranks have whole copies of by now, before it changes.
    pub(crate) fn keep_copied(&mut self) {
        let Self { device, store, adapters, copies, .. } = self;
        let state = TrainedState { device, store, adapters: adapters.as_deref() };
        if let Some(copies) = copies {
            copies.keep(&state);
        }
    }

    /// Waits for what must have the state before it changes.
    pub(crate) fn complete_copies(&mut self) -> Result<(), CommError> {
        let Self { device, store, adapters, copies, ranks, .. } = self;
        let state = TrainedState { device, store, adapters: adapters.as_deref() };
        if let Some(copies) = copies {
            copies.complete(device, ranks, &state)?;
            copies.exchange_gradients(device, ranks, self.step + 1, &Gradients(state))?;
        }
        self.is_ready = copies.as_ref().is_none_or(Copies::follow_every_step);
        Ok(())
    }

    /// One step of the optimizer over what this rank owns and what it keeps for another.
    pub(crate) fn learn_from_gradients(&mut self, adamw: &AdamW) {
        let Self { device, store, adapters, copies, .. } = self;
        match adapters {
            None => store.update(device, adamw),
            Some(adapters) => adapters.step(device, adamw),
        }
        if let Some(copies) = copies {
            copies.learn(device, adamw);
        }
        self.is_ready = false;
    }

    /// Ends this trainer and keeps its state and the copies of others. Memory that other ranks reach is copied.
    pub(crate) fn into_recovered_state(mut self) -> RecoveredState {
        let (learned, step) = (self.learned(), self.step);
        let copies = self.copies.take();
        let mut samples_at = BTreeMap::from_iter(self.samples_at(step));
        let before = copies.iter().flat_map(Copies::steps).filter_map(|step| self.samples_at(step));
        samples_at.extend(before);
        let norms = self.norm_before.into_iter().map(|norm| (step, norm)).collect();
        let mut gradients = Vec::new();
        if self.is_ready {
            gradients.extend(learned.iter().enumerate().map(|(index, of)| {
                let mut numbers = self.device.zeros(of.weights.range.len());
                let from = match &self.adapters {
                    Some(adapters) => adapters.gradient(),
                    None => self.store.gradient(index),
                };
                self.device.copy(from, numbers.view_mut());
                Gradient { of: of.clone(), numbers }
            }));
        }
        let Self { device, mut store, adapters, is_ready, .. } = self;
        let count = learned.len();
        let buffers = match adapters {
            Some(adapters) => adapters.into_parts().into_iter().collect(),
            None => (0..PARTS.len() * count)
                .map(|number| store.take_part(&device, number / count, number % count))
                .collect::<Vec<_>>(),
        };
        let holding = |(piece, numbers)| Holding { piece, step, numbers };
        let holdings = Learned::pieces(&learned).into_iter().zip(buffers).map(holding).collect();
        let mut recovered = RecoveredState { holdings, samples_at, norms, ready: None };
        if let Some(copies) = copies {
            let (holdings, of_theirs) = copies.into_holdings();
            recovered.add(RecoveredState { holdings, ..RecoveredState::default() });
            gradients.extend(of_theirs);
        }
        recovered.ready = is_ready.then_some(Ready { step: step + 1, gradients });
        recovered
    }

    /// Samples after a step that has been done; every step takes the same number.
    fn samples_at(&self, step: u64) -> Option<(u64, u64)> {
        let since = self.step.checked_sub(step)? * self.config.training.batch;
        Some((step, self.samples.checked_sub(since)?))
    }

    /// Takes over the state that the ranks of the world before still have. Buffers that this rank holds as it is to have them move over;
    /// if this fails they are back where they were.
    pub(crate) fn take_over(&mut self, recovered: &mut RecoveredState) -> Result<(), TrainError> {
        let (wanted, ranks) = (self.pieces(), Arc::clone(&self.ranks));
        let count = self.state().lengths().len();
        let places: BTreeMap<Key, (usize, usize, usize)> = wanted
            .iter()
            .enumerate()
            .map(|(number, piece)| (piece.key.clone(), (number / count, number % count, piece.range.start)))
            .collect();
        let room = |(part, index, _): (usize, usize, usize)| match self.adapters {
            None => self.store.room(part, index),
            Some(_) => None,
        };
        let rooms: BTreeMap<&Key, Option<usize>> =
            places.iter().map(|(key, place)| (key, room(*place))).collect();
        let keeps = |holding: &Holding| {
            rooms.get(&holding.piece.key).is_some_and(|room| *room == Some(holding.numbers.len()))
        };
        let steps = Steps::of(&self.config);
        let Self { device, store, adapters, .. } = self;
        let mut target = Places { store, adapters: adapters.as_deref_mut(), by_key: &places };
        let (agreed, kept) = recovered.share_out(device, &ranks, wanted, &steps, &keeps, &mut target)?;
        for piece in &kept {
            let numbers = recovered.take(piece, agreed.step).expect("what is kept is held by this rank");
            let (part, index, _) = places[&piece.key];
            self.store.exchange(part, index, numbers);
        }
        self.store.round(&self.device);
        (self.step, self.samples) = (agreed.step, agreed.samples);
        self.moved = kept;
        self.spread()
    }

    /// Gives buffers back that moved over, where the ranks of the new world do not begin after all.
    pub(crate) fn give_back(mut self, recovered: &mut RecoveredState) {
        let (pieces, count) = (self.pieces(), self.state().lengths().len());
        for piece in std::mem::take(&mut self.moved) {
            let Some(number) = pieces.iter().position(|own| *own == piece) else { continue };
            let numbers = self.store.take_part(&self.device, number / count, number % count);
            recovered.holdings.push(Holding { piece, step: self.step, numbers });
        }
    }
}

fn write_part<E: Trained>(
    device: &Device,
    store: &mut WeightStore<E>,
    adapters: Option<&mut Adapters<E>>,
    [part, index]: [usize; 2],
    range: Range<usize>,
    values: &[f32],
) {
    match (adapters, part) {
        (Some(adapters), part) => device.write(adapters.parts_mut()[part].range_mut(range), values),
        (None, 0) => store.write_master(device, index, range, values),
        (None, 1) => device.write(store.owned_mut()[index].first.range_mut(range), values),
        (None, _) => device.write(store.owned_mut()[index].second.range_mut(range), values),
    }
}

#[cfg(test)]
mod tests;
