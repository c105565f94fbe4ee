//! The trainer: the state of a run on one rank, and one step of it.

use std::borrow::Borrow;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use bedplate_breakdown::{Breakdown, Measured, Part, Span};
use bedplate_data::Batch;
use bedplate_kernels::Device;
use bedplate_network::{Network, Sampler, Weights, WorkspaceShape};
use bedplate_record::RankTimes;
use bedplate_serve::FreeMemory;
use bedplate_units::{Bytes, Seconds};

use crate::adapter::Adapters;
use crate::checkpoint::Snapshot;
use crate::copies::Copies;
use crate::memory;
use crate::optimizer::Steps;
use crate::passes::{Chunks, Weighing};
use crate::ranks::RunRanks;
use crate::recovered_state::SectionPiece;
use crate::store::WeightStore;
use crate::trained::Trained;
use crate::{TrainConfig, TrainError};

/// A network in training, or the part of it that is this rank's. Computes in `E`.
pub struct Trainer<E: Trained> {
    pub(crate) device: Device,
    pub(crate) network: Network,
    pub(crate) config: TrainConfig,
    /// Tensors of the files of first weights that the network does not use.
    pub(crate) unused: Vec<String>,
    pub(crate) store: WeightStore<E>,
    /// What is trained instead of all weights.
    pub(crate) adapters: Option<Box<Adapters<E>>>,
    pub(crate) chunks: Chunks<E>,
    /// Of the state, in other ranks' memory.
    pub(crate) copies: Option<Copies>,
    /// A checkpoint that is being made of the state.
    pub(crate) snapshot: Option<Snapshot>,
    /// Steps done.
    pub(crate) step: u64,
    /// Samples learned from.
    pub(crate) samples: u64,
    /// Buffers that moved over from the world before and have not changed since.
    pub(crate) moved: Vec<SectionPiece>,
    /// Whether all that this rank holds, and keeps for another with every step, has its gradient of the next one.
    pub(crate) is_ready: bool,
    /// The norm of the gradient that led to this step, if it was done in this world.
    pub(crate) norm_before: Option<f64>,
    /// What the last step did, as far as it was known when this rank's numbers changed: ranks may be lost before all know the rest.
    pub(crate) done: Option<StepOutcome>,
    /// Last: what is shared with other ranks ends before they part.
    pub(crate) ranks: Arc<RunRanks>,
}

/// What a trainer begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum First {
    /// Those that the configuration names, or fresh ones.
    Weights,
    /// Zeros in place of what is trained.
    Nothing,
}

/// What a step did, over all ranks.
#[derive(Debug, Clone)]
pub struct StepOutcome {
    /// Mean over the targets of the step, in nats.
    pub loss: f64,
    /// Before clipping.
    pub gradient_norm: f64,
    pub learning_rate: f64,
    /// Positions computed, and those among them that counted.
    pub tokens: usize,
    pub targets: usize,
    /// The samples of the step, where each of them was in exactly one micro-batch of one rank.
    pub samples: Option<Range<u64>>,
    /// Of this rank.
    pub breakdown: Breakdown<Measured>,
    pub seconds: Seconds,
    /// Where there are several.
    pub ranks: Option<RankTimes>,
}

impl<E: Trained> Trainer<E> {
    /// Trains a whole network in this process; refuses one that is larger than the memory that is free.
    pub fn new(network: Network, device: Device, config: TrainConfig) -> Result<Self, TrainError> {
        let logits = bedplate_network::logits_on(&device);
        let free = FreeMemory::on(&device);
        memory::check(&network, &config, &RunRanks::alone(), free, logits)?;
        Self::on(Arc::new(RunRanks::alone()), network, device, config)
    }

    /// Allocates everything and puts the first weights in place: those that the configuration names, or fresh ones. `network` is
    /// this rank's part.
    pub fn on(
        ranks: Arc<RunRanks>,
        network: Network,
        device: Device,
        config: TrainConfig,
    ) -> Result<Self, TrainError> {
        Self::with(ranks, network, device, config, First::Weights)
    }

