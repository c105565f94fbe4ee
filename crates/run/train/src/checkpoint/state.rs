//! The state of a trainer as regions of whole tensors: trained numbers, and their first and second moments.

use std::ops::Range;

use bedplate_checkpoint::{Checkpoint, Facts, Held, Region, Wanted};
use bedplate_kernels::{Buffer, Device};
use bedplate_network::Weights;

use crate::TrainError;
use crate::optimizer::Optimizer;
use crate::parameters::Trained;
use crate::trainer::{Learner, Trainer};

/// The parts of the state, as their tensors are called.
const PARTS: [&str; 3] = ["weights", "first", "second"];

/// Where the numbers of a region lie, one after the other.
#[derive(Debug, Clone)]
pub(crate) struct Lying {
    /// Weights, first or second moments.
    part: usize,
    /// Which of the optimizer's ranges; the one buffer of adapters.
    owned: usize,
    /// In that range or buffer.
    range: Range<usize>,
}

/// What there is to copy, without the rest of the trainer.
pub(crate) struct State<'a> {
    device: &'a Device,
    of: Of<'a>,
}

enum Of<'a> {
    All { master: &'a Weights<f32>, optimizer: &'a Optimizer },
    Adapters([&'a Buffer<f32>; 3]),
}

impl<'a> State<'a> {
    pub(crate) fn of_weights(device: &'a Device, master: &'a Weights<f32>, optimizer: &'a Optimizer) -> Self {
        Self { device, of: Of::All { master, optimizer } }
    }

    pub(crate) fn of_adapters(device: &'a Device, parts: [&'a Buffer<f32>; 3]) -> Self {
        Self { device, of: Of::Adapters(parts) }
    }

    pub(super) fn held<'b>(&'b self, lying: &'b [Lying]) -> Regions<'b> {
        Regions { state: self, lying }
    }
}

/// The state by region.
pub(super) struct Regions<'a> {
    state: &'a State<'a>,
    lying: &'a [Lying],
}

impl Held for Regions<'_> {
    fn read(&self, region: usize, range: Range<usize>, values: &mut [f32]) {
        let Lying { part, owned, range: of } = &self.lying[region];
        let range = of.start + range.start..of.start + range.end;
        let device = self.state.device;
        match &self.state.of {
            Of::Adapters(parts) => device.read(parts[*part].range(range), values),
            Of::All { master, optimizer } => {
                let owned = &optimizer.owned[*owned];
                match part {
                    0 => device.read(master.block(owned.block).range(owned.in_block(range)), values),
                    1 => device.read(owned.first.range(range), values),
                    _ => device.read(owned.second.range(range), values),
                }
            }
        }
    }
}

impl<E: Trained> Trainer<E> {
    pub(crate) fn state(&self) -> State<'_> {
        match &self.learner {
            Learner::All { optimizer, .. } => {
                State::of_weights(&self.device, self.parameters.master(), optimizer)
            }
            Learner::Adapters(adapters) => State::of_adapters(&self.device, adapters.parts()),
        }
    }

    /// The regions of the state that are here, each with where it lies.
    pub(super) fn regions(&self) -> Vec<(Region, Lying)> {
        let mut regions = Vec::new();
        for (part, name) in PARTS.iter().enumerate() {
            let mut add = |owned: usize, region: Region, range: Range<usize>| {
                let tensor = format!("{name}/{}", region.tensor);
                regions.push((Region { tensor, ..region }, Lying { part, owned, range }));
            };
            match &self.learner {
                Learner::All { optimizer, .. } => {
                    for (index, owned) in optimizer.owned.iter().enumerate() {
                        let block = &self.network.blocks()[owned.block];
                        for (region, range) in block.regions(owned.range.clone()) {
                            let start = owned.range.start;
                            add(index, region, range.start - start..range.end - start);
                        }
                    }
                }
                Learner::Adapters(adapters) => {
                    adapters.regions().into_iter().for_each(|(region, range)| add(0, region, range));
                }
            }
        }
        regions
    }

    /// Goes back to the state of a checkpoint, whichever layout wrote it.
    pub(crate) fn restore(&mut self, checkpoint: &Checkpoint) -> Result<(), TrainError> {
        let (mut regions, mut lying): (Vec<Region>, Vec<Lying>) = self.regions().into_iter().unzip();
        if is_weights_only(checkpoint) {
            // Where no step has been taken, moments are zero as they are.
            let is_weights = lying.iter().map(|lying| lying.part == 0).collect::<Vec<_>>();
            let mut keep = is_weights.iter();
            regions.retain(|_| keep.next().is_some_and(|is| *is));
            lying.retain(|lying| lying.part == 0);
        }
        checkpoint.load(&regions, &mut Restoring { trainer: self, lying: &lying })?;
        let Self { device, parameters, learner, .. } = self;
        match learner {
            Learner::All { .. } => parameters.round(device),
            Learner::Adapters(adapters) => adapters.merge(device, parameters),
        }
        let Facts { step, samples, .. } = checkpoint.facts();
        (self.step, self.samples) = (*step, *samples);
        Ok(())
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

impl<E: Trained> Wanted for Restoring<'_, E> {
    fn write(&mut self, region: usize, range: Range<usize>, values: &[f32]) {
        let Lying { part, owned, range: of } = &self.lying[region];
        let range = of.start + range.start..of.start + range.end;
        let Trainer { device, parameters, learner, .. } = &mut *self.trainer;
        match learner {
            Learner::Adapters(adapters) => device.write(adapters.parts_mut()[*part].range_mut(range), values),
            Learner::All { optimizer, .. } => {
                let owned = &mut optimizer.owned[*owned];
                match part {
                    0 => {
                        let in_block = owned.in_block(range);
                        device.write(parameters.master_mut().block_mut(owned.block).range(in_block), values);
                    }
                    1 => device.write(owned.first.range_mut(range), values),
                    _ => device.write(owned.second.range_mut(range), values),
                }
            }
        }
    }
}
