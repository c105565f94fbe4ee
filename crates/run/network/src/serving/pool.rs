//! The keys and values of all sequences, in blocks.

use std::io;

use bedplate_kernels::{Buffer, Device, Element, KvFormat, PagedShape};

use crate::Network;
use crate::table::LayerParts;

/// A pool of blocks for each layer. Block `b` of every layer belongs to the same tokens.
pub struct KvPool<E: Element> {
    pub(crate) layers: Vec<Buffer<E>>,
    pub(crate) shapes: Vec<PagedShape>,
    blocks: usize,
}

impl<E: Element> KvPool<E> {
    /// Memory is taken from the system as blocks are used.
    pub fn new(
        device: &Device,
        network: &Network,
        blocks: usize,
        block_tokens: usize,
        format: KvFormat,
    ) -> io::Result<Self> {
        let shapes = shapes(network, block_tokens, format);
        let layers = shapes.iter().map(|shape| device.reserve(blocks * shape.block_len()));
        Ok(Self { layers: layers.collect::<io::Result<_>>()?, shapes, blocks })
    }

    /// Bytes of one block over all layers.
    pub fn bytes_of_block(network: &Network, block_tokens: usize, format: KvFormat) -> usize {
        shapes(network, block_tokens, format).iter().map(|shape| shape.block_len() * size_of::<E>()).sum()
    }

    /// Whether the device has attention over such a pool, in every layer.
    pub fn is_possible(device: &Device, network: &Network, block_tokens: usize, format: KvFormat) -> bool {
        shapes(network, block_tokens, format).iter().all(|shape| device.has_kv::<E>(shape))
    }

    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Bytes of one block over all layers.
    pub fn block_bytes(&self) -> usize {
        self.shapes.iter().map(|shape| shape.block_len() * size_of::<E>()).sum()
    }

    /// Copies blocks to others, in every layer.
    pub fn copy(&mut self, device: &Device, pairs: &[(u32, u32)]) {
        for (layer, shape) in self.layers.iter_mut().zip(&self.shapes) {
            device.copy_blocks(shape.block_len(), pairs, layer.view_mut());
        }
    }

    /// Reads a block of all layers, one after the other.
    pub fn read(&self, device: &Device, block: u32, to: &mut [u8]) {
        let mut rest = to;
        for layer in 0..self.layers.len() {
            let (part, others) = rest.split_at_mut(self.layer_bytes(layer));
            self.read_layer(device, layer, block, part);
            rest = others;
        }
    }

    /// Writes what [`read`](Self::read) gave.
    pub fn write(&mut self, device: &Device, block: u32, from: &[u8]) {
        let mut rest = from;
        for layer in 0..self.layers.len() {
            let (part, others) = rest.split_at(self.layer_bytes(layer));
            self.write_layer(device, layer, block, part);
            rest = others;
        }
    }

    /// Bytes of one block of a layer.
    pub fn layer_bytes(&self, layer: usize) -> usize {
        self.shapes[layer].block_len() * size_of::<E>()
    }

    pub fn read_layer(&self, device: &Device, layer: usize, block: u32, to: &mut [u8]) {
        let len = self.shapes[layer].block_len();
        let start = block as usize * len;
        device.read(self.layers[layer].range(start..start + len).bytes(), to);
    }

    pub fn write_layer(&mut self, device: &Device, layer: usize, block: u32, from: &[u8]) {
        let len = self.shapes[layer].block_len();
        let start = block as usize * len;
        device.write(self.layers[layer].range_mut(start..start + len).bytes(), from);
    }
}

fn shapes(network: &Network, block_tokens: usize, format: KvFormat) -> Vec<PagedShape> {
    let all = 0..network.blocks().len();
    network
        .layers(&all)
        .enumerate()
        .map(|(layer, parts)| shape(network, layer, parts, block_tokens, format))
        .collect()
}

fn shape(
    network: &Network,
    layer: usize,
    parts: &LayerParts,
    block_tokens: usize,
    format: KvFormat,
) -> PagedShape {
    let (widths, numerics) = (&parts.widths, &network.architecture().numerics);
    let plain = PagedShape {
        heads: widths.heads,
        kv_heads: widths.kv_heads,
        head_dim: widths.head_dim,
        scale: numerics.attention_scale.of(widths.head_dim, layer),
        cap: numerics.attention_cap,
        block_tokens,
        format,
    };
    match &parts.latent {
        None => plain,
        // Latents in another format than their own are possible on no device.
        Some(latent) => PagedShape {
            kv_heads: 1,
            head_dim: latent.shape.kept(),
            format: if format == KvFormat::Stored { KvFormat::Latent } else { format },
            ..plain
        },
    }
}
