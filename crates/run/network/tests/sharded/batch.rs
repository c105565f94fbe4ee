//! Reference models, micro-batches for them, and what one rank learns from these.

use std::fs;
use std::path::PathBuf;

use bedplate_diag::Source;
use bedplate_kernels::{Device, Element, IGNORED};
use bedplate_network::{
    Architecture, BatchTokens, Network, RankShare, Recompute, Weights, Workspace, WorkspaceShape, cut_rows,
};

pub(crate) const SEQUENCE: usize = 16;
const SEQUENCES: usize = 2;
const ROWS: usize = SEQUENCES * SEQUENCE;
pub(crate) const MODELS: [&str; 12] = [
    // Sinks, and experts in one tensor with biases.
    "gpt_oss",
    "llama",
    "qwen2",
    "qwen3",
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
    "gpt2",
    // Norms on both sides, bent scores, several rotary positions, matrices of several parts.
    "gemma2",
    "gemma3",
    "glm4",
    "phi3",
];

pub(crate) fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/reference").join(name)
}

pub(crate) fn architecture(name: &str) -> Architecture {
    let config = fs::read_to_string(folder(name).join("config.json")).unwrap();
    Architecture::from_config(Source::new("config.json", &config)).unwrap()
}

pub(crate) fn shape(recompute: Recompute) -> WorkspaceShape {
    WorkspaceShape { sequences: SEQUENCES, sequence: SEQUENCE, recompute, has_gradients: true }
}

/// The tokens of a micro-batch.
#[derive(Clone)]
pub(crate) struct Batch {
    tokens: Vec<u32>,
    targets: Vec<u32>,
    positions: Vec<u32>,
    first_keys: Vec<u32>,
    padding: Vec<u32>,
}

impl Batch {
    /// By turns one document a sequence, several of them, and several with padding behind them.
    pub(crate) fn new(number: usize, vocab: u64) -> Self {
        let token = |row: usize| ((row * 7 + number * 13) as u64 % vocab) as u32;
        let first_key = |row: usize| match (number % 3, row % SEQUENCE) {
            (0, _) | (1, 0..5) | (2, 0..7) => 0,
            (1, 5..11) => 5,
            (1, _) => 11,
            _ => 7,
        };
        let padding: Vec<u32> = if number % 3 == 2 { vec![3, 0] } else { Vec::new() };
        let is_padding = |row: usize| {
            let padding = padding.get(row / SEQUENCE).map_or(0, |padding| *padding as usize);
            row % SEQUENCE + padding >= SEQUENCE
        };
        Self {
            tokens: (0..ROWS).map(token).collect(),
            targets: (0..ROWS).map(|row| if is_padding(row) { IGNORED } else { token(row + 1) }).collect(),
            positions: (0..ROWS).map(|row| (row % SEQUENCE) as u32 - first_key(row)).collect(),
            first_keys: (0..ROWS).map(first_key).collect(),
            padding,
        }
    }

    /// The rows that a rank of a context group has.
    pub(crate) fn cut(&self, context: RankShare) -> Self {
        let rows: Vec<usize> = (0..SEQUENCES)
            .flat_map(|sequence| cut_rows(context, SEQUENCE).map(move |row| sequence * SEQUENCE + row))
            .collect();
        let of = |whole: &[u32]| rows.iter().map(|row| whole[*row]).collect();
        Self {
            tokens: of(&self.tokens),
            targets: of(&self.targets),
            positions: of(&self.positions),
            first_keys: of(&self.first_keys),
            padding: self.padding.clone(),
        }
    }

    pub(crate) fn tokens(&self) -> BatchTokens<'_> {
        let Self { tokens, targets, positions, first_keys, padding } = self;
        BatchTokens { tokens, targets, positions, first_keys, padding }
    }
}

pub(crate) fn batches(network: &Network, count: usize) -> Vec<Batch> {
    (0..count).map(|number| Batch::new(number, network.architecture().transformer.vocab)).collect()
}

/// What a target counts in a step of `count` micro-batches, and what a micro-batch does.
pub(crate) fn weights_of(count: usize) -> (f32, f32) {
    (1.0 / (count * ROWS) as f32, 1.0 / count as f32)
}

/// Losses and gradients of some micro-batches.
pub(crate) struct Outcome {
    pub(crate) loss: f64,
    pub(crate) gradients: Vec<Vec<f32>>,
}

pub(crate) fn outcome(device: &Device, network: &Network, gradients: &Weights<f32>, loss: f64) -> Outcome {
    let block = |index: usize| {
        let mut values = vec![0.0; network.blocks()[index].len];
        device.read(gradients.block(index), &mut values);
        values
    };
    Outcome { loss, gradients: (0..network.blocks().len()).map(block).collect() }
}

/// Learns from some of the `count` micro-batches of a step.
pub(crate) fn learn(
    device: &Device,
    network: &Network,
    recompute: Recompute,
    batches: &[Batch],
    count: usize,
) -> Outcome {
    learn_in::<f32>(device, network, recompute, batches, count)
}

/// The same in a format.
pub(crate) fn learn_in<E: Element>(
    device: &Device,
    network: &Network,
    recompute: Recompute,
    batches: &[Batch],
    count: usize,
) -> Outcome {
    let mut weights = Weights::<E>::zeros(device, network);
    network.initialise(device, 5, &mut weights);
    learn_with(device, network, recompute, &weights, batches, count)
}

pub(crate) fn learn_with<E: Element>(
    device: &Device,
    network: &Network,
    recompute: Recompute,
    weights: &Weights<E>,
    batches: &[Batch],
    count: usize,
) -> Outcome {
    let mut gradients = Weights::zeros(device, network);
    let mut workspace = Workspace::new(device, network, shape(recompute));
    let mut room = workspace.room(0);
    let (scale, balance) = weights_of(count);
    let mut loss = 0.0;
    for batch in batches {
        room.load(device, batch.tokens());
        loss += network.learn(device, weights, &mut room, &mut gradients, scale, balance);
    }
    outcome(device, network, &gradients, loss)
}
