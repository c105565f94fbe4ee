//! Numbers for every tensor of a network: weights, gradients or moments, one flat buffer per block.

use bedplate_kernels::{Buffer, Device, Element, View, ViewMut};

use crate::Network;

pub struct Weights<E: Element> {
    blocks: Vec<Buffer<E>>,
}

impl<E: Element> Weights<E> {
    pub fn zeros(network: &Network) -> Self {
        Self { blocks: network.blocks().iter().map(|block| Buffer::zeros(block.len)).collect() }
    }

    pub fn block(&self, index: usize) -> View<'_, E> {
        self.blocks[index].view()
    }

    pub fn block_mut(&mut self, index: usize) -> ViewMut<'_, E> {
        self.blocks[index].view_mut()
    }

    /// Two blocks at once. Panics when they are the same.
    pub fn two_blocks_mut(&mut self, first: usize, second: usize) -> [ViewMut<'_, E>; 2] {
        let blocks = self.blocks.get_disjoint_mut([first, second]).expect("two blocks of the network");
        blocks.map(Buffer::view_mut)
    }

    pub fn fill(&mut self, device: &Device, value: f32) {
        self.blocks.iter_mut().for_each(|block| device.fill(block.view_mut(), value));
    }

    /// Takes over the numbers of another format.
    pub fn convert_from<F: Element>(&mut self, device: &Device, from: &Weights<F>) {
        for (to, from) in self.blocks.iter_mut().zip(&from.blocks) {
            device.convert(from.view(), to.view_mut());
        }
    }

    pub fn bytes(&self) -> usize {
        self.blocks.iter().map(Buffer::bytes).sum()
    }
}