    /// The same where what is trained may be left [empty](First::Nothing), because it is about to be taken over.
    pub(crate) fn with(
        ranks: Arc<RunRanks>,
        network: Network,
        device: Device,
        config: TrainConfig,
        first: First,
    ) -> Result<Self, TrainError> {
        let network = network.with_products(config.training.precision.products());
        let shape = WorkspaceShape {
            sequences: config.training.micro_batch as usize,
            sequence: config.data.sequence,
            recompute: config.training.recompute,
            has_gradients: true,
        };
        let micro_batches = micro_batches(&config, &ranks);
        let chunks = Chunks::new(&device, &network, &ranks, shape, micro_batches);
        let (learns, keeps) = (config.adapter.is_none(), config.training.keeps_gathered);
        let blocks = chunks.blocks(&network);
        let mut store = WeightStore::new(&device, &network, &ranks, &blocks, learns, keeps)?;
        let unused = match first {
            First::Nothing if learns => Vec::new(),
            _ => first_weights(&device, &network, &config, &blocks, &mut store)?,
        };
        let adapters = match &config.adapter {
            None => None,
            Some(adapter) => {
                let seed = config.model.seed;
                Some(Box::new(Adapters::new(&network, &device, adapter, seed, &store)?))
            }
        };
        Ok(Self {
            device,
            network,
            config,
            unused,
            store,
            adapters,
            chunks,
            copies: None,
            snapshot: None,
            step: 0,
            samples: 0,
            moved: Vec::new(),
            is_ready: false,
            norm_before: None,
            done: None,
            ranks,
        })
    }

