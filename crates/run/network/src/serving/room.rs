//! What a step needs beside weights and blocks, allocated once.

use bedplate_kernels::{Buffer, Device, Element, PagedRows, View};

use crate::Network;
use crate::table::MlpParts;

/// The largest step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServingShape {
    /// Rows of a step: tokens of all its sequences.
    pub rows: usize,
    pub sequences: usize,
    /// Entries of all block tables of a step.
    pub table_entries: usize,
    /// Rows of which logits are wanted.
    pub wanted: usize,
    /// The largest rank of an adapter; 0 without adapters.
    pub adapter_rank: usize,
}

/// The tokens of a step: rows of each sequence together, one sequence after the other.
#[derive(Debug, Clone, Copy)]
pub struct StepRows<'a> {
    pub tokens: &'a [u32],
    /// Of each token in its sequence.
    pub positions: &'a [u32],
    /// The first row of each sequence, and behind the last one the number of rows.
    pub starts: &'a [u32],
    /// Tokens of each sequence that are in the pool already.
    pub contexts: &'a [u32],
    /// Where the blocks of each sequence begin in `tables`, and behind the last one how many there are.
    pub table_starts: &'a [u32],
    pub tables: &'a [u32],
    /// Rows after which the next token is wanted.
    pub wanted: &'a [u32],
}

/// Buffers for steps.
pub struct ServingRoom<E: Element> {
    pub(crate) shape: ServingShape,
    pub(crate) given: Given,
    pub(crate) streams: [Buffer<E>; 2],
    pub(crate) normed: Buffer<E>,
    pub(crate) statistics: Buffer<f32>,
    pub(crate) qkv: Buffer<E>,
    pub(crate) unnormed: Buffer<E>,
    pub(crate) attended: Buffer<E>,
    pub(crate) gate_up: Buffer<E>,
    pub(crate) activated: Buffer<E>,
    pub(crate) mixture: Option<MixtureRoom<E>>,
    /// Sums that ranks add up, where there are others.
    pub(crate) partial: Option<Buffer<f32>>,
    pub(crate) adapters: Option<AdapterRoom<E>>,
    pub(crate) wanted_rows: Buffer<E>,
    pub(crate) logits: Buffer<f32>,
    bytes: usize,
}

/// The step as the device has it.
pub(crate) struct Given {
    pub(crate) tokens: Buffer<u32>,
    pub(crate) positions: Buffer<u32>,
    pub(crate) wanted: Buffer<u32>,
    starts: Buffer<u32>,
    contexts: Buffer<u32>,
    table_starts: Buffer<u32>,
    tables: Buffer<u32>,
    pub(crate) rows: usize,
    pub(crate) wanted_count: usize,
    sequences: usize,
    entries: usize,
}

pub(crate) struct MixtureRoom<E: Element> {
    pub(crate) router_logits: Buffer<f32>,
    pub(crate) probabilities: Buffer<f32>,
    pub(crate) experts: Buffer<u32>,
    pub(crate) choice_weights: Buffer<f32>,
    pub(crate) order: Buffer<u32>,
    pub(crate) slots: Buffer<u32>,
    pub(crate) offsets: Buffer<u32>,
    pub(crate) gathered: Buffer<E>,
    pub(crate) gate_up: Buffer<E>,
    pub(crate) activated: Buffer<E>,
    pub(crate) outputs: Buffer<E>,
    pub(crate) shared_outputs: Buffer<E>,
    pub(crate) shared_logits: Buffer<f32>,
}

pub(crate) struct AdapterRoom<E: Element> {
    pub(crate) small: Buffer<E>,
    pub(crate) large: Buffer<f32>,
}

impl<E: Element> ServingRoom<E> {
    pub fn new(device: &Device, network: &Network, shape: ServingShape) -> Self {
        let maker = Maker { device, bytes: 0.into() };
        let (rows, hidden) = (shape.rows, network.architecture().transformer.hidden as usize);
        let all = 0..network.blocks().len();
        let most =
            |of: &dyn Fn(&crate::table::LayerParts) -> usize| network.layers(&all).map(of).max().unwrap_or(0);
        let widest = most(&|layer| match &layer.mlp {
            MlpParts::Dense(dense) => dense.outputs(),
            MlpParts::Mixture(mixture) => mixture.shared.as_ref().map_or(0, |shared| shared.outputs()),
        });
        let qkv = most(&|layer| layer.widths.qkv);
        let heads = most(&|layer| layer.widths.heads.max(layer.widths.kv_heads));
        let has_others = !network.part().tensor.is_whole();
        let vocab = network.architecture().transformer.vocab as usize;
        let statistics = rows * heads.max(2);
        Self {
            shape,
            given: Given::new(&maker, &shape),
            streams: [maker.numbers(rows * hidden), maker.numbers(rows * hidden)],
            normed: maker.numbers(rows * hidden),
            statistics: maker.numbers(statistics),
            qkv: maker.numbers(rows * qkv),
            unnormed: maker.numbers(rows * most(&|layer| layer.widths.unnormed)),
            attended: maker.numbers(rows * most(&|layer| layer.widths.attended)),
            gate_up: maker.numbers(rows * widest),
            activated: maker.numbers(rows * widest),
            mixture: MixtureRoom::new(&maker, network, rows),
            partial: has_others.then(|| maker.numbers(rows * hidden)),
            adapters: (shape.adapter_rank > 0).then(|| AdapterRoom {
                small: maker.numbers(rows * shape.adapter_rank),
                large: maker.numbers(rows * qkv.max(widest).max(hidden)),
            }),
            wanted_rows: maker.numbers(shape.wanted * hidden),
            logits: maker.numbers(shape.wanted * vocab),
            bytes: maker.bytes.get(),
        }
    }

