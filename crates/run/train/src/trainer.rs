//! The trainer: the state of a run, and one step of it.

use std::borrow::Borrow;
use std::time::Instant;

use bedplate_breakdown::{Breakdown, Measured, Part, Span};
use bedplate_data::Batch;
use bedplate_kernels::Device;
use bedplate_network::{Network, NonFinite, Room, Tokens, Weights, Workspace, WorkspaceShape};
use bedplate_units::{Bytes, Seconds};

use crate::adapter::Adapters;
use crate::checkpoint::{Snapshot, State};
use crate::optimizer::{self, Optimizer};
use crate::parameters::{Parameters, Trained};
use crate::{TrainConfig, TrainError};

/// A network in training. Computes in `E`.
pub struct Trainer<E: Trained> {
    pub(crate) device: Device,
    pub(crate) network: Network,
    pub(crate) config: TrainConfig,
    pub(crate) parameters: Parameters,
    /// Tensors of the files of first weights that the network does not use.
    pub(crate) unused: Vec<String>,
    pub(crate) learner: Learner<E>,
    pub(crate) workspace: Workspace<E>,
    /// Steps done.
    pub(crate) step: u64,
    /// Samples learned from.
    pub(crate) samples: u64,
    /// The checksum of the weights that were given to start from.
    pub(crate) given_weights: Option<u32>,
    /// A checkpoint that is being made of the state.
    pub(crate) snapshot: Option<Snapshot>,
}

/// What is trained: all weights, or adapters of them.
pub(crate) enum Learner<E: Trained> {
    All { gradients: Box<Weights<f32>>, optimizer: Box<Optimizer> },
    Adapters(Box<Adapters<E>>),
}

/// What a step did.
#[derive(Debug, Clone, Copy)]
pub struct StepOutcome {
    /// Mean over the targets of the step, in nats.
    pub loss: f64,
    /// Before clipping.
    pub gradient_norm: f64,
    pub learning_rate: f64,
    /// Positions computed, and those among them that counted.
    pub tokens: usize,
    pub targets: usize,
    pub breakdown: Breakdown<Measured>,
    pub seconds: Seconds,
}

impl<E: Trained> Trainer<E> {
    /// Allocates everything and puts the first weights in place: those that the configuration names, or fresh ones.
    pub fn new(network: Network, device: Device, config: TrainConfig) -> Result<Self, TrainError> {
        let mut parameters = Parameters::zeros::<E>(&device, &network);
        let mut unused = Vec::new();
        match &config.model.weights {
            Some(path) => {
                unused = bedplate_network::load(&network, &device, path, parameters.master_mut())?.unused;
            }
            None => network.initialise(&device, config.model.seed, parameters.master_mut()),
        }
        parameters.round(&device);
        let given_weights =
            config.model.weights.is_some().then(|| checksum(&device, &network, parameters.master()));
        let learner = match &config.adapter {
            None => Learner::All {
                gradients: Box::new(Weights::zeros(&device, &network)),
                optimizer: Box::new(Optimizer::new(&device, &network)),
            },
            Some(adapter) => {
                let adapters = Adapters::new(&network, &device, adapter, config.model.seed, &parameters)?;
                Learner::Adapters(Box::new(adapters))
            }
        };
        let shape = WorkspaceShape {
            sequences: config.training.micro_batch as usize,
            sequence: config.data.sequence,
            recompute: config.training.recompute,
            has_gradients: true,
        };
        let workspace = Workspace::new(&device, &network, shape);
        Ok(Self {
            parameters,
            unused,
            learner,
            workspace,
            device,
            network,
            config,
            step: 0,
            samples: 0,
            given_weights,
            snapshot: None,
        })
    }

