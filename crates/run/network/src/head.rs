//! The head: the last norm, logits, the loss, and the way back to the stream.

use bedplate_kernels::{Device, Element, HeadGradients, Into, View, ViewMut};

use crate::network::HAS_GRADIENTS;
use crate::norm;
use crate::table::{HeadParts, Parts};
use crate::workspace::HeadRoom;
use crate::{Network, Weights, Workspace};

impl Network {
    fn head_parts(&self) -> &HeadParts {
        match self.blocks().last().map(|block| &block.parts) {
            Some(Parts::Head(parts)) => parts,
            _ => unreachable!("the last block is the head"),
        }
    }

    /// The matrix from the stream to logits: its own, or the embedding's table.
    fn head_weight<'a, E: Element>(&self, weights: &'a Weights<E>) -> View<'a, E> {
        match (&self.head_parts().weight, self.blocks().first().map(|block| &block.parts)) {
            (Some(own), _) => weights.block(self.blocks().len() - 1).range(own.clone()),
            (None, Some(Parts::Embedding(parts))) => weights.block(0).range(parts.table.clone()),
            _ => unreachable!("the first block is the embedding"),
        }
    }

    fn head_norm<E: Element>(&self, device: &Device, weights: &Weights<E>, workspace: &mut Workspace<E>) {
        let (rows, hidden) = (workspace.shape.rows(), self.architecture().transformer.hidden as usize);
        let last = workspace.stream_index(self.layer_count());
        let Workspace { streams, head: HeadRoom { normed, inverses, .. }, .. } = workspace;
        norm::forward(
            device,
            self.architecture(),
            &self.head_parts().norm,
            weights.block(self.blocks().len() - 1),
            streams[last].view().matrix(rows, hidden),
            normed.view_mut().matrix(rows, hidden),
            inverses,
        );
    }

    /// The sum of the losses of all targets, after [`Network::forward`].
    pub fn head_loss<E: Element>(
        &self,
        device: &Device,
        weights: &Weights<E>,
        workspace: &mut Workspace<E>,
    ) -> f64 {
        self.head_norm(device, weights, workspace);
        let (rows, hidden) = (workspace.shape.rows(), self.architecture().transformer.hidden as usize);
        let Workspace { targets, head, losses, .. } = workspace;
        device.linear_cross_entropy(
            head.normed.view().matrix(rows, hidden),
            self.head_weight(weights),
            targets.view(),
            1.0,
            losses.view_mut(),
            None,
            head.logits.view_mut(),
        );
        sum(device, workspace)
    }

    /// The loss as [`Network::head_loss`] gives it, and the gradient of the stream before the head. Adds to the gradient
    /// of the head, and to that of the embedding where its table serves as the head's matrix.
    pub fn head_backward<E: Element>(
        &self,
        device: &Device,
        weights: &Weights<E>,
        workspace: &mut Workspace<E>,
        scale: f32,
        mut gradient: Option<ViewMut<'_, f32>>,
        embedding: Option<ViewMut<'_, f32>>,
    ) -> f64 {
        self.head_norm(device, weights, workspace);
        let (rows, hidden) = (workspace.shape.rows(), self.architecture().transformer.hidden as usize);
        let last = workspace.stream_index(self.layer_count());
        let Workspace { targets, head, losses, gradients, streams, .. } = workspace;
        let room = gradients.as_mut().expect(HAS_GRADIENTS);
        let d_weight = match (&self.head_parts().weight, &self.blocks()[0].parts) {
            (Some(own), _) => gradient.as_mut().map(|gradient| gradient.reborrow().into_range(own.clone())),
            (None, Parts::Embedding(parts)) => embedding.map(|table| table.into_range(parts.table.clone())),
            _ => unreachable!("the first block is the embedding"),
        };
        let d_x = room.normed.range_mut(0..rows * hidden).matrix(rows, hidden);
        device.linear_cross_entropy(
            head.normed.view().matrix(rows, hidden),
            self.head_weight(weights),
            targets.view(),
            scale,
            losses.view_mut(),
            Some(HeadGradients { d_x, d_weight }),
            head.logits.view_mut(),
        );
        norm::backward(
            device,
            &self.head_parts().norm,
            weights.block(self.blocks().len() - 1),
            room.normed.view().matrix(rows, hidden),
            streams[last].view().matrix(rows, hidden),
            &head.inverses,
            Into::Replace,
            room.stream.view_mut().matrix(rows, hidden),
            gradient,
        );
        sum(device, workspace)
    }

    /// The logits of one row, after [`Network::forward`].
    pub fn logits<E: Element>(
        &self,
        device: &Device,
        weights: &Weights<E>,
        workspace: &mut Workspace<E>,
        row: usize,
        logits: &mut [f32],
    ) {
        self.head_norm(device, weights, workspace);
        let hidden = self.architecture().transformer.hidden as usize;
        let row = workspace.head.normed.range(row * hidden..(row + 1) * hidden).matrix(1, hidden);
        let vocab = logits.len();
        let out = workspace.head.logits.range_mut(0..vocab).matrix(1, vocab);
        device.linear(row, self.head_weight(weights), None, None, out);
        device.read(workspace.head.logits.range(0..vocab), logits);
    }
}

fn sum<E: Element>(device: &Device, workspace: &Workspace<E>) -> f64 {
    device.sum(workspace.losses.view())
}
