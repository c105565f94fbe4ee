//! Everything that blocks need beside weights and gradients of weights, allocated once.
//!
//! [`bedplate_transformer::workspace`] describes the buffers; here they become memory of a device. A workspace serves all
//! blocks of a network or those of one stage, for one micro-batch or for several whose backward passes are still to come.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::Range;

use bedplate_kernels::{Buffer, BufferValue, Device, Element, Matrix, View, ViewMut};
use bedplate_transformer::Reach;
use bedplate_transformer::workspace::{
    self, BatchRoom, Hold, LogitsAtOnce, Make, Recompute, Rooms, SharedRoom, Stage, Widths,
};

use crate::shard::context_chunks;
use crate::{Network, RankShare, ShardSpec, cut_rows};

/// How many tokens a micro-batch has, over all ranks that share it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkspaceShape {
    /// Sequences of a micro-batch.
    pub sequences: usize,
    /// Tokens of a sequence.
    pub sequence: usize,
    pub recompute: Recompute,
    /// Without gradients, nothing is kept and all layers share one room.
    pub has_gradients: bool,
}

impl WorkspaceShape {
    pub fn rows(&self) -> usize {
        self.sequences * self.sequence
    }
}

/// What a rank has of a micro-batch.
#[derive(Debug, Clone)]
pub(crate) struct Here {
    /// Rows that products and attention work on; the same on all ranks of a tensor group.
    pub(crate) rows: usize,
    /// Those of them whose residual stream is here.
    pub(crate) own: Range<usize>,
    /// Tokens of a sequence over all ranks, and this rank's share of them.
    sequence: usize,
    context: RankShare,
}

impl Here {
    fn new(shape: &WorkspaceShape, part: &ShardSpec) -> Self {
        let rows = shape.rows() / part.context.degree;
        let own = if part.has_cut_rows { part.tensor.of(rows) } else { 0..rows };
        Self { rows, own, sequence: shape.sequence, context: part.context }
    }

    /// Tokens of a sequence that are here.
    pub(crate) fn of_sequence(&self) -> usize {
        self.sequence / self.context.degree
    }

    /// Where in its sequence a row is that is here.
    fn place_of(&self, row: usize) -> usize {
        let [front, back] = context_chunks(self.context, self.sequence);
        let at = row % self.of_sequence();
        if at < front.len() { front.start + at } else { back.start + at - front.len() }
    }

    /// The ranks that share each sequence, by what they have of it.
    fn sources(&self) -> impl Iterator<Item = Chunks> {
        let (sequence, degree) = (self.sequence, self.context.degree);
        (0..degree).map(move |rank| Chunks(context_chunks(RankShare { degree, rank }, sequence)))
    }

    /// Which of the own rows is a row of the whole micro-batch, where it is one of them.
    pub(crate) fn find_own(&self, row: usize) -> Option<usize> {
        let (sequence, place) = (row / self.sequence, row % self.sequence);
        let at = cut_rows(self.context, self.sequence).position(|of| of == place)?;
        let row = sequence * self.of_sequence() + at;
        self.own.contains(&row).then(|| row - self.own.start)
    }
}

/// What a rank has of a sequence.
struct Chunks([Range<usize>; 2]);

impl Chunks {
    /// How many of the rank's keys lie before a place of the sequence.
    fn first_among(&self, place: usize) -> usize {
        self.0.iter().map(|chunk| place.clamp(chunk.start, chunk.end) - chunk.start).sum()
    }
}

/// A micro-batch as data gives it; each slice has an entry per row. A rank that has a share of every sequence is given those rows
/// ([`cut_rows`]) of each of them; all ranks of a tensor group are given the same.
#[derive(Debug, Clone, Copy)]
pub struct BatchTokens<'a> {
    pub tokens: &'a [u32],
    /// What is to be predicted; `u32::MAX` where nothing is.
    pub targets: &'a [u32],
    pub positions: &'a [u32],
    /// The first key of its sequence, counted over all ranks, that a row may see.
    pub first_keys: &'a [u32],
    /// Tokens of padding at the end of each whole sequence; empty where there is none.
    pub padding: &'a [u32],
}

/// Buffers of a device.
pub(crate) struct DeviceMemory<E>(PhantomData<E>);

impl<E: Element> Hold for DeviceMemory<E> {
    type Element = Buffer<E>;
    type Wide = Buffer<f32>;
    type Index = Buffer<u32>;
}

