//! Low-rank adapters (LoRA): frozen weights `W`, trained `A` and `B`, computed with `W + s B A`.
//!
//! Each step merges the adapters once, and the network computes with the sum as with any weights, so every matrix of every
//! family can have an adapter. The gradients follow from the gradient `G` of the sum, block by block: `dA = s B^T G` and
//! `dB = s G A^T`. In bf16 the sum is rounded like the weights of an ordinary run.
//!
//! An embedding is a matrix like any other here, its rows being outputs; PEFT keeps the adapters of embeddings transposed and under
//! other names, and so do the files.

mod entries;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use bedplate_comm::{CommError, Reduction};
use bedplate_kernels::{Accumulate, AdamW, Buffer, Device, Element, Matrix, View, ViewMut};
use bedplate_network::{Network, Region, SafetensorsFile, TensorFormat, Weights, write_tensors};
use bedplate_transformer::Family;
use serde_json::json;

use crate::ranks::RunRanks;
use crate::store::WeightStore;
use crate::trained::Trained;
use crate::{AdapterConfig, TrainError};
use entries::{AdaptedMatrix, Sharing, count, entries, targets};

pub const ADAPTER_FILE: &str = "adapter_model.safetensors";
pub const ADAPTER_CONFIG_FILE: &str = "adapter_config.json";

/// The adapters of a network, with the state of their optimizer.
pub struct Adapters<E: Element> {
    config: AdapterConfig,
    targets: Vec<String>,
    /// Files hold the transposed matrices of the model.
    is_transposed: bool,
    entries: Vec<AdaptedMatrix>,
    /// The weights before adaptation; absent where they are gathered anew for each use.
    base: Option<Weights<E>>,
    pub(crate) values: Buffer<f32>,
    pub(crate) gradient: Buffer<f32>,
    pub(crate) first: Buffer<f32>,
    pub(crate) second: Buffer<f32>,
    /// The gradient of one block's weights at a time.
    block_gradient: Buffer<f32>,
    scaled: RefCell<Buffer<f32>>,
}

/// Has a block's weights here to compute with, and the next ones on their way.
pub(crate) fn enter<E: Trained>(
    device: &Device,
    network: &Network,
    store: &mut WeightStore<E>,
    adapters: Option<&Adapters<E>>,
    ranks: &RunRanks,
    block: usize,
    next: Option<usize>,
) -> Result<(), CommError> {
    let is_new = store.need(device, network, ranks, block);
    if let Some(next) = next {
        store.prefetch(device, network, ranks, next);
    }
    ranks.check()?;
    if let Some(adapters) = adapters.filter(|_| is_new) {
        adapters.add_to(device, block, store.working_mut());
    }
    Ok(())
}

impl<E: Trained> Adapters<E> {
    /// Adapters for the weights as they are: `A` random from the seed, `B` zero, so that nothing changes at first.
    pub(crate) fn new(
        network: &Network,
        device: &Device,
        config: &AdapterConfig,
        seed: u64,
        store: &WeightStore<E>,
    ) -> Result<Self, TrainError> {
        let is_here = |block: usize| store.owned().iter().any(|owned| owned.block == block);
        let entries = entries(network, config, &is_here)?;
        let (len, widest) = count(&entries);
        let largest = network.blocks().iter().map(|block| block.len).max().unwrap_or(0);
        let base = store.copy_of_whole(device, network);
        let mut values = device.zeros(len);
        for entry in &entries {
            device.write(values.range_mut(entry.a.clone()), &entry.first_a(network, config.rank, seed));
        }
        Ok(Self {
            config: config.clone(),
            targets: targets(network, config),
            is_transposed: network.architecture().transformer.family == Family::Gpt2,
            base,
            values,
            gradient: device.zeros(len),
            first: device.zeros(len),
            second: device.zeros(len),
            block_gradient: device.zeros(largest),
            scaled: RefCell::new(device.zeros(widest)),
            entries,
        })
    }

