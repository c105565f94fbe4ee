//! The weights of a network, packed for products.

use std::ops::Range;
use std::path::Path;

use bedplate_kernels::{Buffer, Device, Element, Packed, PackedExperts, View, WeightFormat};

use crate::safetensors::Loader;
use crate::table::{
    Block, BlockParts, DenseParts, LatentParts, LatentShape, LayerParts, LinearParts, MixtureParts, MlpParts,
    NormParts,
};
use crate::{Network, NetworkError, Weights};

/// All blocks of a network. `E` is the format of activations; matrices have a format of their own.
pub struct PackedWeights<E: Element> {
    /// The embedding's table, which may also be the head's matrix.
    pub(crate) table: Packed,
    pub(crate) positions: Option<Packed>,
    pub(crate) layers: Vec<PackedLayer<E>>,
    pub(crate) norm: PackedNorm<E>,
    pub(crate) head: Option<Packed>,
    format: WeightFormat,
    bytes: usize,
    product_bytes: usize,
}

pub(crate) struct PackedLayer<E: Element> {
    pub(crate) before_attention: Option<PackedNorm<E>>,
    pub(crate) after_attention: Option<PackedNorm<E>>,
    /// Queries, keys and values; where queries and keys go through norms, the values have a product of their own.
    pub(crate) qkv: PackedLinear<E>,
    pub(crate) values: Option<PackedLinear<E>>,
    pub(crate) head_norms: Option<[Buffer<E>; 2]>,
    pub(crate) sinks: Option<Buffer<E>>,
    pub(crate) latent: Option<PackedLatent<E>>,
    pub(crate) output: PackedLinear<E>,
    pub(crate) before_mlp: Option<PackedNorm<E>>,
    pub(crate) after_mlp: Option<PackedNorm<E>>,
    pub(crate) mlp: PackedMlp<E>,
}

/// The matrices of latent attention behind what is projected down.
pub(crate) struct PackedLatent<E: Element> {
    /// The norm and the product of queries, where they are projected down.
    pub(crate) queries: Option<(Buffer<E>, PackedLinear<E>)>,
    pub(crate) norm: Buffer<E>,
    /// Of each head: from a query to where the latents are, and from latents to its values.
    pub(crate) keys: Vec<Packed>,
    pub(crate) values: Vec<Packed>,
}

pub(crate) struct PackedNorm<E: Element> {
    pub(crate) weight: Buffer<E>,
    pub(crate) bias: Option<Buffer<E>>,
}

pub(crate) struct PackedLinear<E: Element> {
    pub(crate) weight: Packed,
    pub(crate) bias: Option<Buffer<E>>,
}

pub(crate) enum PackedMlp<E: Element> {
    Dense(Box<PackedDense<E>>),
    Mixture(Box<PackedMixture<E>>),
}

pub(crate) struct PackedDense<E: Element> {
    pub(crate) gate_up: PackedLinear<E>,
    pub(crate) down: PackedLinear<E>,
}

pub(crate) struct PackedMixture<E: Element> {
    pub(crate) router: PackedLinear<E>,
    pub(crate) gate_up: PackedExperts,
    pub(crate) gate_up_bias: Option<Buffer<E>>,
    pub(crate) down: PackedExperts,
    pub(crate) down_bias: Option<Buffer<E>>,
    pub(crate) correction: Option<Buffer<f32>>,
    pub(crate) shared: Option<PackedDense<E>>,
    pub(crate) shared_gate: Option<Packed>,
}

impl<E: Element> PackedWeights<E> {
    /// Reads the weights of a folder, a block at a time, and packs each before the next is read.
    pub fn load(
        network: &Network,
        device: &Device,
        path: &Path,
        format: WeightFormat,
    ) -> Result<Self, NetworkError> {
        let loader = Loader::open(network, path)?;
        loader.unused(network)?;
        let mut flat = Weights::<f32>::absent(network);
        Self::pack(network, device, format, |packer, index| {
            flat.put(index, Box::new(device.zeros(network.blocks()[index].len)));
            loader.read_block(network, device, index, flat.block_mut(index))?;
            packer.block(&network.blocks()[index], flat.block(index));
            drop(flat.take(index));
            Ok(())
        })
    }

    /// Packs a copy of weights that are in memory.
    pub fn of<F: Element>(
        network: &Network,
        device: &Device,
        weights: &Weights<F>,
        format: WeightFormat,
    ) -> Self {
        let packed = Self::pack(network, device, format, |packer, index| {
            packer.block(&network.blocks()[index], weights.block(index));
            Ok(())
        });
        packed.expect("nothing is read")
    }

    /// Fresh weights from a seed, made on the device.
    pub fn random(network: &Network, device: &Device, seed: u64, format: WeightFormat) -> Self {
        let mut weights = Weights::<E>::zeros(device, network);
        network.initialise(device, seed, &mut weights);
        Self::of(network, device, &weights, format)
    }