pub(crate) type Kept<E> = workspace::Kept<DeviceMemory<E>>;
pub(crate) type Cheap<E> = workspace::Cheap<DeviceMemory<E>>;
pub(crate) type StreamGradients<E> = workspace::StreamGradients<DeviceMemory<E>>;
pub(crate) type InnerGradients<E> = workspace::InnerGradients<DeviceMemory<E>>;
type Head<E> = workspace::Head<DeviceMemory<E>>;
pub(crate) type Partial<E> = workspace::Partial<DeviceMemory<E>>;
pub(crate) type Gathered<E> = workspace::Gathered<DeviceMemory<E>>;
pub(crate) type Expanded<E> = workspace::Expanded<DeviceMemory<E>>;
pub(crate) type Ring<E> = workspace::Ring<DeviceMemory<E>>;
pub(crate) type RingGradients<E> = workspace::RingGradients<DeviceMemory<E>>;
pub(crate) type Travel<E> = workspace::Travel<DeviceMemory<E>>;

/// Buffers for some blocks of a network.
pub struct Workspace<E: Element> {
    shape: WorkspaceShape,
    here: Here,
    blocks: Range<usize>,
    /// The distinct reaches of the network's layers, as [`BatchRoom::first_keys`] has them.
    reaches: Vec<Reach>,
    rooms: Rooms<DeviceMemory<E>>,
    /// Tokens of each micro-batch that are not padding, on all ranks that share it.
    tokens: Vec<usize>,
    /// First keys on their way to the device.
    staged: Vec<u32>,
    bytes: usize,
}

/// One micro-batch's part of a workspace, with what all its micro-batches use in turn.
pub struct Room<'a, E: Element> {
    pub(crate) shape: WorkspaceShape,
    pub(crate) here: Here,
    pub(crate) blocks: Range<usize>,
    pub(crate) reaches: &'a [Reach],
    pub(crate) batch: &'a mut BatchRoom<DeviceMemory<E>>,
    pub(crate) shared: &'a mut SharedRoom<DeviceMemory<E>>,
    tokens: &'a mut usize,
    staged: &'a mut Vec<u32>,
}

/// What a layer changes.
pub(crate) struct LayerRoom<'a, E: Element> {
    pub(crate) input: &'a mut Buffer<E>,
    pub(crate) output: &'a mut Buffer<E>,
    pub(crate) kept: &'a mut Kept<E>,
    pub(crate) cheap: &'a mut Cheap<E>,
    pub(crate) gradients: Option<&'a mut StreamGradients<E>>,
    pub(crate) inner: Option<&'a mut InnerGradients<E>>,
    /// Present where layers are cut over ranks.
    pub(crate) partial: Option<&'a mut Partial<E>>,
    pub(crate) gathered: &'a mut Gathered<E>,
    /// Present where experts are.
    pub(crate) travel: Option<&'a mut Travel<E>>,
    /// Present where attention is latent.
    pub(crate) expanded: Option<&'a mut Expanded<E>>,
    /// Present where sequences are.
    pub(crate) ring: Option<&'a mut Ring<E>>,
    pub(crate) ring_gradients: Option<&'a mut RingGradients<E>>,
    pub(crate) behind: View<'a, u32>,
    pub(crate) positions: View<'a, u32>,
    pub(crate) first_keys: View<'a, u32>,
    pub(crate) routing: ExpertLoad<'a>,
}

/// How busy the experts of all layers are.
pub(crate) struct ExpertLoad<'a> {
    /// 1 for each token that is not padding.
    pub(crate) counted: View<'a, u32>,
    /// How many these are, on all ranks that share the micro-batch.
    pub(crate) tokens: usize,
    /// The share of choices that each expert has, a row per layer of the model.
    pub(crate) shares: &'a mut Buffer<f32>,
}

/// What the head reads and changes.
pub(crate) struct HeadRoom<'a, E: Element> {
    pub(crate) stream: Matrix<'a, E>,
    pub(crate) targets: View<'a, u32>,
    pub(crate) head: &'a mut Head<E>,
    pub(crate) gradients: Option<&'a mut StreamGradients<E>>,
}

impl<E: Element> Workspace<E> {
    /// For all blocks of a network and one micro-batch at a time.
    pub fn new(device: &Device, network: &Network, shape: WorkspaceShape) -> Self {
        Self::of_stage(device, network, 0..network.blocks().len(), 1, shape)
    }

    /// For consecutive blocks and `in_flight` micro-batches.
    pub fn of_stage(
        device: &Device,
        network: &Network,
        blocks: Range<usize>,
        in_flight: usize,
        shape: WorkspaceShape,
    ) -> Self {
        network
            .check_shape(&shape)
            .expect("the network cuts these micro-batches evenly: Network::check_shape");
        let here = Here::new(&shape, network.part());
        let layers = widths(network, &blocks);
        let stage = stage(network, &blocks, &layers, in_flight, &shape, logits_on(device));
        let bytes = Cell::new(0);
        let make = Make {
            element: &|len| zeros(device, len, &bytes),
            wide: &|len| zeros(device, len, &bytes),
            index: &|len| zeros(device, len, &bytes),
        };
        let rooms = Rooms::new(&make, &stage);
        let reaches = network.architecture().transformer.reaches();
        let (staged, tokens) =
            (Vec::with_capacity(here.rows * network.part().context.degree), vec![0; in_flight]);
        Self { shape, here, blocks, reaches, rooms, tokens, staged, bytes: bytes.get() }
    }

