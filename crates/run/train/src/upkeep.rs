//! What goes on beside the passes of a step: copies of the state for other ranks, and checkpoints.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use bedplate_comm::CommError;
use bedplate_kernels::Device;

use crate::TrainError;
use crate::adapter::Adapters;
use crate::carry::{Carried, Holding, Key, Piece};
use crate::copies::{Copies, Source};
use crate::store::Store;
use crate::trained::Trained;
use crate::trainer::Trainer;

/// The parts of the state, as their tensors are called: master weights and two moments.
pub(crate) const PARTS: [&str; 3] = ["weights", "first", "second"];

/// The trained numbers of a rank as they are now.
pub(crate) struct State<'a, E: Trained> {
    pub(crate) device: &'a Device,
    pub(crate) store: &'a Store<E>,
    pub(crate) adapters: Option<&'a Adapters<E>>,
}

impl<E: Trained> State<'_, E> {
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

impl<E: Trained> Source for State<'_, E> {
    fn len(&self) -> usize {
        PARTS.len() * self.lengths().iter().sum::<usize>()
    }

    fn read(&self, range: Range<usize>, values: &mut [f32]) {
        let lengths = self.lengths();
        let mut start = 0;
        for part in 0..PARTS.len() {
            for (index, len) in lengths.iter().enumerate() {
                let own = range.start.max(start)..range.end.min(start + len);
                if !own.is_empty() {
                    let to = &mut values[own.start - range.start..own.end - range.start];
                    self.read_part(part, index, own.start - start..own.end - start, to);
                }
                start += len;
            }
        }
    }
}