    /// Numbers that are trained.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    pub fn bytes(&self) -> usize {
        let scaled = self.scaled.borrow();
        let own = [&self.values, &self.gradient, &self.first, &self.second, &self.block_gradient, &*scaled];
        own.map(Buffer::bytes).iter().sum::<usize>() + self.base.as_ref().map_or(0, Weights::bytes)
    }

    pub(crate) fn gradient(&self) -> View<'_, f32> {
        self.gradient.view()
    }

    /// Values and moments.
    pub(crate) fn parts(&self) -> [&Buffer<f32>; 3] {
        [&self.values, &self.first, &self.second]
    }

    /// The same where the adapters end.
    pub(crate) fn into_parts(self) -> [Buffer<f32>; 3] {
        [self.values, self.first, self.second]
    }

    pub(crate) fn parts_mut(&mut self) -> [&mut Buffer<f32>; 3] {
        [&mut self.values, &mut self.first, &mut self.second]
    }

    /// The matrices of the adapters that this rank holds, each with where it lies in their buffers. With `given`, without those that
    /// another rank gives to a checkpoint.
    pub(crate) fn regions(&self, ranks: &RunRanks, given: bool) -> Vec<(Region, Range<usize>)> {
        let rank = self.config.rank;
        let mut regions = Vec::new();
        for entry in &self.entries {
            let is_first = ranks.sharers(entry.is_expert).is_first();
            for part in entry.parts(rank) {
                let sharing = if part.range == entry.a { entry.a_sharing } else { entry.b_sharing };
                if !given || is_first && (sharing == Sharing::Sharded || ranks.at().tensor == 0) {
                    entry.add_regions(part, rank, &mut regions);
                }
            }
        }
        regions
    }

    /// Room for a block's gradient, set to zero; `None` where the block has no adapted matrices and needs none.
    pub(crate) fn cleared_gradient(
        &mut self,
        device: &Device,
        block: usize,
        len: usize,
    ) -> Option<ViewMut<'_, f32>> {
        if !self.entries.iter().any(|entry| entry.block == block) {
            return None;
        }
        device.fill(self.block_gradient.range_mut(0..len), 0.0);
        Some(self.block_gradient.range_mut(0..len))
    }

    fn scale(&self) -> f64 {
        self.config.scale()
    }

    /// Adds to the adapters' gradients what follows from the block's in `block_gradient`, without the factor `s`.
    pub(crate) fn project(&mut self, device: &Device, block: usize) {
        let rank = self.config.rank;
        for entry in self.entries.iter().filter(|entry| entry.block == block) {
            let of_sum = self.block_gradient.range(entry.weight.clone()).matrix(entry.outputs, entry.inputs);
            let b = self.values.range(entry.b.clone()).matrix(entry.outputs, rank);
            device.linear_backward_weight(b, of_sum, self.gradient.range_mut(entry.a.clone()), None);
            let a = self.values.range(entry.a.clone());
            let scaled = self.scaled.get_mut();
            device.copy(self.gradient.range(entry.b.clone()), scaled.range_mut(0..entry.b.len()));
            let so_far: Matrix<'_, f32> = scaled.range(0..entry.b.len()).matrix(entry.outputs, rank);
            let d_b = self.gradient.range_mut(entry.b.clone()).matrix(entry.outputs, rank);
            device.linear(of_sum, a, None, Some(so_far), d_b);
        }
    }

    pub(crate) fn clear_gradient(&mut self, device: &Device) {
        device.fill(self.gradient.view_mut(), 0.0);
    }

    /// Adds up the gradients of all ranks.
    pub(crate) fn reduce(&mut self, device: &Device, ranks: &RunRanks) -> Result<(), CommError> {
        if ranks.count() == 1 {
            return Ok(());
        }
        for entry in &self.entries {
            let sharers = ranks.sharers(entry.is_expert);
            for group in [&sharers.split, &sharers.copies].into_iter().flatten() {
                let both = self.gradient.range_mut(entry.a.start..entry.b.end);
                ranks.waits.time(|| group.all_reduce(device, both, Reduction::Sum))?;
            }
            for (range, sharing) in [(&entry.a, entry.a_sharing), (&entry.b, entry.b_sharing)] {
                if let Some(group) = ranks.tensor.as_ref().filter(|_| sharing == Sharing::Partial) {
                    let numbers = self.gradient.range_mut(range.clone());
                    ranks.waits.time(|| group.all_reduce(device, numbers, Reduction::Sum))?;
                }
            }
        }
        Ok(())
    }

    /// Of what counts here: what several ranks have counts on the first of them.
    pub(crate) fn sum_of_squares(&self, device: &Device, ranks: &RunRanks) -> f64 {
        if ranks.count() == 1 {
            return device.sum_of_squares(self.gradient.view());
        }
        let squares = |range: &Range<usize>| device.sum_of_squares(self.gradient.range(range.clone()));
        let of = |entry: &AdaptedMatrix| {
            let is_first = ranks.sharers(entry.is_expert).is_first();
            let parts = [(&entry.a, entry.a_sharing), (&entry.b, entry.b_sharing)];
            let counts = |sharing| is_first && (sharing == Sharing::Sharded || ranks.at().tensor == 0);
            let counted = parts.into_iter().filter(|(_, sharing)| counts(*sharing));
            counted.map(|(range, _)| squares(range)).sum::<f64>()
        };
        self.entries.iter().map(of).sum()
    }

    /// The norm that gradients have with this sum of squares.
    pub(crate) fn norm(&self, squares: f64) -> f64 {
        self.scale() * squares.sqrt()
    }

    /// One step of the optimizer, which multiplies gradients by their [scale](AdapterConfig::scale).
    pub(crate) fn step(&mut self, device: &Device, step: &AdamW) {
        device.adamw(
            step,
            self.values.view_mut(),
            self.gradient.view(),
            self.first.view_mut(),
            self.second.view_mut(),
            None,
        );
    }

    /// Makes the weights to compute with, those before adaptation and the adapters' part; where weights are gathered, each
    /// block's are made when it comes.
    pub(crate) fn merge(&self, device: &Device, store: &mut WeightStore<E>) {
        let Some(base) = &self.base else { return };
        for entry in &self.entries {
            let to = store.working_mut().block_mut(entry.block).range(entry.weight.clone());
            device.copy(base.block(entry.block).range(entry.weight.clone()), to);
            self.add(device, entry, store.working_mut());
        }
    }

    /// Adds the adapters' part to a block that has just been gathered.
    fn add_to(&self, device: &Device, block: usize, weights: &mut Weights<E>) {
        let of_block = self.entries.iter().filter(|entry| entry.block == block);
        of_block.for_each(|entry| self.add(device, entry, weights));
    }

    fn add(&self, device: &Device, entry: &AdaptedMatrix, weights: &mut Weights<E>) {
        let (scale, len) = (self.scale() as f32, entry.b.len());
        let mut scaled = self.scaled.borrow_mut();
        device.scale(self.values.range(entry.b.clone()), scale, scaled.range_mut(0..len));
        let scaled = scaled.range(0..len).matrix(entry.outputs, self.config.rank);
        let to = weights.block_mut(entry.block).range(entry.weight.clone());
        let to = to.matrix(entry.outputs, entry.inputs);
        device.linear_backward_input(scaled, self.values.range(entry.a.clone()), Accumulate::Add, to);
    }

    /// Writes the adapters as PEFT reads them.
    pub fn save(&self, device: &Device, folder: &Path) -> Result<(), TrainError> {
        let mut tensors = Vec::new();
        for entry in &self.entries {
            for part in entry.parts(self.config.rank) {
                let mut values = vec![0.0; part.range.len()];
                device.read(self.values.range(part.range.clone()), &mut values);
                tensors.push((part.name.clone(), part.stored_shape(), part.to_stored(values)));
            }
        }
        let config = json!({
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "r": self.config.rank,
            "lora_alpha": self.config.alpha,
            "target_modules": self.targets,
            "lora_dropout": 0.0,
            "bias": "none",
            "fan_in_fan_out": self.is_transposed,
        });
        let path = folder.join(ADAPTER_CONFIG_FILE);
        std::fs::create_dir_all(folder)
            .and_then(|()| std::fs::write(&path, format!("{config:#}\n")))
            .map_err(|source| TrainError::WriteOutput { path, source })?;
        let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
        Ok(write_tensors(&folder.join(ADAPTER_FILE), TensorFormat::F32, &metadata, &tensors)?)
    }

    /// Reads what [`Adapters::save`] wrote.
    pub fn load(&mut self, device: &Device, folder: &Path) -> Result<(), TrainError> {
        let path = folder.join(ADAPTER_FILE);
        let file = SafetensorsFile::open(&path)?;
        for part in self.entries.iter().flat_map(|entry| entry.parts(self.config.rank)) {
            let is_same =
                file.tensors().get(&part.name).is_some_and(|stored| stored.shape == part.stored_shape());
            let values = if is_same { file.read(&part.name)? } else { None };
            let other = || TrainError::OtherAdapter { path: path.clone(), tensor: part.name.clone() };
            let values = part.read_back(values.ok_or_else(other)?);
            device.write(self.values.range_mut(part.range.clone()), &values);
        }
        Ok(())
    }
}

/// Numbers of all adapters, and of the `B` of the largest.
pub(crate) fn numbers(network: &Network, config: &AdapterConfig) -> Result<(usize, usize), TrainError> {
    Ok(count(&entries(network, config, &|_| true)?))
}

#[cfg(test)]
mod tests;