    /// The bytes that a workspace of some blocks takes.
    pub fn bytes_of_stage(
        network: &Network,
        blocks: Range<usize>,
        in_flight: usize,
        shape: &WorkspaceShape,
        logits: LogitsAtOnce,
    ) -> usize {
        let layers = widths(network, &blocks);
        let bytes = Cell::new(0);
        let add = |len: usize, size: usize| {
            bytes.set(bytes.get() + len * size);
            0
        };
        let (element, wide) = (|len| add(len, size_of::<E>()), |len| add(len, 4));
        let make = Make::<usize> { element: &element, wide: &wide, index: &wide };
        drop(Rooms::new(&make, &stage(network, &blocks, &layers, in_flight, shape, logits)));
        bytes.get()
    }

    pub fn shape(&self) -> WorkspaceShape {
        self.shape
    }

    /// Bytes of all buffers.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The room of one of the micro-batches in flight.
    pub fn room(&mut self, micro_batch: usize) -> Room<'_, E> {
        Room {
            shape: self.shape,
            here: self.here.clone(),
            blocks: self.blocks.clone(),
            reaches: &self.reaches,
            batch: &mut self.rooms.batches[micro_batch],
            shared: &mut self.rooms.shared,
            tokens: &mut self.tokens[micro_batch],
            staged: &mut self.staged,
        }
    }
}

fn widths(network: &Network, blocks: &Range<usize>) -> Vec<Widths> {
    network.layers(blocks).map(|layer| layer.widths).collect()
}

/// How many logits a device makes at once.
pub fn logits_on(device: &Device) -> LogitsAtOnce {
    if device.is_cpu() { LogitsAtOnce::Cached } else { LogitsAtOnce::Many }
}

/// Some blocks of a network as the description of buffers has them.
fn stage<'a>(
    network: &Network,
    blocks: &Range<usize>,
    layers: &'a [Widths],
    in_flight: usize,
    shape: &WorkspaceShape,
    logits: LogitsAtOnce,
) -> Stage<'a> {
    let model = &network.architecture().transformer;
    Stage {
        hidden: model.hidden as usize,
        vocab: model.vocab as usize,
        layers,
        model_layers: network.layer_count(),
        reaches: model.reaches().len(),
        rows: Here::new(shape, network.part()).rows,
        in_flight,
        recompute: shape.recompute,
        has_gradients: shape.has_gradients,
        has_embedding: blocks.start == 0,
        has_head: blocks.end == network.blocks().len(),
        logits,
        ranks: network.part().ranks(),
    }
}

/// Allocates, and adds to the bytes that are allocated.
fn zeros<E: BufferValue>(device: &Device, len: usize, bytes: &Cell<usize>) -> Buffer<E> {
    let buffer = device.zeros(len);
    bytes.set(bytes.get() + buffer.bytes());
    buffer
}

pub(crate) const HAS_GRADIENTS: &str = "learning needs a workspace with gradients";