    fn pack(
        network: &Network,
        device: &Device,
        format: WeightFormat,
        mut each: impl FnMut(&mut Packer<'_, E>, usize) -> Result<(), NetworkError>,
    ) -> Result<Self, NetworkError> {
        let mut packer = Packer::new(network, device, format);
        for index in 0..network.blocks().len() {
            each(&mut packer, index)?;
        }
        Ok(packer.finish())
    }

    /// The format of most matrices.
    pub fn format(&self) -> WeightFormat {
        self.format
    }

    /// Bytes of memory that they take.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes that a step reads which computes one row, all experts counted: the least that decoding a token reads.
    pub fn product_bytes(&self) -> usize {
        self.product_bytes
    }
}

/// Packs blocks one after the other.
struct Packer<'a, E: Element> {
    network: &'a Network,
    device: &'a Device,
    format: WeightFormat,
    table: Option<Packed>,
    positions: Option<Packed>,
    layers: Vec<PackedLayer<E>>,
    end: Option<(PackedNorm<E>, Option<Packed>)>,
    bytes: usize,
}

impl<'a, E: Element> Packer<'a, E> {
    fn new(network: &'a Network, device: &'a Device, format: WeightFormat) -> Self {
        let (table, positions, layers, end) = (None, None, Vec::new(), None);
        Self { network, device, format, table, positions, layers, end, bytes: 0 }
    }

    fn finish(self) -> PackedWeights<E> {
        const ALL: &str = "all blocks were packed";
        let (norm, head) = self.end.expect(ALL);
        let table = self.table.expect(ALL);
        let looked_up = self.positions.as_ref().map_or(0, Packed::bytes);
        let looked_up = looked_up + if head.is_some() { table.bytes() } else { 0 };
        let product_bytes = self.bytes - looked_up;
        let Self { positions, layers, bytes, format, .. } = self;
        PackedWeights { table, positions, layers, norm, head, format, bytes, product_bytes }
    }

    fn block<F: Element>(&mut self, block: &Block, flat: View<'_, F>) {
        let hidden = self.network.architecture().transformer.hidden as usize;
        match &block.parts {
            BlockParts::Embedding(parts) => {
                let rows = parts.table.len() / hidden;
                self.table = Some(self.matrix(flat, &parts.table, rows, self.table_format()));
                let positions = parts.positions.as_ref();
                self.positions = positions
                    .map(|range| self.matrix(flat, range, range.len() / hidden, self.plain_format()));
            }
            BlockParts::Layer(parts) => {
                let layer = self.layer(parts, flat, hidden);
                self.layers.push(layer);
            }
            BlockParts::Head(parts) => {
                let norm = self.norm(&parts.norm, flat);
                let range = parts.weight.as_ref();
                let head =
                    range.map(|range| self.matrix(flat, range, range.len() / hidden, self.table_format()));
                self.end = Some((norm, head));
            }
        }
    }

    fn layer<F: Element>(&mut self, parts: &LayerParts, flat: View<'_, F>, hidden: usize) -> PackedLayer<E> {
        let mut norm = |norm: &Option<NormParts>| norm.as_ref().map(|norm| self.norm(norm, flat));
        let (before_attention, after_attention) =
            (norm(&parts.before_attention), norm(&parts.after_attention));
        let (before_mlp, after_mlp) = (norm(&parts.before_mlp), norm(&parts.after_mlp));
        let (qkv, values) = match &parts.head_norms {
            None if parts.latent.is_some() => (self.linear(&parts.qkv, flat, parts.widths.unnormed), None),
            None => (self.linear(&parts.qkv, flat, parts.widths.qkv), None),
            Some(_) => {
                let unnormed = parts.widths.unnormed;
                let [first, second] = parts.qkv.split(unnormed, hidden);
                let values = self.linear(&second, flat, parts.widths.qkv - unnormed);
                (self.linear(&first, flat, unnormed), Some(values))
            }
        };
        let head_norms = parts.head_norms.as_ref();
        let head_norms =
            head_norms.map(|norms| [&norms.queries, &norms.keys].map(|range| self.vector(flat, range)));
        let sinks = parts.sinks.as_ref().map(|sinks| self.vector(flat, sinks));
        let latent = parts.latent.as_ref().map(|parts| self.latent(parts, flat));
        let output = self.linear(&parts.output, flat, hidden);
        let mlp = match &parts.mlp {
            MlpParts::Dense(dense) => PackedMlp::Dense(Box::new(self.dense(dense, flat, hidden))),
            MlpParts::Mixture(mixture) => PackedMlp::Mixture(Box::new(self.mixture(mixture, flat, hidden))),
        };
        PackedLayer {
            before_attention,
            qkv,
            values,
            head_norms,
            sinks,
            latent,
            output,
            after_attention,
            before_mlp,
            mlp,
            after_mlp,
        }
    }