impl<E: Trained> Trainer<E> {
    pub(crate) fn state(&self) -> State<'_, E> {
        State { device: &self.device, store: &self.store, adapters: self.adapters.as_deref() }
    }

    /// What this rank holds, in the order in which [`State`] reads it.
    pub(crate) fn pieces(&self) -> Vec<Piece> {
        let at = self.ranks.at();
        let key = |part: usize, expert, block| Key {
            stage: at.pipeline,
            tensor: at.tensor,
            expert,
            block,
            part: part as u32,
        };
        if let Some(adapters) = &self.adapters {
            let expert = Some(at.expert).filter(|_| self.ranks.layout().expert > 1);
            let piece = |part| Piece { key: key(part, expert, None), range: 0..adapters.len() };
            return (0..PARTS.len()).map(piece).collect();
        }
        let owned = || self.store.owned().iter();
        let piece = |part| {
            owned().map(move |owned| {
                let start = owned.range.start - owned.section.start;
                let expert = owned.is_expert().then_some(at.expert);
                let range = start..start + owned.used;
                Piece { key: key(part, expert, Some(owned.block as u32)), range }
            })
        };
        (0..PARTS.len()).flat_map(piece).collect()
    }

    /// Writes numbers of one part of one thing; [`spread`](Self::spread) comes afterwards.
    pub(crate) fn write_part(&mut self, part: usize, index: usize, range: Range<usize>, values: &[f32]) {
        let Self { device, store, adapters, .. } = self;
        write_part(device, store, adapters.as_deref_mut(), [part, index], range, values);
    }

    /// Starts to keep copies of the state in the neighbour's memory, where no other rank has it.
    pub fn keep_copies(&mut self, every: u64) -> Result<(), CommError> {
        if every > 0 && self.ranks.keeps_copies() {
            self.copies = Copies::new(&self.device, &self.ranks, every, &self.pieces())?;
        }
        Ok(())
    }

    /// Begins the copy of the state with which the ranks of a world begin, whatever its step.
    pub(crate) fn begin_first_copy(&mut self) {
        if let Some(copies) = &mut self.copies {
            copies.begin_now(self.step);
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
        let state = State { device, store, adapters: adapters.as_deref() };
        if let Some(copies) = copies {
            copies.keep(device, &state);
        }
    }

    /// Waits for what must have the state before it changes.
    pub(crate) fn complete_copies(&mut self) -> Result<(), CommError> {
        let Self { device, store, adapters, copies, ranks, .. } = self;
        let state = State { device, store, adapters: adapters.as_deref() };
        copies.as_mut().map_or(Ok(()), |copies| copies.complete(device, ranks, &state))
    }

    /// Ends this trainer and keeps its state and the copies of others. Only weights are copied: they may lie in memory that other
    /// ranks reach.
    pub(crate) fn carry(mut self) -> Carried {
        let (pieces, step) = (self.pieces(), self.step);
        let copies = self.copies.take();
        let mut samples_at = BTreeMap::from_iter(self.samples_at(step));
        let before = copies.iter().flat_map(Copies::steps).filter_map(|step| self.samples_at(step));
        samples_at.extend(before);
        let Self { device, store, adapters, .. } = self;
        let buffers = match adapters {
            Some(adapters) => adapters.into_parts().into_iter().collect(),
            None => store.into_parts(&device),
        };
        let holding = |(piece, numbers)| Holding { piece, step, start: 0, numbers: Arc::new(numbers) };
        let mut holdings: Vec<Holding> = pieces.into_iter().zip(buffers).map(holding).collect();
        holdings.extend(copies.into_iter().flat_map(Copies::into_holdings));
        Carried { holdings, samples_at }
    }

    /// Samples after a step that has been done; every step takes the same number.
    fn samples_at(&self, step: u64) -> Option<(u64, u64)> {
        let since = self.step.checked_sub(step)? * self.config.training.batch;
        Some((step, self.samples.checked_sub(since)?))
    }

    /// Takes over the state that the ranks of the world before still have. Moments that this rank holds as it is to have them move over;
    /// if this fails they are back where they were.
    pub(crate) fn take_over(&mut self, carried: &mut Carried) -> Result<(), TrainError> {
        let (wanted, ranks) = (self.pieces(), Arc::clone(&self.ranks));
        let count = self.state().lengths().len();
        let places: BTreeMap<Key, (usize, usize, usize)> = wanted
            .iter()
            .enumerate()
            .map(|(number, piece)| (piece.key.clone(), (number / count, number % count, piece.range.start)))
            .collect();
        let rooms: Vec<usize> = self.store.owned().iter().map(|owned| owned.first.len()).collect();
        let Self { device, store, adapters, .. } = self;
        let learns_all = adapters.is_none();
        let keeps = |holding: &Holding| {
            let place = places.get(&holding.piece.key).filter(|(part, ..)| learns_all && *part > 0);
            let fits = place.is_some_and(|(_, index, _)| holding.numbers.len() == rooms[*index]);
            fits && Arc::strong_count(&holding.numbers) == 1
        };
        let (agreed, kept) = carried.share_out(device, &ranks, wanted, &keeps, &mut |piece, values| {
            let Some((part, index, first)) = places.get(&piece.key).copied() else { return };
            let range = piece.range.start - first..piece.range.end - first;
            match (adapters.as_deref_mut(), part) {
                (Some(adapters), part) => device.copy(values, adapters.parts_mut()[part].range_mut(range)),
                (None, 0) => store.place_master(device, index, range, values),
                (None, 1) => device.copy(values, store.owned_mut()[index].first.range_mut(range)),
                (None, _) => device.copy(values, store.owned_mut()[index].second.range_mut(range)),
            }
        })?;
        for piece in &kept {
            let numbers = carried.take(piece, agreed.step).expect("what is kept is held by this rank alone");
            let (part, index, _) = places[&piece.key];
            let owned = &mut self.store.owned_mut()[index];
            *(if part == 1 { &mut owned.first } else { &mut owned.second }) = numbers;
        }
        (self.step, self.samples) = (agreed.step, agreed.samples);
        self.moved = kept;
        self.spread()
    }

    /// Gives moments back that moved over, where the ranks of the new world do not begin after all.
    pub(crate) fn give_back(mut self, carried: &mut Carried) {
        let (pieces, count) = (self.pieces(), self.state().lengths().len());
        for piece in std::mem::take(&mut self.moved) {
            let Some(number) = pieces.iter().position(|own| *own == piece) else { continue };
            let owned = &mut self.store.owned_mut()[number % count];
            let moment = if number / count == 1 { &mut owned.first } else { &mut owned.second };
            let numbers = Arc::new(std::mem::replace(moment, self.device.zeros(0)));
            carried.holdings.push(Holding { piece, step: self.step, start: 0, numbers });
        }
    }
}

fn write_part<E: Trained>(
    device: &Device,
    store: &mut Store<E>,
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