    pub fn network(&self) -> &Network {
        &self.network
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    pub fn ranks(&self) -> &RunRanks {
        &self.ranks
    }

    /// Steps done.
    pub fn steps_done(&self) -> u64 {
        self.step
    }

    /// The weights as they are now, adapters merged. Only of runs whose ranks have whole weights.
    pub fn weights(&self) -> &Weights<E> {
        self.store.working()
    }

    /// Numbers that this rank trains.
    pub fn trained(&self) -> usize {
        match &self.adapters {
            None => self.network.parameters(),
            Some(adapters) => adapters.len(),
        }
    }

    /// Bytes of weights, gradients, moments and activations on this rank.
    pub fn memory(&self) -> Bytes {
        let adapters = self.adapters.as_ref().map_or(0, |adapters| adapters.bytes());
        let copies = self.copies.as_ref().map_or(0, Copies::bytes);
        Bytes::new((self.store.bytes() + adapters + copies + self.chunks.bytes()) as f64)
    }

    /// One optimizer step. `batches` are this rank's share of the global batch's micro-batches.
    ///
    /// On a number that is not finite nothing is updated, and the error says where it began. A GPU that fails is an error before its numbers are used.
    pub fn step(&mut self, batches: &[Batch]) -> Result<StepOutcome, TrainError> {
        let began = Instant::now();
        self.device.take_measured();
        self.ranks.waits.take();
        let own = [
            batches.iter().map(|batch| batch.counted).sum::<usize>(),
            batches.len(),
            batches.iter().map(|batch| batch.tokens.len()).sum(),
            batches.iter().map(|batch| batch.rows).sum(),
        ];
        let seen = Seen::of(batches, self.samples);
        let mut totals = [&own.map(|count| count as f64)[..], &seen.0[..]].concat();
        self.ranks.sum_over_data(&self.device, &mut totals)?;
        let (counts, seen) = totals.split_at(own.len());
        let [targets, micro_batches, tokens, rows] = [0, 1, 2, 3].map(|index| counts[index] as usize);
        let samples = Seen([seen[0], seen[1]]).range(self.samples, rows as u64);
        let weighing =
            Weighing { scale: 1.0 / targets.max(1) as f32, balance: 1.0 / micro_batches.max(1) as f32 };
        let own_loss = self.learn(batches, weighing)?;
        // Before a call of all ranks: who comes out of that knows that all copies are whole and have their gradients.
        self.complete_copies()?;
        let mut sums = [own_loss, self.own_squares()];
        // Both were waited for: from here on they are told, and added to those of others.
        self.device.check()?;
        self.ranks.sum_over_all(&self.device, &mut sums)?;
        let (loss, gradient_norm) = (sums[0] / targets.max(1) as f64, self.norm(sums[1]));
        if !loss.is_finite() || !gradient_norm.is_finite() {
            return Err(self.explain_non_finite(batches, loss, gradient_norm)?);
        }
        let learning_rate = self.config.learning_rate().at(self.step);
        self.keep_copied();
        let held_up = self.complete_snapshot();
        let (breakdown, ranks) = (Breakdown::default(), None);
        let seconds = Seconds::new(began.elapsed().as_secs_f64());
        let so_far = StepOutcome {
            loss,
            gradient_norm,
            learning_rate,
            tokens,
            targets,
            samples,
            breakdown,
            seconds,
            ranks,
        };
        self.done = Some(so_far.clone());
        self.update(gradient_norm, rows as u64)?;
        self.begin_copy();
        let seconds = Seconds::new(began.elapsed().as_secs_f64());
        let breakdown = self.measured(seconds, held_up);
        // The update was waited for.
        self.device.check()?;
        let ranks = self.compare_ranks(&breakdown)?;
        Ok(StepOutcome { breakdown, seconds, ranks, ..so_far })
    }

    pub(crate) fn own_squares(&self) -> f64 {
        match &self.adapters {
            None => self.store.sum_of_squares(&self.device, &self.network, &self.ranks),
            Some(adapters) => adapters.sum_of_squares(&self.device, &self.ranks),
        }
    }

    pub(crate) fn norm(&self, squares: f64) -> f64 {
        match &self.adapters {
            None => squares.sqrt(),
            Some(adapters) => adapters.norm(squares),
        }
    }

    /// The step counts as done when this rank's own numbers have changed, before the others have them.
    fn update(&mut self, gradient_norm: f64, samples: u64) -> Result<(), TrainError> {
        let step = Steps::of(&self.config).after(self.step, gradient_norm);
        self.learn_from_gradients(&step);
        self.norm_before = Some(gradient_norm);
        self.step += 1;
        self.samples += samples;
        self.spread()
    }

    /// Makes the weights to compute with from state that has changed.
    pub(crate) fn spread(&mut self) -> Result<(), TrainError> {
        let Self { device, store, adapters, ranks, .. } = self;
        match adapters {
            None => Ok(store.publish(device, ranks)?),
            Some(adapters) => {
                adapters.merge(device, store);
                Ok(())
            }
        }
    }

    /// The time of operators by part, of waiting for other ranks, and the rest as the host's: moving batches, bookkeeping, waking
    /// threads.
    fn measured(&self, whole: Seconds, held_up: Seconds) -> Breakdown<Measured> {
        let mut measured = self.device.take_measured();
        let waited = self.ranks.waits.take();
        let mut add = |part: Part, seconds: f64| {
            measured[part] = measured[part] + Span::exposed(Seconds::new(seconds));
        };
        let part = if self.ranks.is_on_one_host() { Part::ScaleUp } else { Part::ScaleOut };
        add(part, waited.communication.as_secs_f64());
        add(Part::Bubble, waited.bubble.as_secs_f64());
        add(Part::Storage, held_up.get());
        let rest = (whole - measured.total()).max(Seconds::ZERO);
        measured[Part::Host] = measured[Part::Host] + Span::exposed(rest);
        measured
    }

    /// What all ranks have measured: who was busy longest, and how long ranks waited for each other.
    fn compare_ranks(&self, own: &Breakdown<Measured>) -> Result<Option<RankTimes>, TrainError> {
        if self.ranks.count() == 1 {
            return Ok(None);
        }
        let exposed = |part: Part| own[part].exposed.get();
        let communication = exposed(Part::ScaleUp) + exposed(Part::ScaleOut);
        let waited = communication + exposed(Part::Bubble);
        let all = self.ranks.gather(&self.device, &[own.total().get() - waited, communication])?;
        let busy = || all.chunks(2).map(|of| of[0]);
        let slowest = busy().enumerate().max_by(|a, b| a.1.total_cmp(&b.1)).map_or(0, |(rank, _)| rank);
        let mean = busy().sum::<f64>() / self.ranks.count() as f64;
        let communication = all.chunks(2).map(|of| of[1]).sum::<f64>() / self.ranks.count() as f64;
        let most = busy().fold(0.0, f64::max);
        Ok(Some(RankTimes {
            slowest: slowest as u32,
            count: self.ranks.count() as u32,
            imbalance: if mean > 0.0 { most / mean - 1.0 } else { 0.0 },
            communication,
        }))
    }

    /// Whether this rank has all weights of the whole network.
    pub(crate) fn has_whole_network(&self) -> bool {
        let (layout, part) = (self.ranks.layout(), self.network.part());
        part.is_whole() && layout.pipeline == 1 && !crate::store::splits_weights(layout.sharding)
    }

    /// The tokens that follow a prompt, by all ranks together: at most `count`, ended by `end`. The whole context is computed for
    /// each of them.
    pub(crate) fn write_together(
        &mut self,
        prompt: &[u32],
        count: usize,
        end: Option<u32>,
        sampler: &mut Sampler,
    ) -> Result<Vec<u32>, TrainError> {
        let mut text = prompt.to_vec();
        while text.len() < prompt.len() + count {
            let next = sampler.sample(&self.logits_after(&text)?);
            if Some(next) == end {
                break;
            }
            text.push(next);
        }
        Ok(text.split_off(prompt.len()))
    }

    /// The mean loss of some micro-batches, without learning from them. They are this rank's share; all ranks have as many.
    pub fn evaluate<B: Borrow<Batch>, Error: From<TrainError>>(
        &mut self,
        batches: impl Iterator<Item = Result<B, Error>>,
    ) -> Result<f64, Error> {
        let (mut loss, mut targets) = (0.0, 0);
        for batch in batches {
            let batch = batch?;
            let batch = batch.borrow();
            targets += batch.counted;
            loss += self.assess(batch)?;
        }
        self.device.check().map_err(TrainError::from)?;
        let mut of_data = [targets as f64];
        self.ranks.sum_over_data(&self.device, &mut of_data).map_err(TrainError::from)?;
        let mut of_all = [loss];
        self.ranks.sum_over_all(&self.device, &mut of_all).map_err(TrainError::from)?;
        Ok(of_all[0] / of_data[0].max(1.0))
    }
}

/// Which samples were seen, as sums over ranks: of their numbers after the first of the step, and of the squares of these.
struct Seen([f64; 2]);

impl Seen {
    fn of(batches: &[Batch], first: u64) -> Self {
        let numbers =
            batches.iter().flat_map(|batch| (0..batch.rows as u64).map(|row| batch.first_sample + row));
        let after = |number: u64| number as f64 - first as f64;
        Self(numbers.map(after).fold([0.0; 2], |[sum, squares], at| [sum + at, squares + at * at]))
    }