impl<E: Element> Room<'_, E> {
    /// Puts a micro-batch in place. Panics when it has another number of rows.
    pub fn load(&mut self, device: &Device, batch: BatchTokens<'_>) {
        let given = &mut self.batch.given;
        if !given.tokens.is_empty() {
            device.write(given.tokens.view_mut(), batch.tokens);
        }
        if !given.targets.is_empty() {
            device.write(given.targets.view_mut(), batch.targets);
        }
        device.write(given.positions.view_mut(), batch.positions);
        let (here, sequence) = (&self.here, self.shape.sequence);
        if !given.counted.is_empty() {
            let is_counted = |row: usize| {
                let padding = batch.padding.get(row / here.of_sequence());
                let padding = padding.map_or(0, |padding| *padding as usize);
                u32::from(here.place_of(row) + padding < sequence)
            };
            self.staged.clear();
            self.staged.extend((0..self.here.rows).map(is_counted));
            device.write(given.counted.view_mut(), self.staged);
            device.fill(given.shares.view_mut(), 0.0);
        }
        if !given.behind.is_empty() {
            device.write(given.behind.view_mut(), &[sequence as u32]);
        }
        let padding: usize = batch.padding.iter().map(|padding| *padding as usize).sum();
        *self.tokens = self.shape.rows().saturating_sub(padding);
        for (reach, first_keys) in self.reaches.iter().zip(&mut self.batch.first_keys) {
            let window = match reach {
                Reach::Window(size) => (*size).min(sequence as u64) as usize,
                Reach::Full | Reach::Chunk(_) => sequence,
            };
            self.staged.clear();
            for source in here.sources() {
                let given = batch.first_keys.iter().enumerate();
                self.staged.extend(given.map(|(row, first)| {
                    let first_seen = (here.place_of(row) + 1).saturating_sub(window);
                    source.first_among(first_seen.max(*first as usize)) as u32
                }));
            }
            device.write(first_keys.view_mut(), self.staged);
        }
    }

    /// The residual stream of own rows that the first layer starts from: made by the embedding, or put here by the stage before.
    pub fn input_mut(&mut self) -> ViewMut<'_, E> {
        self.batch.streams[0].view_mut()
    }

    /// The residual stream after the last layer, for the head or for the next stage.
    pub fn output(&self) -> View<'_, E> {
        self.stream_before(self.blocks.end).view()
    }

    /// The gradient of the output: made by the head, or put here by the next stage.
    pub fn output_gradient_mut(&mut self) -> ViewMut<'_, E> {
        self.shared.gradients.as_mut().expect(HAS_GRADIENTS).stream.view_mut()
    }

    /// The gradient of the input once all layers have passed it back, for the embedding or for the stage before.
    pub fn input_gradient(&self) -> View<'_, E> {
        self.shared.gradients.as_ref().expect(HAS_GRADIENTS).stream.view()
    }

    /// How busy the experts of the room's layers are: a row for each layer of the model, zero for those of other stages. Before
    /// their backward passes, stages add up what they have, as the load-balancing loss is one over all layers.
    pub fn expert_shares_mut(&mut self) -> ViewMut<'_, f32> {
        self.batch.given.shares.view_mut()
    }

    /// The residual stream after a block other than the head.
    pub fn stream_after(&self, index: usize) -> View<'_, E> {
        self.stream_before(index + 1).view()
    }

    /// The residual stream before a block of the network.
    pub(crate) fn stream_before(&self, index: usize) -> &Buffer<E> {
        let layers = self.blocks.end - usize::from(self.shared.head.is_some());
        &self.batch.streams[self.stream_index(self.layer_of(index.min(layers)))]
    }

    /// Without gradients two buffers take turns.
    fn stream_index(&self, layer: usize) -> usize {
        if self.shape.has_gradients { layer } else { layer % 2 }
    }

    /// The number within the stage of a layer that is block `index` of the network.
    fn layer_of(&self, index: usize) -> usize {
        index - self.blocks.start.max(1)
    }

    /// The parts that the head uses.
    pub(crate) fn head(&mut self, hidden: usize) -> HeadRoom<'_, E> {
        let last = self.stream_index(self.layer_of(self.blocks.end - 1));
        HeadRoom {
            stream: self.batch.streams[last].view().matrix(self.here.own.len(), hidden),
            targets: self.batch.given.targets.range(self.here.own.clone()),
            head: self.shared.head.as_mut().expect("the workspace of the last stage has the head"),
            gradients: self.shared.gradients.as_mut(),
        }
    }

    /// The parts that the layer at block `index` uses.
    pub(crate) fn layer(&mut self, index: usize, reach: Reach) -> LayerRoom<'_, E> {
        assert!(self.blocks.contains(&index), "block {index} in a workspace for {:?}", self.blocks);
        let layer = self.layer_of(index);
        let (from, to) = (self.stream_index(layer), self.stream_index(layer + 1));
        let SharedRoom {
            kept,
            cheap,
            gradients,
            inner,
            partial,
            gathered,
            travel,
            expanded,
            ring,
            ring_gradients,
            ..
        } = &mut *self.shared;
        let BatchRoom { given, first_keys, streams, kept: own_kept, cheap: own_cheap } = &mut *self.batch;
        let [input, output] = streams.get_disjoint_mut([from, to]).expect("a layer's two streams");
        let reach = self.reaches.iter().position(|of| *of == reach).expect("a reach of the network");
        LayerRoom {
            input,
            output,
            kept: own_kept.get_mut(layer).or(kept.first_mut()).expect(HAS_ROOM),
            cheap: own_cheap.get_mut(layer).or(cheap.first_mut()).expect(HAS_ROOM),
            gradients: gradients.as_mut(),
            inner: inner.as_mut(),
            partial: partial.as_mut(),
            gathered,
            travel: travel.as_mut(),
            expanded: expanded.as_mut(),
            ring: ring.as_mut(),
            ring_gradients: ring_gradients.as_mut(),
            behind: given.behind.view(),
            positions: given.positions.view(),
            first_keys: first_keys[reach].view(),
            routing: ExpertLoad {
                counted: given.counted.view(),
                tokens: *self.tokens,
                shares: &mut given.shares,
            },
        }
    }
}

const HAS_ROOM: &str = "a layer has a room of its own or shares one";
