//! The network: blocks in order, and a micro-batch's way through them and back.
//!
//! A block sees its own weights, its own gradient and its room, and nothing else. [`Network::forward`], [`Network::backward`] and
//! [`Network::learn`] go through all blocks of a room, which are the whole network or one stage of it.

use std::ops::Range;

use bedplate_kernels::{Accumulate, Device, Element, Rotary, View, ViewMut};
use bedplate_transformer::Positions;

use crate::layer::LayerRun;
use crate::table::{self, Block, BlockParts, EmbeddingParts, LayerParts, MlpParts};
use crate::workspace::{HAS_GRADIENTS, LayerRoom, Room};
use crate::{Among, Architecture, NetworkError, Peers, Recompute, ShardSpec, Weights, WorkspaceShape};

/// A model's blocks and how to compute them. Holds no weights.
pub struct Network {
    architecture: Architecture,
    part: ShardSpec,
    peers: Option<Box<dyn Peers>>,
    blocks: Vec<Block>,
    rotary: Vec<Rotary>,
    longest: usize,
    products: Products,
}

/// In what format the two sides of the products of layers meet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Products {
    /// As they are stored.
    #[default]
    Stored,
    /// Rounded to fp8: in the linear layers of attention, of dense MLPs and of shared experts, forward and for the gradients of their inputs.
    /// Routed experts, routers, embedding, head and the gradients of weights stay as they are stored.
    Fp8,
}

impl Network {
    /// For sequences of at most `longest` tokens.
    pub fn new(device: &Device, architecture: Architecture, longest: usize) -> Result<Self, NetworkError> {
        Self::build(device, architecture, longest, ShardSpec::WHOLE, None)
    }

    /// One rank's part of a network that is cut over several ranks, which `peers` reaches. Panics where `part` is none of the parts.
    pub fn sharded(
        device: &Device,
        architecture: Architecture,
        longest: usize,
        part: ShardSpec,
        peers: Box<dyn Peers>,
    ) -> Result<Self, NetworkError> {
        part.check();
        let part = ShardSpec { has_cut_rows: part.has_cut_rows && !part.tensor.is_whole(), ..part };
        Self::build(device, architecture, longest, part, (!part.is_whole()).then_some(peers))
    }

    fn build(
        device: &Device,
        architecture: Architecture,
        longest: usize,
        part: ShardSpec,
        peers: Option<Box<dyn Peers>>,
    ) -> Result<Self, NetworkError> {
        let model = &architecture.transformer;
        if let Positions::Learned { count } = model.positions
            && longest as u64 > count
        {
            return Err(NetworkError::TooLong { longest, positions: count });
        }
        let blocks = table::blocks(model, &part)?;
        let numerics = &architecture.numerics;
        if let Some(what) = numerics.only_on_a_processor(model).filter(|_| !device.is_cpu()) {
            return Err(NetworkError::Unsupported { feature: format!("{what} on a GPU") });
        }
        let rotary = numerics.rotary.schemes.iter().map(|scheme| {
            let frequencies = scheme.frequencies(longest)?;
            let factor = scheme.attention_factor as f32;
            let rotary = Rotary::new(device, 2 * frequencies.len(), frequencies, longest, factor);
            Ok(rotary.with_pairing(scheme.pairing))
        });
        let rotary = rotary.collect::<Result<Vec<Rotary>, NetworkError>>()?;
        Ok(Self { architecture, part, peers, blocks, rotary, longest, products: Products::default() })
    }

    /// The same network with products of another format.
    pub fn with_products(self, products: Products) -> Self {
        Self { products, ..self }
    }

    pub(crate) fn products(&self) -> Products {
        self.products
    }

