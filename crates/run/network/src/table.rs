//! The parameters of a network: blocks, each one flat buffer, with a table of the tensors in it.
//!
//! A block (the embedding, a layer, the head) is what is gathered, computed, recomputed and freed at once. Matrices
//! that read the same input lie side by side, so that one product computes queries, keys and values, or gate and up.

use std::ops::Range;

use bedplate_transformer::{
    Attention, Dense, GroupedQuery, Layer, Mixture, Mlp, Norm, Positions, Transformer,
};

use crate::names::Names;

/// A tensor of a block, under the name it has in Hugging Face's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    pub name: String,
    /// As stored in files.
    pub shape: Vec<usize>,
    pub kind: Kind,
    /// Files hold the transposed matrix (GPT-2).
    pub is_transposed: bool,
    /// Where it lies in the block's buffer.
    pub range: Range<usize>,
}

/// What a tensor is, by which it is initialised and decayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Embedding,
    Matrix,
    /// A matrix whose output is added to the residual stream.
    Residual,
    Norm,
    Bias,
}

impl Kind {
    /// Matrices are pulled towards zero by weight decay, vectors are not.
    pub fn is_matrix(self) -> bool {
        matches!(self, Kind::Embedding | Kind::Matrix | Kind::Residual)
    }
}

/// A block's table: its name, its tensors and where its parts lie.
#[derive(Debug, Clone)]
pub struct Block {
    pub name: String,
    pub tensors: Vec<Tensor>,
    pub len: usize,
    pub(crate) parts: Parts,
}

#[derive(Debug, Clone)]
pub(crate) enum Parts {
    Embedding(EmbeddingParts),
    Layer(Box<LayerParts>),
    Head(HeadParts),
}

#[derive(Debug, Clone)]
pub(crate) struct EmbeddingParts {
    pub(crate) table: Range<usize>,
    pub(crate) positions: Option<Range<usize>>,
}

#[derive(Debug, Clone)]
pub(crate) struct HeadParts {
    pub(crate) norm: NormParts,
    /// Absent when the embedding's table serves.
    pub(crate) weight: Option<Range<usize>>,
}

#[derive(Debug, Clone)]
pub(crate) struct NormParts {
    pub(crate) weight: Range<usize>,
    pub(crate) bias: Option<Range<usize>>,
}

#[derive(Debug, Clone)]
pub(crate) struct LinearParts {
    pub(crate) weight: Range<usize>,
    pub(crate) bias: Option<Range<usize>>,
}

#[derive(Debug, Clone)]
pub(crate) struct LayerParts {
    pub(crate) attention: GroupedQuery,
    pub(crate) before_attention: NormParts,
    pub(crate) qkv: LinearParts,
    pub(crate) head_norms: Option<HeadNorms>,
    pub(crate) output: LinearParts,
    pub(crate) before_mlp: NormParts,
    pub(crate) mlp: MlpParts,
}

#[derive(Debug, Clone)]
pub(crate) struct HeadNorms {
    pub(crate) queries: Range<usize>,
    pub(crate) keys: Range<usize>,
}

#[derive(Debug, Clone)]
pub(crate) enum MlpParts {
    Dense(DenseParts),
    Mixture(MixtureParts),
}

#[derive(Debug, Clone)]
pub(crate) struct DenseParts {
    pub(crate) width: usize,
    pub(crate) is_gated: bool,
    /// Gate over up, or up alone.
    pub(crate) gate_up: LinearParts,
    pub(crate) down: LinearParts,
}

#[derive(Debug, Clone)]
pub(crate) struct MixtureParts {
    pub(crate) experts: usize,
    pub(crate) per_token: usize,
    pub(crate) width: usize,
    pub(crate) router: Range<usize>,
    /// Of all experts, one after the other.
    pub(crate) gate_up: Range<usize>,
    pub(crate) down: Range<usize>,
    pub(crate) shared: Option<DenseParts>,
    pub(crate) shared_gate: Option<Range<usize>>,
}

impl DenseParts {
    /// Columns of the first product: gate and up, or up alone.
    pub(crate) fn outputs(&self) -> usize {
        if self.is_gated { 2 * self.width } else { self.width }
    }
}

