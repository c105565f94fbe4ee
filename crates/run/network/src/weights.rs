//! Numbers for the tensors of a network: weights, gradients or moments, one flat buffer per block.

use std::borrow::BorrowMut;

use bedplate_kernels::{Buffer, Device, Element, View, ViewMut};

use crate::Network;

/// A block's numbers: a device's own buffer, or one that other ranks reach too.
pub type HeldBlock<E> = Box<dyn BorrowMut<Buffer<E>> + Send + Sync>;

/// All blocks of a network, or those that a stage needs.
pub struct Weights<E: Element> {
    blocks: Vec<Option<HeldBlock<E>>>,
}

const PRESENT: &str = "these weights have the block";

impl<E: Element> Weights<E> {
    pub fn zeros(device: &Device, network: &Network) -> Self {
        Self::of_blocks(device, network, |_| true)
    }

    /// Only the blocks that are wanted, by their numbers in the network. Asking for another one later panics.
    pub fn of_blocks(device: &Device, network: &Network, is_wanted: impl Fn(usize) -> bool) -> Self {
        let make = |len| -> HeldBlock<E> { Box::new(device.zeros(len)) };
        let blocks = network.blocks().iter().enumerate();
        let blocks = blocks.map(|(index, block)| is_wanted(index).then(|| make(block.len)));
        Self { blocks: blocks.collect() }
    }

    /// No block yet; each is [put](Self::put) here for as long as it is needed.
    pub fn absent(network: &Network) -> Self {
        Self { blocks: network.blocks().iter().map(|_| None).collect() }
    }

    /// Gives a block its numbers.
    pub fn put(&mut self, index: usize, numbers: HeldBlock<E>) {
        self.blocks[index] = Some(numbers);
    }

    /// Takes a block's numbers away. Panics where it has none.
    pub fn take(&mut self, index: usize) -> HeldBlock<E> {
        self.blocks[index].take().expect(PRESENT)
    }

    /// Gives a block another buffer, and what was its own. Panics where it has none.
    pub fn replace(&mut self, index: usize, numbers: Buffer<E>) -> Buffer<E> {
        std::mem::replace(buffer_mut(self.blocks[index].as_mut().expect(PRESENT)), numbers)
    }

    pub fn block(&self, index: usize) -> View<'_, E> {
        buffer(self.blocks[index].as_ref().expect(PRESENT)).view()
    }

    pub fn block_mut(&mut self, index: usize) -> ViewMut<'_, E> {
        buffer_mut(self.blocks[index].as_mut().expect(PRESENT)).view_mut()
    }

    /// Two blocks at once. Panics when they are the same.
    pub fn two_blocks_mut(&mut self, first: usize, second: usize) -> [ViewMut<'_, E>; 2] {
        let blocks = self.blocks.get_disjoint_mut([first, second]).expect("two blocks of the network");
        blocks.map(|block| buffer_mut(block.as_mut().expect(PRESENT)).view_mut())
    }

    pub fn has_block(&self, index: usize) -> bool {
        self.blocks[index].is_some()
    }

    pub fn fill(&mut self, device: &Device, value: f32) {
        self.blocks.iter_mut().flatten().for_each(|block| device.fill(buffer_mut(block).view_mut(), value));
    }

    /// Takes over the numbers of another format.
    pub fn convert_from<F: Element>(&mut self, device: &Device, from: &Weights<F>) {
        for (to, from) in self.blocks.iter_mut().flatten().zip(from.blocks.iter().flatten()) {
            device.convert(buffer(from).view(), buffer_mut(to).view_mut());
        }
    }

    pub fn bytes(&self) -> usize {
        self.blocks.iter().flatten().map(|block| buffer(block).bytes()).sum()
    }
}

fn buffer<E: Element>(held: &HeldBlock<E>) -> &Buffer<E> {
    (**held).borrow()
}

fn buffer_mut<E: Element>(held: &mut HeldBlock<E>) -> &mut Buffer<E> {
    (**held).borrow_mut()
}
