//! The network: blocks in order, and a micro-batch's way through them and back.

use bedplate_kernels::{Buffer, Device, Element, Into, Rotary, ViewMut};
use bedplate_transformer::Positions;

use crate::layer::{BlockGradient, LayerRun};
use crate::table::{self, Block, EmbeddingParts, LayerParts, Parts};
use crate::workspace::{Cheap, GradientRoom, Kept, Recompute};
use crate::{Architecture, NetworkError, Weights, Workspace};

/// A model's blocks and how to compute them. Holds no weights.
pub struct Network {
    architecture: Architecture,
    blocks: Vec<Block>,
    rotary: Option<Rotary>,
    longest: usize,
}

/// Where the first number that is not finite turned up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NonFinite {
    pub block: String,
    /// Row of the micro-batch.
    pub row: usize,
}

impl Network {
    /// For sequences of at most `longest` tokens.
    pub fn new(architecture: Architecture, longest: usize) -> Result<Self, NetworkError> {
        let model = &architecture.transformer;
        if let Positions::Learned { count } = model.positions
            && longest as u64 > count
        {
            return Err(NetworkError::TooLong { longest, positions: count });
        }
        let blocks = table::blocks(model);
        let rotary = architecture.numerics.rotary.as_ref();
        let rotary =
            rotary.map(|scheme| Rotary::new(2 * scheme.frequencies.len(), &scheme.frequencies, longest, 1.0));
        Ok(Self { architecture, blocks, rotary, longest })
    }

