//! What a step needs beside weights and blocks, allocated once.

use std::collections::BTreeMap;

use bedplate_kernels::{Buffer, CudaGraph, Device, Element, PagedRows, SampleParams, View};

use crate::Network;
use crate::table::{LatentShape, MlpParts};

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

impl StepRows<'_> {
    /// Whether each sequence has one row, after which a token is wanted.
    pub fn is_decoding(&self) -> bool {
        [self.contexts.len(), self.wanted.len()] == [self.tokens.len(); 2] && !self.tokens.is_empty()
    }
}

/// Buffers for steps.
pub struct ServingRoom<E: Element> {
    pub(crate) shape: ServingShape,
    pub(crate) given: Given,
    pub(crate) streams: [Buffer<E>; 2],
    pub(crate) normed: Buffer<E>,
    pub(crate) statistics: Buffer<f32>,
    /// What a half of a layer adds, where that goes through a norm of its own.
    pub(crate) branch: Buffer<E>,
    pub(crate) qkv: Buffer<E>,
    pub(crate) unnormed: Buffer<E>,
    pub(crate) attended: Buffer<E>,
    pub(crate) gate_up: Buffer<E>,
    pub(crate) activated: Buffer<E>,
    pub(crate) latent: Option<LatentRoom<E>>,
    pub(crate) mixture: Option<MixtureRoom<E>>,
    /// Sums that ranks add up, where there are others.
    pub(crate) partial: Option<Buffer<f32>>,
    pub(crate) adapters: Option<AdapterRoom<E>>,
    pub(crate) wanted_rows: Buffer<E>,
    pub(crate) logits: Buffer<f32>,
    /// Of a GPU: the most likely token after each wanted row, or the one that was sampled.
    pub(crate) next_tokens: Buffer<u32>,
    /// Of a GPU: how tokens are sampled.
    samples: Buffer<u32>,
    /// By the number of rows.
    pub(crate) graphs: BTreeMap<usize, GraphState>,
    bytes: usize,
}

/// How far the CUDA graph of decoding so many rows is.
pub(crate) enum GraphState {
    /// It was done once, so that it can be captured.
    Warm,
    Ready(CudaGraph),
}

/// The step as the device has it: lists behind each other, each at its own place, and tables last, as they are longest.
pub(crate) struct Given {
    numbers: Buffer<u32>,
    /// The same numbers on their way.
    staged: Vec<u32>,
    /// Where the lists begin.
    places: [usize; LISTS],
    pub(crate) rows: usize,
    pub(crate) wanted_count: usize,
    sequences: usize,
    entries: usize,
}

/// Tokens, positions, wanted rows, starts, contexts, starts of tables, tables.
const LISTS: usize = 7;

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

/// Rows of latent attention.
pub(crate) struct LatentRoom<E: Element> {
    /// Queries that are projected down, behind their norm.
    pub(crate) queries: Buffer<E>,
    /// What is kept of each row.
    pub(crate) kept: Buffer<E>,
    /// Queries of all heads where the latents are, and what attention gives for them.
    pub(crate) absorbed: Buffer<E>,
    pub(crate) found: Buffer<E>,
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
        let unnormed = most(&|layer| layer.widths.unnormed);
        let heads = most(&|layer| layer.widths.heads.max(layer.widths.kv_heads));
        let has_others = !network.part().tensor.is_whole();
        let vocab = network.architecture().transformer.vocab as usize;
        let statistics = rows * heads.max(2);
        let found = if device.is_cpu() { 0 } else { shape.wanted };
        Self {
            shape,
            given: Given::new(&maker, &shape),
            streams: [maker.numbers(rows * hidden), maker.numbers(rows * hidden)],
            normed: maker.numbers(rows * hidden),
            statistics: maker.numbers(statistics),
            branch: maker.numbers(rows * most(&|layer| layer.widths.branch)),
            qkv: maker.numbers(rows * qkv),
            unnormed: maker.numbers(rows * unnormed),
            attended: maker.numbers(rows * most(&|layer| layer.widths.attended)),
            gate_up: maker.numbers(rows * widest),
            activated: maker.numbers(rows * widest),
            latent: LatentRoom::new(&maker, network, rows),
            mixture: MixtureRoom::new(&maker, network, rows),
            partial: has_others.then(|| maker.numbers(rows * hidden)),
            adapters: (shape.adapter_rank > 0).then(|| AdapterRoom {
                small: maker.numbers(rows * shape.adapter_rank),
                large: maker.numbers(rows * qkv.max(unnormed).max(widest).max(hidden)),
            }),
            wanted_rows: maker.numbers(shape.wanted * hidden),
            logits: maker.numbers(shape.wanted * vocab),
            next_tokens: maker.numbers(found),
            samples: maker.numbers(found * SampleParams::WORDS),
            graphs: BTreeMap::new(),
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

    /// Has a GPU sample the tokens after some of the wanted rows instead of taking the most likely ones.
    pub fn sample(&mut self, device: &Device, samples: &[(usize, SampleParams)]) {
        if samples.is_empty() {
            return;
        }
        let words: Vec<u32> = samples.iter().flat_map(|(place, params)| params.words(*place)).collect();
        device.write(self.samples.range_mut(0..words.len()), &words);
        let (count, vocab) = (self.given.wanted_count, self.logits.len() / self.shape.wanted.max(1));
        let logits = self.logits.range(0..count * vocab).matrix(count, vocab);
        device.sample(logits, self.samples.range(0..words.len()), self.next_tokens.range_mut(0..count));
    }

    /// Copies the token after each wanted row that a GPU has found, the most likely or the one that it has sampled; leaves the list empty where the processor computes.
    pub fn read_found(&self, device: &Device, to: &mut Vec<u32>) {
        to.clear();
        if !device.is_cpu() {
            to.resize(self.given.wanted_count, 0);
            device.read(self.next_tokens.range(0..to.len()), to);
        }
    }

    /// Copies the normed stream of a wanted row, which the head would multiply.
    pub fn read_hidden(&self, device: &Device, at: usize, to: &mut [E]) {
        let hidden = to.len();
        device.read(self.wanted_rows.range(at * hidden..(at + 1) * hidden), to);
    }
}

impl Given {
    fn new(maker: &Maker<'_>, shape: &ServingShape) -> Self {
        let ServingShape { rows, sequences, table_entries, wanted, .. } = *shape;
        let lengths = [rows, rows, wanted, sequences + 1, sequences, sequences + 1, table_entries];
        let mut places = [0; LISTS];
        for list in 1..LISTS {
            // At addresses that copies like.
            places[list] = (places[list - 1] + lengths[list - 1]).next_multiple_of(4);
        }
        Self {
            numbers: maker.numbers(places[LISTS - 1] + table_entries),
            staged: Vec::new(),
            places,
            rows: 0,
            wanted_count: 0,
            sequences: 0,
            entries: 0,
        }
    }