/// Parts begin at multiples of a cache line.
const ALIGNMENT: usize = 32;

/// The blocks of a model, from the embedding to the head.
pub(crate) fn blocks(model: &Transformer) -> Vec<Block> {
    let names = Names::of(model.family);
    let mut blocks = vec![embedding(model, &names)];
    blocks.extend(model.layers().enumerate().map(|(index, layer)| self::layer(model, layer, index, &names)));
    blocks.push(head(model, &names));
    blocks
}

fn embedding(model: &Transformer, names: &Names) -> Block {
    let hidden = model.hidden as usize;
    let mut plan = Plan::default();
    let table = plan.tensor(names.embedding(), &[model.vocab as usize, hidden], Kind::Embedding);
    let positions = match model.positions {
        Positions::Learned { count } => {
            plan.align();
            Some(plan.tensor(names.positions(), &[count as usize, hidden], Kind::Embedding))
        }
        _ => None,
    };
    plan.into_block("embedding".into(), Parts::Embedding(EmbeddingParts { table, positions }))
}

fn head(model: &Transformer, names: &Names) -> Block {
    let hidden = model.hidden as usize;
    let mut plan = Plan::default();
    let norm = plan.norm(model.norm, names.final_norm(), hidden);
    plan.align();
    let weight = (!model.has_tied_embeddings)
        .then(|| plan.tensor(names.head(), &[model.vocab as usize, hidden], Kind::Matrix));
    plan.into_block("head".into(), Parts::Head(HeadParts { norm, weight }))
}

fn layer(model: &Transformer, layer: &Layer, index: usize, names: &Names) -> Block {
    let Attention::GroupedQuery(attention) = layer.attention else {
        unreachable!("latent attention was refused with the architecture")
    };
    let hidden = model.hidden as usize;
    let mut plan = Plan::default();
    let before_attention = plan.norm(model.norm, names.before_attention(index), hidden);
    let qkv = plan.qkv(&attention, hidden, index, names);
    let head_norms = attention.has_qk_norm.then(|| plan.head_norms(&attention, index, names));
    let inner = (attention.heads * attention.head_dim) as usize;
    let output = plan.linears(
        &[names.output(index)],
        &[hidden],
        inner,
        attention.has_output_bias,
        Kind::Residual,
        names,
    );
    let before_mlp = plan.norm(model.norm, names.before_mlp(index), hidden);
    let mlp = match &layer.mlp {
        Mlp::Dense(dense) => MlpParts::Dense(plan.dense(dense, hidden, &names.dense(index), names)),
        Mlp::Mixture(mixture) => MlpParts::Mixture(plan.mixture(mixture, hidden, index, names)),
    };
    let parts = LayerParts { attention, before_attention, qkv, head_norms, output, before_mlp, mlp };
    plan.into_block(format!("layer {index}"), Parts::Layer(Box::new(parts)))
}

/// A block under construction.
#[derive(Default)]
struct Plan {
    tensors: Vec<Tensor>,
    len: usize,
}

impl Plan {
    fn align(&mut self) {
        self.len = self.len.next_multiple_of(ALIGNMENT);
    }

    fn into_block(mut self, name: String, parts: Parts) -> Block {
        self.align();
        Block { name, tensors: self.tensors, len: self.len, parts }
    }

    fn tensor(&mut self, name: String, shape: &[usize], kind: Kind) -> Range<usize> {
        let range = self.len..self.len + shape.iter().product::<usize>();
        self.len = range.end;
        let shape = shape.to_vec();
        self.tensors.push(Tensor { name, shape, kind, is_transposed: false, range: range.clone() });
        range
    }

    fn norm(&mut self, norm: Norm, name: String, width: usize) -> NormParts {
        self.align();
        let weight = self.tensor(format!("{name}.weight"), &[width], Kind::Norm);
        self.align();
        let bias =
            (norm == Norm::LayerNorm).then(|| self.tensor(format!("{name}.bias"), &[width], Kind::Bias));
        NormParts { weight, bias }
    }