    pub fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    /// What the configuration or this use of it asks for and is not done, or should not be expected.
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = self.architecture.remarks.clone();
        let (longest, context) = (self.longest, self.architecture.transformer.max_context);
        if longest as u64 > context {
            remarks.push(format!(
                "sequences of {longest} tokens are longer than the {context} for which the model was made \
                 (`max_position_embeddings`)"
            ));
        }
        remarks
    }

    /// The part that this network has of the whole.
    pub fn part(&self) -> &ShardSpec {
        &self.part
    }

    /// Refuses micro-batches that cannot be cut evenly as this network is. A workspace of such a shape panics.
    pub fn check_shape(&self, shape: &WorkspaceShape) -> Result<(), NetworkError> {
        self.part.check_rows(shape.sequences, shape.sequence)
    }

    /// The tables of the embedding, the layers and the head, in this order.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// Numbers that say how busy all experts of all layers are, where the loss depends on it; 0 where it does not.
    pub fn balanced_shares(&self) -> usize {
        let experts = |layer: &LayerParts| layer.widths.experts;
        let most = self.layers(&(0..self.blocks.len())).map(experts).max().unwrap_or(0);
        let counts = self.architecture.numerics.balance_coefficient > 0.0;
        if counts { self.layer_count() * most } else { 0 }
    }

    pub fn longest(&self) -> usize {
        self.longest
    }

    /// Numbers of the part that is here.
    pub fn parameters(&self) -> usize {
        self.blocks.iter().flat_map(|block| &block.tensors).map(|tensor| tensor.range.len()).sum()
    }

    pub fn layer_count(&self) -> usize {
        self.blocks.len() - 2
    }

    /// The layers among some blocks.
    pub(crate) fn layers(&self, blocks: &Range<usize>) -> impl Iterator<Item = &LayerParts> {
        self.blocks[blocks.clone()].iter().filter_map(|block| match &block.parts {
            BlockParts::Layer(layer) => Some(&**layer),
            _ => None,
        })
    }

    /// Layers with experts.
    pub(crate) fn sparse_layers(&self) -> usize {
        self.layers(&(0..self.blocks.len())).filter(|layer| matches!(layer.mlp, MlpParts::Mixture(_))).count()
    }

    /// The positions of a layer, counted from 0.
    pub(crate) fn rotary(&self, layer: usize) -> Option<&Rotary> {
        self.architecture.numerics.rotary.of_layers[layer].map(|scheme| &self.rotary[scheme])
    }

    /// The other ranks, where one of the axes has any.
    pub(crate) fn peers(&self) -> Option<&dyn Peers> {
        self.peers.as_deref()
    }

    /// Adds up what the tensor ranks have, where layers are cut over them.
    pub(crate) fn sum_over_ranks(&self, device: &Device, partial: ViewMut<'_, f32>) {
        if let Some(peers) = self.peers().filter(|_| !self.part.tensor.is_whole()) {
            peers.sum(device, Among::Tensor, partial);
        }
    }

    /// Computes a block other than the head: the embedding from tokens, a layer from the stream before it. `weights` are the
    /// block's.
    pub fn forward_block<E: Element>(
        &self,
        device: &Device,
        index: usize,
        weights: View<'_, E>,
        room: &mut Room<'_, E>,
    ) {
        match &self.blocks[index].parts {
            BlockParts::Embedding(parts) => self.embed(device, parts, weights, room),
            BlockParts::Layer(parts) => {
                let (run, mut room) = self.layer_run(device, index, parts, weights, room, 0.0);
                run.forward(&mut room);
            }
            BlockParts::Head(_) => unreachable!("the head is computed with its loss"),
        }
    }

    /// Turns the gradient of a block's output into that of its input, and adds to the gradient of its weights unless it
    /// is frozen. [`Network::head_backward`] does the same for the head.
    pub fn backward_block<E: Element>(
        &self,
        device: &Device,
        index: usize,
        weights: View<'_, E>,
        room: &mut Room<'_, E>,
        gradient: Option<ViewMut<'_, f32>>,
        balance: f32,
    ) {
        match &self.blocks[index].parts {
            BlockParts::Embedding(parts) => {
                if let Some(gradient) = gradient {
                    self.embed_backward(device, parts, room, gradient);
                }
            }
            BlockParts::Layer(parts) => {
                let recompute = room.shape.recompute;
                let (run, mut room) = self.layer_run(device, index, parts, weights, room, balance);
                match recompute {
                    Recompute::None => {}
                    Recompute::Cheap => run.recompute_cheap(&mut room),
                    Recompute::Full => run.forward(&mut room),
                }
                run.backward(&mut room, gradient);
            }
            BlockParts::Head(_) => unreachable!("the head is computed with its loss"),
        }
    }

    /// A room's blocks except the head, in order.
    fn before_head<E: Element>(&self, room: &Room<'_, E>) -> Range<usize> {
        room.blocks.start..room.blocks.end.min(self.blocks.len() - 1)
    }

    /// Forward through all blocks of a room except the head.
    pub fn forward<E: Element>(&self, device: &Device, weights: &Weights<E>, room: &mut Room<'_, E>) {
        for index in self.before_head(room) {
            self.forward_block(device, index, weights.block(index), room);
        }
    }

    /// Backward through all blocks of a room except the head, from the gradient of the room's output. Adds to the gradients.
    ///
    /// `balance` is the micro-batch's share of the step, by which the load-balancing loss counts.
    pub fn backward<E: Element>(
        &self,
        device: &Device,
        weights: &Weights<E>,
        room: &mut Room<'_, E>,
        gradients: &mut Weights<f32>,
        balance: f32,
    ) {
        for index in self.before_head(room).rev() {
            let gradient = Some(gradients.block_mut(index));
            self.backward_block(device, index, weights.block(index), room, gradient, balance);
        }
    }

    /// Forward and backward of a micro-batch through the whole network; adds to the gradients. Gives the sum of the losses of its
    /// targets.
    ///
    /// `scale` is what a target's loss counts in the step, one over the targets of the step; `balance` is the
    /// micro-batch's share of the step.
    pub fn learn<E: Element>(
        &self,
        device: &Device,
        weights: &Weights<E>,
        room: &mut Room<'_, E>,
        gradients: &mut Weights<f32>,
        scale: f32,
        balance: f32,
    ) -> f64 {
        self.forward(device, weights, room);
        let (own, table) = self.head_gradients(gradients);
        let loss = self.head_backward(device, self.head_weights(weights), room, scale, Some(own), table);
        self.backward(device, weights, room, gradients, balance);
        loss
    }

    /// What embeddings are multiplied by, rounded as transformers rounds it.
    pub(crate) fn embedding_scale<E: Element>(&self) -> f32 {
        E::narrow(self.architecture.numerics.embedding_scale).widen()
    }

    fn hidden(&self) -> usize {
        self.architecture.transformer.hidden as usize
    }

    fn embed<E: Element>(
        &self,
        device: &Device,
        parts: &EmbeddingParts,
        weights: View<'_, E>,
        room: &mut Room<'_, E>,
    ) {
        let (own, hidden) = (room.here.own.clone(), self.hidden());
        let rows = own.len();
        let table = weights.range(parts.table.clone());
        let mut stream = room.batch.streams[0].view_mut().matrix(own.len(), hidden);
        let given = &room.batch.given;
        let table = table.matrix(table.len() / hidden, hidden);
        device.embedding(given.tokens.range(own.clone()), table, Accumulate::Replace, stream.reborrow());
        if let Some(positions) = &parts.positions {
            let table = weights.range(positions.clone());
            let table = table.matrix(table.len() / hidden, hidden);
            device.embedding(given.positions.range(own), table, Accumulate::Add, stream);
        }
        let scale = self.embedding_scale::<E>();
        if scale != 1.0 {
            device.multiply_by(room.batch.streams[0].range_mut(0..rows * hidden), scale);
        }
    }

    fn embed_backward<E: Element>(
        &self,
        device: &Device,
        parts: &EmbeddingParts,
        room: &mut Room<'_, E>,
        mut gradient: ViewMut<'_, f32>,
    ) {
        let (own, hidden) = (room.here.own.clone(), self.hidden());
        let stream = &mut room.shared.gradients.as_mut().expect(HAS_GRADIENTS).stream;
        let scale = self.embedding_scale::<E>();
        if scale != 1.0 {
            device.multiply_by(stream.view_mut(), scale);
        }
        let stream = stream.view().matrix(own.len(), hidden);
        // Nothing is learned for padding, as a token that is put in.
        let padding = self.architecture.numerics.padding.map(|token| {
            let first = parts.table.start + token as usize * hidden;
            first..first + hidden
        });
        let kept = &mut room.batch.given.padding_gradient;
        if let Some(row) = &padding {
            device.copy(gradient.reborrow().range(row.clone()).view(), kept.view_mut());
        }
        let mut add = |indices, range: &Range<usize>| {
            let table = gradient.reborrow().range(range.clone());
            device.embedding_backward(indices, stream, table.matrix(range.len() / hidden, hidden));
        };
        add(room.batch.given.tokens.range(own.clone()), &parts.table);
        if let Some(row) = padding {
            device.copy(room.batch.given.padding_gradient.view(), gradient.reborrow().range(row));
        }
        let mut add = |indices, range: &Range<usize>| {
            let table = gradient.reborrow().range(range.clone());
            device.embedding_backward(indices, stream, table.matrix(range.len() / hidden, hidden));
        };
        if let Some(positions) = &parts.positions {
            add(room.batch.given.positions.range(own), positions);
        }
    }

    /// A layer's functions, and the room that they use.
    fn layer_run<'a, E: Element>(
        &'a self,
        device: &'a Device,
        index: usize,
        parts: &'a LayerParts,
        weights: View<'a, E>,
        room: &'a mut Room<'_, E>,
        balance: f32,
    ) -> (LayerRun<'a, E>, LayerRoom<'a, E>) {
        let (rows, own_rows, sequence) = (room.here.rows, room.here.own.len(), room.here.of_sequence());
        let room = room.layer(index, parts.reach);
        let (positions, first_keys, behind) = (room.positions, room.first_keys, room.behind);
        let (network, layer) = (self, index - 1);
        let run = LayerRun {
            device,
            network,
            parts,
            layer,
            weights,
            rows,
            own_rows,
            sequence,
            positions,
            first_keys,
            behind,
            balance,
        };
        (run, room)
    }
}