    /// The samples from `first` on, if these are what was seen: as many numbers with the same sums. A sample that is missing or
    /// doubled changes them, as would two of each.
    fn range(&self, first: u64, count: u64) -> Option<Range<u64>> {
        let numbers = || (0..count).map(|at| at as f64);
        let expected = [numbers().sum::<f64>(), numbers().map(|at| at * at).sum()];
        (self.0 == expected).then_some(first..first + count)
    }
}

/// Micro-batches of a step on the ranks that have most of them. Ranks with fewer compute one that does not count, so that all
/// take part in the same calls.
pub(crate) fn micro_batches(config: &TrainConfig, ranks: &RunRanks) -> usize {
    let total = config.training.batch / config.training.micro_batch;
    total.div_ceil(u64::from(ranks.layout().data)) as usize
}

/// Puts the first weights in place, a block at a time. Gives the tensors of files that the network does not use.
fn first_weights<E: Trained>(
    device: &Device,
    network: &Network,
    config: &TrainConfig,
    blocks: &[usize],
    store: &mut WeightStore<E>,
) -> Result<Vec<String>, TrainError> {
    let mut unused = Vec::new();
    for block in blocks {
        let mut weights = Weights::<f32>::of_blocks(device, network, |index| index == *block);
        match &config.model.weights {
            Some(path) => unused = bedplate_network::load(network, device, path, &mut weights)?.unused,
            None => network.initialise(device, config.model.seed, &mut weights),
        }
        store.set_block(device, *block, weights.block(*block));
    }
    Ok(unused)
}
