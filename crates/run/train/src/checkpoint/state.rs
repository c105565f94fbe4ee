//! The state of a rank as regions of whole tensors: trained numbers, and their first and second moments.

use std::ops::Range;

use bedplate_checkpoint::{Checkpoint, HeldPart, Region, RunFacts, WantedPart};

use crate::TrainError;
use crate::trained::Trained;
use crate::trainer::Trainer;
use crate::upkeep::{PARTS, TrainedState};

/// Where the numbers of a region lie, one after the other.
#[derive(Debug, Clone)]
pub(crate) struct Lying {
    /// Weights, first or second moments.
    part: usize,
    /// Which of the store's ranges; the one buffer of adapters.
    owned: usize,
    /// In that range or buffer.
    range: Range<usize>,
}

impl<'a, E: Trained> TrainedState<'a, E> {
    pub(super) fn held<'b>(&'b self, lying: &'b [Lying]) -> Regions<'a, 'b, E> {
        Regions { state: self, lying }
    }
}

/// The state by region.
pub(super) struct Regions<'a, 'b, E: Trained> {
    state: &'b TrainedState<'a, E>,
    lying: &'b [Lying],
}

impl<E: Trained> HeldPart for Regions<'_, '_, E> {
    fn read(&self, region: usize, range: Range<usize>, values: &mut [f32]) {
        let Lying { part, owned, range: of } = &self.lying[region];
        self.state.read_part(*part, *owned, of.start + range.start..of.start + range.end, values);
    }
}

impl<E: Trained> Trainer<E> {
    /// The regions of the state that are here, each with where it lies; with `given`, those that this rank gives to a checkpoint:
    /// what several ranks have the same is given by the first of them.
    pub(super) fn regions(&self, given: bool) -> Vec<(Region, Lying)> {
        let mut regions = Vec::new();
        for (part, name) in PARTS.iter().enumerate() {
            let mut add = |owned: usize, region: Region, range: Range<usize>| {
                let tensor = format!("{name}/{}", region.tensor);
                regions.push((Region { tensor, ..region }, Lying { part, owned, range }));
            };
            if let Some(adapters) = &self.adapters {
                let own = adapters.regions(&self.ranks, given);
                own.into_iter().for_each(|(region, range)| add(0, region, range));
                continue;
            }
            for (index, owned) in self.store.owned().iter().enumerate() {
                let block = &self.network.blocks()[owned.block];
                for (region, range) in block.regions(owned.range.clone()) {
                    let mut tensors = block.tensors.iter();
                    let is_cut = tensors.any(|tensor| tensor.name == region.tensor && tensor.is_cut());
                    if !given || owned.is_given(&self.ranks, is_cut) {
                        let start = owned.range.start;
                        add(index, region, range.start - start..range.end - start);
                    }
                }
            }
        }
        regions
    }

    /// Goes back to the state of a checkpoint, whichever layout wrote it.
    pub(crate) fn restore(&mut self, checkpoint: &Checkpoint) -> Result<(), TrainError> {
        let mut regions = self.regions(false);
        if is_weights_only(checkpoint) {
            // Where no step has been taken, moments are zero as they are.
            regions.retain(|(_, lying)| lying.part == 0);
        }
        let (regions, lying): (Vec<Region>, Vec<Lying>) = regions.into_iter().unzip();
        checkpoint.load(&regions, &mut Restoring { trainer: self, lying: &lying })?;
        let RunFacts { step, samples, .. } = checkpoint.facts();
        (self.step, self.samples) = (*step, *samples);
        self.spread()
    }
}

/// A model's weights from elsewhere, before the first step.
fn is_weights_only(checkpoint: &Checkpoint) -> bool {
    let tensors = checkpoint.manifest().tensors();
    checkpoint.facts().step == 0 && tensors.keys().all(|name| name.starts_with("weights/"))
}

struct Restoring<'a, E: Trained> {
    trainer: &'a mut Trainer<E>,
    lying: &'a [Lying],
}

impl<E: Trained> WantedPart for Restoring<'_, E> {
    fn write(&mut self, region: usize, range: Range<usize>, values: &[f32]) {
        let Lying { part, owned, range: of } = &self.lying[region];
        self.trainer.write_part(*part, *owned, of.start + range.start..of.start + range.end, values);
    }
}
