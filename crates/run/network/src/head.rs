//! The head: the last norm, logits, the loss, and the way back to the stream.

use bedplate_kernels::{Accumulate, Device, Element, HeadGradients, LossRule, View, ViewMut};

use crate::norm;
use crate::table::{BlockParts, EmbeddingParts, HeadParts};
use crate::workspace::{HAS_GRADIENTS, HeadRoom, Room};
use crate::{Among, Network, Weights};

/// What the head computes with.
#[derive(Debug, Clone, Copy)]
pub struct HeadWeights<'a, E> {
    /// Those of the head's own block.
    pub own: View<'a, E>,
    /// The embedding's table, where that serves as the head's matrix.
    pub table: Option<View<'a, E>>,
}

impl<'a, E: Element> HeadWeights<'a, E> {
    /// The matrix from the stream to logits.
    fn matrix(&self, parts: &HeadParts) -> View<'a, E> {
        match &parts.weight {
            Some(own) => self.own.range(own.clone()),
            None => self.table.expect("a head without a matrix is given the embedding's table"),
        }
    }
}

impl Network {
    fn head_parts(&self) -> &HeadParts {
        match self.blocks().last().map(|block| &block.parts) {
            Some(BlockParts::Head(parts)) => parts,
            _ => unreachable!("the last block is the head"),
        }
    }

    /// The embedding's parts, where its table serves as the head's matrix.
    fn tied_embedding(&self) -> Option<&EmbeddingParts> {
        match &self.blocks()[0].parts {
            BlockParts::Embedding(parts) => Some(parts).filter(|_| self.head_parts().weight.is_none()),
            _ => unreachable!("the first block is the embedding"),
        }
    }