    pub fn network(&self) -> &Network {
        &self.network
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Steps done.
    pub fn steps_done(&self) -> u64 {
        self.step
    }

    /// The weights as they are now, adapters merged.
    pub fn weights(&self) -> &Weights<E> {
        E::working(&self.parameters)
    }

    /// Numbers that are trained.
    pub fn trained(&self) -> usize {
        match &self.learner {
            Learner::All { .. } => self.network.parameters(),
            Learner::Adapters(adapters) => adapters.len(),
        }
    }

    /// Bytes of weights, gradients, moments and activations.
    pub fn memory(&self) -> Bytes {
        let learner = match &self.learner {
            Learner::All { gradients, optimizer } => gradients.bytes() + optimizer.bytes(),
            Learner::Adapters(adapters) => adapters.bytes(),
        };
        Bytes::new((self.parameters.bytes() + learner + self.workspace.bytes()) as f64)
    }

    /// One optimizer step over the micro-batches of a global batch.
    ///
    /// On a number that is not finite nothing is updated, and the error says where it began.
    pub fn step(&mut self, batches: &[Batch]) -> Result<StepOutcome, TrainError> {
        let began = Instant::now();
        self.device.take_measured();
        let targets: usize = batches.iter().map(|batch| batch.counted).sum();
        let loss = self.learn(batches, targets) / targets.max(1) as f64;
        let gradient_norm = self.gradient_norm();
        if !loss.is_finite() || !gradient_norm.is_finite() {
            return Err(self.explain_non_finite(batches, loss, gradient_norm));
        }
        let learning_rate = self.config.learning_rate().at(self.step);
        let held_up = self.complete_snapshot();
        self.update(learning_rate, gradient_norm);
        self.step += 1;
        self.samples += batches.iter().map(|batch| batch.rows as u64).sum::<u64>();
        let seconds = Seconds::new(began.elapsed().as_secs_f64());
        let tokens = batches.iter().map(|batch| batch.tokens.len()).sum();
        let mut breakdown = self.device.take_measured();
        breakdown[Part::Storage] = breakdown[Part::Storage] + Span::exposed(held_up);
        let breakdown = with_rest(breakdown, seconds);
        Ok(StepOutcome { loss, gradient_norm, learning_rate, tokens, targets, breakdown, seconds })
    }

    /// Forward and backward of all micro-batches; gives the sum of losses.
    fn learn(&mut self, batches: &[Batch], targets: usize) -> f64 {
        let scale = 1.0 / targets.max(1) as f32;
        let balance = 1.0 / batches.len() as f32;
        let Self { device, network, parameters, learner, workspace, snapshot, .. } = self;
        match learner {
            Learner::All { gradients, .. } => gradients.fill(device, 0.0),
            Learner::Adapters(adapters) => device.fill(adapters.gradient.view_mut(), 0.0),
        }
        let weights = E::working(parameters);
        let mut room = workspace.room(0);
        let mut loss = 0.0;
        for batch in batches {
            room.load(device, tokens_of(batch));
            loss += match learner {
                Learner::All { gradients, optimizer } => {
                    let state = State::of_weights(device, parameters.master(), optimizer);
                    let mut between = || snapshot.iter_mut().for_each(|snapshot| snapshot.advance(&state));
                    learn_weights(
                        device,
                        network,
                        weights,
                        &mut room,
                        gradients,
                        [scale, balance],
                        &mut between,
                    )
                }
                Learner::Adapters(adapters) => {
                    learn_adapters(device, network, weights, &mut room, adapters, scale, balance)
                }
            };
        }
        loss
    }

    fn gradient_norm(&self) -> f64 {
        match &self.learner {
            Learner::All { gradients, optimizer } => optimizer.sum_of_squares(&self.device, gradients).sqrt(),
            Learner::Adapters(adapters) => adapters.gradient_norm(&self.device),
        }
    }

    fn update(&mut self, learning_rate: f64, gradient_norm: f64) {
        let scale = optimizer::clip_scale(gradient_norm, self.config.optimizer.clip);
        let step = optimizer::adamw(&self.config.optimizer, learning_rate, self.step, scale);
        let Self { device, parameters, learner, .. } = self;
        match learner {
            Learner::All { gradients, optimizer } => optimizer.step(device, &step, gradients, parameters),
            Learner::Adapters(adapters) => {
                adapters.step(device, &step);
                adapters.merge(device, parameters);
            }
        }
    }

    /// Computes the micro-batches again and checks the output of every block.
    fn explain_non_finite(&mut self, batches: &[Batch], loss: f64, gradient_norm: f64) -> TrainError {
        let Self { device, network, parameters, workspace, .. } = self;
        let weights = E::working(parameters);
        let sequence = workspace.shape().sequence;
        let mut room = workspace.room(0);
        let found = batches.iter().find_map(|batch| {
            room.load(device, tokens_of(batch));
            let NonFinite { block, row } = network.find_non_finite(device, weights, &mut room)?;
            Some((block, batch.first_sample + (row / sequence) as u64))
        });
        let (block, sample) = found.unzip();
        let first_sample = batches.first().map_or(0, |batch| batch.first_sample);
        TrainError::NotFinite { step: self.step, loss, gradient_norm, first_sample, block, sample }
    }

    /// The mean loss of some micro-batches, without learning from them.
    pub fn evaluate<B: Borrow<Batch>, Error>(
        &mut self,
        batches: impl Iterator<Item = Result<B, Error>>,
    ) -> Result<f64, Error> {
        let Self { device, network, parameters, workspace, .. } = self;
        let weights = E::working(parameters);
        let mut room = workspace.room(0);
        let (mut loss, mut targets) = (0.0, 0);
        for batch in batches {
            let batch = batch?;
            let batch = batch.borrow();
            targets += batch.counted;
            room.load(device, tokens_of(batch));
            network.forward(device, weights, &mut room);
            loss += network.head_loss(device, network.head_weights(weights), &mut room);
        }
        Ok(loss / targets.max(1) as f64)
    }
}

fn checksum(device: &Device, network: &Network, weights: &Weights<f32>) -> u32 {
    const PIECE: usize = 1 << 18;
    let (mut sum, mut values) = (crc32fast::Hasher::new(), vec![0.0_f32; PIECE]);
    let mut bytes = Vec::new();
    for (index, block) in network.blocks().iter().enumerate() {
        for start in (0..block.len).step_by(PIECE) {
            let range = start..block.len.min(start + PIECE);
            let values = &mut values[..range.len()];
            device.read(weights.block(index).range(range), values);
            bytes.clear();
            bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            sum.update(&bytes);
        }
    }
    sum.finalize()
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

/// Forward and backward where all weights learn, block by block, with something to do between blocks.
fn learn_weights<E: Trained>(
    device: &Device,
    network: &Network,
    weights: &Weights<E>,
    room: &mut Room<'_, E>,
    gradients: &mut Weights<f32>,
    [scale, balance]: [f32; 2],
    between: &mut dyn FnMut(),
) -> f64 {
    let last = network.blocks().len() - 1;
    for index in 0..last {
        between();
        network.forward_block(device, index, weights.block(index), room);
    }
    between();
    let (own, table) = network.head_gradients(gradients);
    let loss = network.head_backward(device, network.head_weights(weights), room, scale, Some(own), table);
    for index in (0..last).rev() {
        between();
        let gradient = Some(gradients.block_mut(index));
        network.backward_block(device, index, weights.block(index), room, gradient, balance);
    }
    loss
}

/// Forward and backward where only adapters learn: a block's gradient becomes that of its adapters before the next block.
fn learn_adapters<E: Trained>(
    device: &Device,
    network: &Network,
    weights: &Weights<E>,
    room: &mut Room<'_, E>,
    adapters: &mut Adapters<E>,
    scale: f32,
    balance: f32,
) -> f64 {
    network.forward(device, weights, room);
    let last = network.blocks().len() - 1;
    let head = network.head_weights(weights);
    let gradient = adapters.cleared_gradient(device, last, weights.block(last).len());
    let loss = network.head_backward(device, head, room, scale, gradient, None);
    adapters.project(device, last);
    for index in (0..last).rev() {
        let block = weights.block(index);
        let gradient = adapters.cleared_gradient(device, index, block.len());
        network.backward_block(device, index, block, room, gradient, balance);
        adapters.project(device, index);
    }
    loss
}

/// Books the time outside operators under the host: moving batches, bookkeeping, waking threads.
fn with_rest(mut measured: Breakdown<Measured>, whole: Seconds) -> Breakdown<Measured> {
    let rest = (whole - measured.total()).max(Seconds::ZERO);
    measured[Part::Host] = measured[Part::Host] + Span::exposed(rest);
    measured
}