    pub fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    /// The tables of the embedding, the layers and the head, in this order.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    pub fn longest(&self) -> usize {
        self.longest
    }

    /// Numbers that are trained.
    pub fn parameters(&self) -> usize {
        self.blocks.iter().flat_map(|block| &block.tensors).map(|tensor| tensor.range.len()).sum()
    }

    pub fn layer_count(&self) -> usize {
        self.blocks.len() - 2
    }

    /// Computes a block other than the head: the embedding from tokens, a layer from the stream before it.
    pub fn forward_block<E: Element>(
        &self,
        device: &Device,
        index: usize,
        weights: &Weights<E>,
        workspace: &mut Workspace<E>,
    ) {
        match &self.blocks[index].parts {
            Parts::Embedding(parts) => self.embed(device, parts, weights, workspace),
            Parts::Layer(parts) => self.forward_layer(device, index - 1, parts, weights, workspace),
            Parts::Head(_) => unreachable!("the head is computed with its loss"),
        }
    }

    /// Everything up to the stream before the head.
    pub fn forward<E: Element>(&self, device: &Device, weights: &Weights<E>, workspace: &mut Workspace<E>) {
        (0..self.blocks.len() - 1).for_each(|index| self.forward_block(device, index, weights, workspace));
    }

    /// Forward and backward of a micro-batch; adds to the gradients. Gives the sum of the losses of its targets.
    ///
    /// `scale` is what a target's loss counts in the step, one over the targets of the step; `balance` is the
    /// micro-batch's share of the step.
    pub fn learn<E: Element>(
        &self,
        device: &Device,
        weights: &Weights<E>,
        workspace: &mut Workspace<E>,
        gradients: &mut Weights<f32>,
        scale: f32,
        balance: f32,
    ) -> f64 {
        self.forward(device, weights, workspace);
        let last = self.blocks.len() - 1;
        let [table, head] = gradients.two_blocks_mut(0, last);
        let loss = self.head_backward(device, weights, workspace, scale, Some(head), Some(table));
        for index in (0..last).rev() {
            let gradient = Some(gradients.block_mut(index));
            self.backward_block(device, index, weights, workspace, gradient, balance);
        }
        loss
    }

    /// Turns the gradient of a block's output into that of its input, and adds to the gradient of its weights unless it
    /// is frozen. The head's way back is [`Network::head_backward`].
    pub fn backward_block<E: Element>(
        &self,
        device: &Device,
        index: usize,
        weights: &Weights<E>,
        workspace: &mut Workspace<E>,
        gradient: Option<ViewMut<'_, f32>>,
        balance: f32,
    ) {
        match &self.blocks[index].parts {
            Parts::Embedding(parts) => {
                if let Some(gradient) = gradient {
                    self.embed_backward(device, parts, workspace, gradient);
                }
            }
            Parts::Layer(parts) => {
                self.backward_layer(device, index - 1, parts, weights, workspace, gradient, balance);
            }
            Parts::Head(_) => unreachable!("the head is computed with its loss"),
        }
    }

    fn hidden(&self) -> usize {
        self.architecture.transformer.hidden as usize
    }

    fn embed<E: Element>(
        &self,
        device: &Device,
        parts: &EmbeddingParts,
        weights: &Weights<E>,
        workspace: &mut Workspace<E>,
    ) {
        let (rows, hidden) = (workspace.shape.rows(), self.hidden());
        let weights = weights.block(0);
        let table = weights.range(parts.table.clone());
        let mut stream = workspace.streams[0].view_mut().matrix(rows, hidden);
        let tokens = workspace.tokens.view();
        device.embedding(
            tokens,
            table.matrix(table.len() / hidden, hidden),
            Into::Replace,
            stream.reborrow(),
        );
        if let Some(positions) = &parts.positions {
            let table = weights.range(positions.clone());
            let positions = workspace.positions.view();
            device.embedding(positions, table.matrix(table.len() / hidden, hidden), Into::Add, stream);
        }
    }

    fn embed_backward<E: Element>(
        &self,
        device: &Device,
        parts: &EmbeddingParts,
        workspace: &mut Workspace<E>,
        mut gradient: ViewMut<'_, f32>,
    ) {
        let (rows, hidden) = (workspace.shape.rows(), self.hidden());
        let room = workspace.gradients.as_ref().expect(HAS_GRADIENTS);
        let stream = room.stream.view().matrix(rows, hidden);
        let mut add = |indices, range: &std::ops::Range<usize>| {
            let table = gradient.reborrow().into_range(range.clone());
            device.embedding_backward(indices, stream, table.matrix(range.len() / hidden, hidden));
        };
        add(workspace.tokens.view(), &parts.table);
        if let Some(positions) = &parts.positions {
            add(workspace.positions.view(), positions);
        }
    }

    fn forward_layer<E: Element>(
        &self,
        device: &Device,
        layer: usize,
        parts: &LayerParts,
        weights: &Weights<E>,
        workspace: &mut Workspace<E>,
    ) {
        let (from, to) = (workspace.stream_index(layer), workspace.stream_index(layer + 1));
        let (run, rooms) = self.layer_run(device, layer, parts, weights, workspace, 0.0);
        let [input, output] = rooms.streams.get_disjoint_mut([from, to]).expect("a layer's two streams");
        run.forward(input, rooms.kept, rooms.cheap, output);
    }

    #[expect(clippy::too_many_arguments, reason = "what goes in, what comes out, and where")]
    fn backward_layer<E: Element>(
        &self,
        device: &Device,
        layer: usize,
        parts: &LayerParts,
        weights: &Weights<E>,
        workspace: &mut Workspace<E>,
        gradient: BlockGradient<'_>,
        balance: f32,
    ) {
        let recompute = workspace.shape.recompute;
        let (run, rooms) = self.layer_run(device, layer, parts, weights, workspace, balance);
        let [input, output] =
            rooms.streams.get_disjoint_mut([layer, layer + 1]).expect("a layer's two streams");
        match recompute {
            Recompute::None => {}
            Recompute::Selective => run.recompute_cheap(input, rooms.kept, rooms.cheap),
            Recompute::Full => run.forward(input, rooms.kept, rooms.cheap, output),
        }
        let room = rooms.gradients.as_mut().expect(HAS_GRADIENTS);
        run.backward(input, rooms.kept, rooms.cheap, room, gradient);
    }

    /// A layer's functions, and the rooms of the workspace that they use.
    fn layer_run<'a, E: Element>(
        &'a self,
        device: &'a Device,
        layer: usize,
        parts: &'a LayerParts,
        weights: &'a Weights<E>,
        workspace: &'a mut Workspace<E>,
        balance: f32,
    ) -> (LayerRun<'a, E>, Rooms<'a, E>) {
        let Workspace { shape, positions, first_keys, streams, kept, cheap, gradients, .. } = workspace;
        let reach = self.architecture.transformer.layers().nth(layer).expect("a layer of the model").reach;
        let first_keys = first_keys.iter().find(|(of, _)| *of == reach).expect("every reach has its keys");
        let run = LayerRun {
            device,
            parts,
            architecture: &self.architecture,
            rotary: self.rotary.as_ref(),
            weights: weights.block(layer + 1),
            rows: shape.rows(),
            sequence: shape.sequence,
            positions: positions.view(),
            first_keys: first_keys.1.view(),
            balance,
        };
        let (kept_index, cheap_index) = (layer.min(kept.len() - 1), layer.min(cheap.len() - 1));
        let rooms = Rooms { streams, kept: &mut kept[kept_index], cheap: &mut cheap[cheap_index], gradients };
        (run, rooms)
    }

    /// The first block after whose forward pass a number is not finite. Computes the micro-batch in `workspace` again.
    pub fn find_non_finite<E: Element>(
        &self,
        device: &Device,
        weights: &Weights<E>,
        workspace: &mut Workspace<E>,
    ) -> Option<NonFinite> {
        for index in 0..self.blocks.len() - 1 {
            self.forward_block(device, index, weights, workspace);
            let stream = &workspace.streams[workspace.stream_index(index)];
            if let Some(at) = device.first_non_finite(stream.view()) {
                return Some(NonFinite { block: self.blocks[index].name.clone(), row: at / self.hidden() });
            }
        }
        self.head_loss(device, weights, workspace);
        let at = device.first_non_finite(workspace.losses.view())?;
        Some(NonFinite { block: self.blocks.last().expect("a network has a head").name.clone(), row: at })
    }
}

/// What a layer changes in a workspace.
struct Rooms<'a, E: Element> {
    streams: &'a mut [Buffer<E>],
    kept: &'a mut Kept<E>,
    cheap: &'a mut Cheap<E>,
    gradients: &'a mut Option<GradientRoom<E>>,
}

pub(crate) const HAS_GRADIENTS: &str = "learning needs a workspace with gradients";