    /// Bytes of all buffers.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies the logits after a wanted row, by its place among them.
    pub fn read_logits(&self, device: &Device, at: usize, to: &mut [f32]) {
        let vocab = self.logits.len() / self.shape.wanted.max(1);
        device.read(self.logits.range(at * vocab..(at + 1) * vocab), to);
    }

    /// The logits themselves, where the processor reaches them.
    pub fn lend_logits<'a>(&'a self, device: &Device, at: usize) -> Option<&'a [f32]> {
        let vocab = self.logits.len() / self.shape.wanted.max(1);
        device.lend(self.logits.range(at * vocab..(at + 1) * vocab))
    }

    /// Copies the normed stream of a wanted row, which the head would multiply.
    pub fn read_hidden(&self, device: &Device, at: usize, to: &mut [E]) {
        let hidden = to.len();
        device.read(self.wanted_rows.range(at * hidden..(at + 1) * hidden), to);
    }
}

impl Given {
    fn new(maker: &Maker<'_>, shape: &ServingShape) -> Self {
        Self {
            tokens: maker.numbers(shape.rows),
            positions: maker.numbers(shape.rows),
            wanted: maker.numbers(shape.wanted),
            starts: maker.numbers(shape.sequences + 1),
            contexts: maker.numbers(shape.sequences),
            table_starts: maker.numbers(shape.sequences + 1),
            tables: maker.numbers(shape.table_entries),
            rows: 0,
            wanted_count: 0,
            sequences: 0,
            entries: 0,
        }
    }

    /// Brings a step to the device.
    pub(crate) fn load(&mut self, device: &Device, step: &StepRows<'_>) {
        let put = |to: &mut Buffer<u32>, from: &[u32]| device.write(to.range_mut(0..from.len()), from);
        put(&mut self.tokens, step.tokens);
        put(&mut self.positions, step.positions);
        put(&mut self.wanted, step.wanted);
        put(&mut self.starts, step.starts);
        put(&mut self.contexts, step.contexts);
        put(&mut self.table_starts, step.table_starts);
        put(&mut self.tables, step.tables);
        (self.rows, self.wanted_count) = (step.tokens.len(), step.wanted.len());
        (self.sequences, self.entries) = (step.contexts.len(), step.tables.len());
    }

    pub(crate) fn tokens(&self) -> View<'_, u32> {
        self.tokens.range(0..self.rows)
    }

    pub(crate) fn positions(&self) -> View<'_, u32> {
        self.positions.range(0..self.rows)
    }

    pub(crate) fn paged(&self) -> PagedRows<'_> {
        PagedRows {
            starts: self.starts.range(0..self.sequences + 1),
            contexts: self.contexts.range(0..self.sequences),
            table_starts: self.table_starts.range(0..self.sequences + 1),
            tables: self.tables.range(0..self.entries),
        }
    }
}

impl<E: Element> MixtureRoom<E> {
    fn new(maker: &Maker<'_>, network: &Network, rows: usize) -> Option<Self> {
        let all = 0..network.blocks().len();
        let mixtures = || {
            network.layers(&all).filter_map(|layer| match &layer.mlp {
                MlpParts::Mixture(mixture) => Some(mixture),
                MlpParts::Dense(_) => None,
            })
        };
        let per_token = mixtures().map(|mixture| mixture.per_token).max()?;
        let experts = mixtures().map(|mixture| mixture.experts).max()?;
        let width = mixtures().map(|mixture| mixture.width).max()?;
        let (slots, hidden) = (rows * per_token, network.architecture().transformer.hidden as usize);
        Some(Self {
            router_logits: maker.numbers(rows * experts),
            probabilities: maker.numbers(rows * experts),
            experts: maker.numbers(slots),
            choice_weights: maker.numbers(slots),
            order: maker.numbers(slots),
            slots: maker.numbers(slots),
            offsets: maker.numbers(experts + 1),
            gathered: maker.numbers(slots * hidden),
            gate_up: maker.numbers(slots * 2 * width),
            activated: maker.numbers(slots * width),
            outputs: maker.numbers(slots * hidden),
            shared_outputs: maker.numbers(rows * hidden),
            shared_logits: maker.numbers(rows),
        })
    }
}

/// Makes buffers and counts their bytes.
pub(crate) struct Maker<'a> {
    device: &'a Device,
    bytes: std::cell::Cell<usize>,
}

impl Maker<'_> {
    fn numbers<T: bedplate_kernels::Value>(&self, len: usize) -> Buffer<T> {
        self.bytes.set(self.bytes.get() + len * size_of::<T>());
        self.device.zeros(len)
    }
}