    /// Linear layers with one input, side by side: all weights, then all biases.
    fn linears(
        &mut self,
        stems: &[String],
        outputs: &[usize],
        inputs: usize,
        has_bias: bool,
        kind: Kind,
        names: &Names,
    ) -> LinearParts {
        self.align();
        let start = self.len;
        for (stem, outputs) in stems.iter().zip(outputs) {
            let shape = if names.are_transposed() { [inputs, *outputs] } else { [*outputs, inputs] };
            self.tensor(format!("{stem}.weight"), &shape, kind);
            self.tensors.last_mut().expect("just pushed").is_transposed = names.are_transposed();
        }
        let weight = start..self.len;
        self.align();
        let bias = has_bias.then(|| {
            let start = self.len;
            for (stem, outputs) in stems.iter().zip(outputs) {
                self.tensor(format!("{stem}.bias"), &[*outputs], Kind::Bias);
            }
            start..self.len
        });
        LinearParts { weight, bias }
    }

    fn qkv(&mut self, attention: &GroupedQuery, hidden: usize, index: usize, names: &Names) -> LinearParts {
        let (heads, kv_heads, dim) =
            (attention.heads as usize, attention.kv_heads as usize, attention.head_dim as usize);
        let stems = names.qkv(index);
        let widths = [heads * dim, kv_heads * dim, kv_heads * dim];
        // GPT-2 has one matrix for all three.
        let joint = [widths.iter().sum()];
        let widths: &[usize] = if stems.len() == 1 { &joint } else { &widths };
        self.linears(&stems, widths, hidden, attention.has_qkv_bias, Kind::Matrix, names)
    }

    fn head_norms(&mut self, attention: &GroupedQuery, index: usize, names: &Names) -> HeadNorms {
        let dim = attention.head_dim as usize;
        let [queries, keys] = names.head_norms(index);
        self.align();
        let queries = self.tensor(queries, &[dim], Kind::Norm);
        self.align();
        HeadNorms { queries, keys: self.tensor(keys, &[dim], Kind::Norm) }
    }

    fn dense(&mut self, dense: &Dense, hidden: usize, stems: &MlpNames, names: &Names) -> DenseParts {
        let width = dense.width as usize;
        let (first, widths) = match &stems.gate {
            Some(gate) if dense.is_gated => (vec![gate.clone(), stems.up.clone()], vec![width, width]),
            _ => (vec![stems.up.clone()], vec![width]),
        };
        let gate_up = self.linears(&first, &widths, hidden, dense.has_bias, Kind::Matrix, names);
        let down = self.linears(
            std::slice::from_ref(&stems.down),
            &[hidden],
            width,
            dense.has_bias,
            Kind::Residual,
            names,
        );
        DenseParts { width, is_gated: dense.is_gated, gate_up, down }
    }

    fn mixture(&mut self, mixture: &Mixture, hidden: usize, index: usize, names: &Names) -> MixtureParts {
        let (experts, width) = (mixture.experts as usize, mixture.expert.width as usize);
        self.align();
        let router = self.tensor(names.router(index), &[experts, hidden], Kind::Matrix);
        self.align();
        let start = self.len;
        for expert in 0..experts {
            let stems = names.expert(index, expert);
            let gate = stems.gate.as_ref().expect("experts of known families are gated");
            self.tensor(format!("{gate}.weight"), &[width, hidden], Kind::Matrix);
            self.tensor(format!("{}.weight", stems.up), &[width, hidden], Kind::Matrix);
        }
        let gate_up = start..self.len;
        self.align();
        let start = self.len;
        for expert in 0..experts {
            let stem = names.expert(index, expert).down;
            self.tensor(format!("{stem}.weight"), &[hidden, width], Kind::Residual);
        }
        let down = start..self.len;
        let shared = mixture.shared.map(|shared| self.dense(&shared, hidden, &names.shared(index), names));
        self.align();
        let shared_gate = mixture
            .has_shared_gate
            .then(|| self.tensor(names.shared_gate(index), &[1, hidden], Kind::Matrix));
        let per_token = mixture.per_token as usize;
        MixtureParts { experts, per_token, width, router, gate_up, down, shared, shared_gate }
    }
}

/// Stems of the names of a dense MLP.
pub(crate) struct MlpNames {
    pub(crate) gate: Option<String>,
    pub(crate) up: String,
    pub(crate) down: String,
}