    /// Brings a step to the device.
    pub(crate) fn load(&mut self, device: &Device, step: &StepRows<'_>) {
        let StepRows { tokens, positions, starts, contexts, table_starts, tables, wanted } = *step;
        let lists = [tokens, positions, wanted, starts, contexts, table_starts, tables];
        self.staged.resize(self.places[LISTS - 1] + tables.len(), 0);
        for (place, list) in self.places.into_iter().zip(lists) {
            self.staged[place..place + list.len()].copy_from_slice(list);
        }
        device.write(self.numbers.range_mut(0..self.staged.len()), &self.staged);
        (self.rows, self.wanted_count) = (tokens.len(), wanted.len());
        (self.sequences, self.entries) = (contexts.len(), tables.len());
    }

    /// Lets operators make room for tables as long as they can be, so that what they do depends on the number of rows alone.
    pub(crate) fn claim_all_tables(&mut self) {
        self.entries = self.numbers.len() - self.places[LISTS - 1];
    }

    fn list(&self, list: usize, len: usize) -> View<'_, u32> {
        self.numbers.range(self.places[list]..self.places[list] + len)
    }

    pub(crate) fn tokens(&self) -> View<'_, u32> {
        self.list(0, self.rows)
    }

    pub(crate) fn positions(&self) -> View<'_, u32> {
        self.list(1, self.rows)
    }

    pub(crate) fn wanted(&self) -> View<'_, u32> {
        self.list(2, self.wanted_count)
    }

    pub(crate) fn paged(&self) -> PagedRows<'_> {
        PagedRows {
            starts: self.list(3, self.sequences + 1),
            contexts: self.list(4, self.sequences),
            table_starts: self.list(5, self.sequences + 1),
            tables: self.list(6, self.entries),
        }
    }
}

impl<E: Element> LatentRoom<E> {
    fn new(maker: &Maker<'_>, network: &Network, rows: usize) -> Option<Self> {
        let all = 0..network.blocks().len();
        let shapes = || network.layers(&all).filter_map(|layer| Some(layer.latent.as_ref()?.shape));
        let most = |of: &dyn Fn(LatentShape) -> usize| shapes().map(of).max();
        let all_heads = most(&|shape| shape.heads * shape.kept())?;
        Some(Self {
            queries: maker.numbers(rows * most(&|shape| shape.query_rank.unwrap_or(0))?),
            kept: maker.numbers(rows * most(&|shape| shape.kept())?),
            absorbed: maker.numbers(rows * all_heads),
            found: maker.numbers(rows * all_heads),
        })
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
    fn numbers<T: bedplate_kernels::BufferValue>(&self, len: usize) -> Buffer<T> {
        self.bytes.set(self.bytes.get() + len * size_of::<T>());
        self.device.zeros(len)
    }
}