    /// The head's weights among those of a network.
    pub fn head_weights<'a, E: Element>(&self, weights: &'a Weights<E>) -> HeadWeights<'a, E> {
        HeadWeights {
            own: weights.block(self.blocks().len() - 1),
            table: self.tied_embedding().map(|parts| weights.block(0).range(parts.table.clone())),
        }
    }

    /// The gradients of the head's block and, where it serves as the head's matrix, of the embedding's table.
    pub fn head_gradients<'a>(
        &self,
        gradients: &'a mut Weights<f32>,
    ) -> (ViewMut<'a, f32>, Option<ViewMut<'a, f32>>) {
        let last = self.blocks().len() - 1;
        let Some(parts) = self.tied_embedding() else { return (gradients.block_mut(last), None) };
        let [embedding, own] = gradients.two_blocks_mut(0, last);
        (own, Some(embedding.range(parts.table.clone())))
    }

    /// The head's room, with the norm of the stream in place.
    fn normed_head<'a, E: Element>(
        &self,
        device: &Device,
        own: View<'_, E>,
        room: &'a mut Room<'_, E>,
    ) -> HeadRoom<'a, E> {
        let room = room.head(self.architecture().transformer.hidden as usize);
        let (rows, hidden) = room.stream.shape();
        norm::forward(
            device,
            self.architecture(),
            &self.head_parts().norm,
            own,
            room.stream,
            room.head.normed.view_mut().matrix(rows, hidden),
            &mut room.head.inverses,
        );
        // Logits are multiplied by it; where they are made from makes no difference.
        let scale = self.architecture().numerics.logit_scale;
        if scale != 1.0 {
            device.multiply_by(room.head.normed.range_mut(0..rows * hidden), scale);
        }
        room
    }

    /// The sum of the losses of all targets of own rows, after [`Network::forward`].
    pub fn head_loss<E: Element>(
        &self,
        device: &Device,
        weights: HeadWeights<'_, E>,
        room: &mut Room<'_, E>,
    ) -> f64 {
        self.losses(device, weights, &mut self.normed_head(device, weights.own, room), 1.0, None)
    }

    /// The loss as [`Network::head_loss`] gives it, and the gradient of the stream before the head. Adds to the gradient
    /// of the head's block, and to that of the embedding's table where that serves as the head's matrix.
    pub fn head_backward<E: Element>(
        &self,
        device: &Device,
        weights: HeadWeights<'_, E>,
        room: &mut Room<'_, E>,
        scale: f32,
        mut gradient: Option<ViewMut<'_, f32>>,
        table: Option<ViewMut<'_, f32>>,
    ) -> f64 {
        let mut room = self.normed_head(device, weights.own, room);
        let d_weight = match &self.head_parts().weight {
            Some(own) => gradient.as_mut().map(|gradient| gradient.reborrow().range(own.clone())),
            None => table,
        };
        let loss = self.losses(device, weights, &mut room, scale, Some(d_weight));
        let (rows, hidden) = room.stream.shape();
        let gradients = room.gradients.expect(HAS_GRADIENTS);
        let factor = self.architecture().numerics.logit_scale;
        if factor != 1.0 {
            device.multiply_by(gradients.normed.range_mut(0..rows * hidden), factor);
        }
        norm::backward(
            device,
            self.architecture(),
            &self.head_parts().norm,
            weights.own,
            gradients.normed.view().matrix(rows, hidden),
            room.stream,
            &room.head.inverses,
            Accumulate::Replace,
            gradients.stream.view_mut().matrix(rows, hidden),
            gradient,
        );
        loss
    }

    /// The sum of the losses. With `backward` also the gradient of the normed stream, and that of the matrix unless it is frozen.
    fn losses<E: Element>(
        &self,
        device: &Device,
        weights: HeadWeights<'_, E>,
        room: &mut HeadRoom<'_, E>,
        scale: f32,
        backward: Option<Option<ViewMut<'_, f32>>>,
    ) -> f64 {
        let HeadRoom { stream, targets, head, gradients } = room;
        let (rows, hidden) = stream.shape();
        let gradients = backward.map(|d_weight| {
            let normed = &mut gradients.as_deref_mut().expect(HAS_GRADIENTS).normed;
            HeadGradients { d_x: normed.view_mut().matrix(rows, hidden), d_weight }
        });
        device.linear_cross_entropy(
            head.normed.view().matrix(rows, hidden),
            weights.matrix(self.head_parts()),
            *targets,
            LossRule { scale, cap: self.architecture().numerics.logit_cap },
            head.losses.view_mut(),
            gradients,
            head.logits.view_mut(),
        );
        device.sum(head.losses.view())
    }

    /// The logits of one row of the whole micro-batch, after [`Network::forward`]. All ranks that share the micro-batch ask for the
    /// same row, and all get them.
    pub fn logits<E: Element>(
        &self,
        device: &Device,
        weights: HeadWeights<'_, E>,
        room: &mut Room<'_, E>,
        row: usize,
        logits: &mut [f32],
    ) {
        let own = room.here.find_own(row);
        let HeadRoom { stream, head, .. } = &mut self.normed_head(device, weights.own, room);
        let (_, hidden) = stream.shape();
        let mut out = head.logits.range_mut(0..logits.len());
        match own {
            None => device.fill(out.reborrow(), 0.0),
            Some(row) => {
                let row = head.normed.range(row * hidden..(row + 1) * hidden).matrix(1, hidden);
                let out = out.reborrow().matrix(1, logits.len());
                device.linear(row, weights.matrix(self.head_parts()), None, None, out);
            }
        }
        if let Some(peers) = self.peers().filter(|_| self.part().has_cut_rows) {
            peers.sum(device, Among::Tensor, out.reborrow());
        }
        if let Some(peers) = self.peers().filter(|_| !self.part().context.is_whole()) {
            peers.sum(device, Among::Context, out.reborrow());
        }
        let cap = self.architecture().numerics.logit_cap;
        if cap > 0.0 {
            device.bend_logits(cap, out.reborrow());
        }
        device.read(out.view(), logits);
    }
}