    /// The matrix of keys and values is taken apart by heads, and that of each head's keys is turned around.
    fn latent<F: Element>(&mut self, parts: &LatentParts, flat: View<'_, F>) -> PackedLatent<E> {
        let LatentShape { heads, nope, value, kv_rank, .. } = parts.shape;
        let start = parts.kv_up.weight.start;
        let rows = |first: usize, count: usize| start + first * kv_rank..start + (first + count) * kv_rank;
        let (mut keys, mut values) = (Vec::with_capacity(heads), Vec::with_capacity(heads));
        let (mut up, mut turned) =
            (vec![F::default(); nope * kv_rank], self.device.zeros::<F>(nope * kv_rank));
        for first in (0..heads).map(|head| head * (nope + value)) {
            self.device.read(flat.range(rows(first, nope)), &mut up);
            let of_latent = |at: usize| up[at % nope * kv_rank + at / nope];
            self.device.write(turned.view_mut(), &(0..up.len()).map(of_latent).collect::<Vec<F>>());
            keys.push(self.matrix(turned.view(), &(0..up.len()), kv_rank, self.format));
            values.push(self.matrix(flat, &rows(first + nope, value), value, self.format));
        }
        let queries = parts.query_norm.as_ref().zip(parts.query_up.as_ref());
        let queries =
            queries.map(|(norm, up)| (self.vector(flat, norm), self.linear(up, flat, parts.shape.queries())));
        PackedLatent { queries, norm: self.vector(flat, &parts.kv_norm), keys, values }
    }

    fn dense<F: Element>(&mut self, dense: &DenseParts, flat: View<'_, F>, hidden: usize) -> PackedDense<E> {
        let gate_up = self.linear(&dense.gate_up, flat, dense.outputs());
        PackedDense { gate_up, down: self.linear(&dense.down, flat, hidden) }
    }

    fn mixture<F: Element>(
        &mut self,
        parts: &MixtureParts,
        flat: View<'_, F>,
        hidden: usize,
    ) -> PackedMixture<E> {
        let plain = self.plain_format();
        let mut experts = |linear: &LinearParts, outputs: usize| {
            let all = &linear.weight;
            let each = all.len() / parts.here.max(1);
            let range = |expert| all.start + expert * each..all.start + (expert + 1) * each;
            let each = (0..parts.here).map(|expert| self.matrix(flat, &range(expert), outputs, self.format));
            let each = each.collect();
            self.device.pack_experts(each)
        };
        let (gate_up, down) = (experts(&parts.gate_up, 2 * parts.width), experts(&parts.down, hidden));
        let mut bias = |linear: &LinearParts| linear.bias.as_ref().map(|bias| self.vector(flat, bias));
        let [gate_up_bias, down_bias, router_bias] =
            [&parts.gate_up, &parts.down, &parts.router].map(&mut bias);
        // Which experts a token visits is decided by small differences.
        let router = self.matrix(flat, &parts.router.weight, parts.experts, plain);
        PackedMixture {
            router: PackedLinear { weight: router, bias: router_bias },
            gate_up,
            gate_up_bias,
            down,
            down_bias,
            correction: parts.correction.as_ref().map(|correction| self.numbers(flat, correction)),
            shared: parts.shared.as_ref().map(|shared| self.dense(shared, flat, hidden)),
            shared_gate: parts.shared_gate.as_ref().map(|gate| self.matrix(flat, gate, 1, plain)),
        }
    }

    fn linear<F: Element>(
        &mut self,
        parts: &LinearParts,
        flat: View<'_, F>,
        outputs: usize,
    ) -> PackedLinear<E> {
        let weight = self.matrix(flat, &parts.weight, outputs, self.format);
        PackedLinear { weight, bias: parts.bias.as_ref().map(|bias| self.vector(flat, bias)) }
    }

    fn norm<F: Element>(&mut self, parts: &NormParts, flat: View<'_, F>) -> PackedNorm<E> {
        let weight = self.vector(flat, &parts.weight);
        PackedNorm { weight, bias: parts.bias.as_ref().map(|bias| self.vector(flat, bias)) }
    }

    fn matrix<F: Element>(
        &mut self,
        flat: View<'_, F>,
        range: &Range<usize>,
        outputs: usize,
        format: WeightFormat,
    ) -> Packed {
        let packed = self.device.pack(flat.range(range.clone()), outputs, format);
        self.bytes += packed.bytes();
        packed
    }

    fn vector<F: Element>(&mut self, flat: View<'_, F>, range: &Range<usize>) -> Buffer<E> {
        self.numbers(flat, range)
    }

    fn numbers<F: Element, O: Element>(&mut self, flat: View<'_, F>, range: &Range<usize>) -> Buffer<O> {
        let mut vector = self.device.zeros(range.len());
        self.device.convert(flat.range(range.clone()), vector.view_mut());
        self.bytes += vector.bytes();
        vector
    }

    /// The format of what is too delicate for few bits.
    fn plain_format(&self) -> WeightFormat {
        match self.format {
            WeightFormat::Fp8 | WeightFormat::Int8 | WeightFormat::Int4 => WeightFormat::Bf16,
            plain => plain,
        }
    }

    /// The table and the head decide between tokens: they keep at least 8 bits of each number.
    fn table_format(&self) -> WeightFormat {
        match self.format {
            WeightFormat::Fp8 => WeightFormat::Bf16,
            WeightFormat::Int4 => WeightFormat::Int8,
            format => format,
        }
    }
}
