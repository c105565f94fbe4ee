//! Numbers for the tensors of a network: weights, gradients or moments, one flat buffer per block.

use bedplate_kernels::{Buffer, Device, Element, View, ViewMut};

use crate::Network;

/// All blocks of a network, or those that a stage needs.
pub struct Weights<E: Element> {
    blocks: Vec<Option<Buffer<E>>>,
}

const PRESENT: &str = "these weights have the block";

impl<E: Element> Weights<E> {
    pub fn zeros(device: &Device, network: &Network) -> Self {
        Self::of_blocks(device, network, |_| true)
    }

    /// Only the blocks that are wanted, by their numbers in the network. Asking for another one later panics.
    pub fn of_blocks(device: &Device, network: &Network, is_wanted: impl Fn(usize) -> bool) -> Self {
        let blocks = network.blocks().iter().enumerate();
        let blocks = blocks.map(|(index, block)| is_wanted(index).then(|| device.zeros(block.len)));
        Self { blocks: blocks.collect() }
    }

    pub fn block(&self, index: usize) -> View<'_, E> {
        self.blocks[index].as_ref().expect(PRESENT).view()
    }

    pub fn block_mut(&mut self, index: usize) -> ViewMut<'_, E> {
        self.blocks[index].as_mut().expect(PRESENT).view_mut()
    }

    /// Two blocks at once. Panics when they are the same.
    pub fn two_blocks_mut(&mut self, first: usize, second: usize) -> [ViewMut<'_, E>; 2] {
        let blocks = self.blocks.get_disjoint_mut([first, second]).expect("two blocks of the network");
        blocks.map(|block| block.as_mut().expect(PRESENT).view_mut())
    }

    pub fn has_block(&self, index: usize) -> bool {
        self.blocks[index].is_some()
    }

    pub fn fill(&mut self, device: &Device, value: f32) {
        self.blocks.iter_mut().flatten().for_each(|block| device.fill(block.view_mut(), value));
    }

    /// Takes over the numbers of another format.
    pub fn convert_from<F: Element>(&mut self, device: &Device, from: &Weights<F>) {
        for (to, from) in self.blocks.iter_mut().flatten().zip(from.blocks.iter().flatten()) {
            device.convert(from.view(), to.view_mut());
        }
    }

    pub fn bytes(&self) -> usize {
        self.blocks.iter().flatten().map(Buffer::bytes).sum()
    }
}
