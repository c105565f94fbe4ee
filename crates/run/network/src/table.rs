//! The parameters of a network: blocks, each one flat buffer, with a table of the tensors in it.
//!
//! A block (the embedding, a layer, the head) is what is gathered, computed, recomputed and freed at once. Matrices
//! that read the same input lie side by side, so that one product computes queries, keys and values, or gate and up.
//!
//! A network that is cut over ranks has tables of one rank's part: a tensor then knows which rows and columns of the whole it is.

use std::ops::Range;

use bedplate_kernels::Heads;
use bedplate_transformer::workspace::Widths;
use bedplate_transformer::{
    Attention, Dense, GroupedQuery, Latent, Layer, Mixture, Mlp, Norm, NormPlacement, Positions, QkNorm,
    Reach, Transformer,
};

use crate::names::{ExpertNames, TensorNames};
use crate::{Architecture, NetworkError, ShardSpec};

/// A tensor of a block, under the name it has in Hugging Face's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    pub name: String,
    /// Of the whole tensor, as stored in files.
    pub shape: Vec<usize>,
    pub kind: TensorKind,
    pub storage: Storage,
    /// Where it lies in the block's buffer.
    pub range: Range<usize>,
    /// Rows and columns of the whole, as a matrix of outputs by inputs, that are here; a vector has one column.
    rows: Vec<Range<usize>>,
    columns: Range<usize>,
    /// Whether each tensor rank has the gradient of its own rows of the micro-batch only, so that the ranks' are to be added up.
    pub is_partial: bool,
}

/// How files hold a matrix of outputs by inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Storage {
    AsIs,
    /// As inputs by outputs (GPT-2).
    Transposed,
    /// For each expert inputs by outputs (gpt-oss), the matrices of all below each other; a bias has one input.
    Experts {
        inputs: usize,
        outputs: usize,
        /// Files have an output of the gate and one of up by turns; here all of the gate's come first.
        takes_turns: bool,
    },
}

impl Tensor {
    /// Where the number at a place of the tensor in files lies in the matrix of outputs by inputs.
    pub fn place_in_matrix(&self, stored: usize) -> usize {
        match self.storage {
            Storage::AsIs => stored,
            Storage::Transposed => {
                let [inputs, outputs] = [self.shape[0], self.shape[1]];
                stored % outputs * inputs + stored / outputs
            }
            Storage::Experts { inputs, outputs, .. } => {
                let (row, output) = (stored / outputs, stored % outputs);
                (row / inputs * outputs + self.storage.row_of(output)) * inputs + row % inputs
            }
        }
    }

    /// The matrix of outputs by inputs, from the numbers in the order of files.
    pub fn matrix_of(&self, stored: Vec<f32>) -> Vec<f32> {
        if self.storage == Storage::AsIs {
            return stored;
        }
        let mut matrix = vec![0.0; stored.len()];
        stored.into_iter().enumerate().for_each(|(at, value)| matrix[self.place_in_matrix(at)] = value);
        matrix
    }

    /// Outputs and inputs that are here.
    pub fn size(&self) -> [usize; 2] {
        [self.rows.iter().map(Range::len).sum(), self.columns.len()]
    }

    /// Runs of rows of the whole that are here, one after the other.
    pub fn sections(&self) -> &[Range<usize>] {
        &self.rows
    }

    /// Columns of the whole that are here.
    pub fn columns(&self) -> &Range<usize> {
        &self.columns
    }

    /// Whether other tensor ranks have other parts of it.
    pub fn is_cut(&self) -> bool {
        let Storage::Experts { inputs, outputs, .. } = self.storage else {
            return self.size() != self.matrix_shape();
        };
        // Other experts may be on other ranks; those that are here are whole or not.
        let expert = |rows: &Range<usize>| rows.start / outputs;
        let Some(first) = self.rows.first().map(expert) else { return false };
        let rows: usize = self.rows.iter().filter(|rows| expert(rows) == first).map(Range::len).sum();
        rows < outputs || self.columns.len() < inputs
    }

    /// Where its numbers lie in the whole tensor, as a matrix of outputs by inputs: neighbours of the whole together, in the order
    /// in which they lie in the block's buffer.
    pub fn runs(&self) -> impl Iterator<Item = Range<usize>> {
        let [_, inputs] = self.matrix_shape();
        let has_all_columns = self.columns.len() == inputs;
        let columns = self.columns.clone();
        self.rows.iter().flat_map(move |rows| {
            let (pieces, rows_of_piece) = if has_all_columns { (1, rows.len()) } else { (rows.len(), 1) };
            let columns = columns.clone();
            (0..pieces).map(move |piece| {
                let first = rows.start + piece;
                first * inputs + columns.start..(first + rows_of_piece - 1) * inputs + columns.end
            })
        })
    }
}

impl Storage {
    /// The row of its expert's matrix that an output of files is.
    pub(crate) fn row_of(self, output: usize) -> usize {
        match self {
            Storage::Experts { outputs, takes_turns: true, .. } => output % 2 * (outputs / 2) + output / 2,
            _ => output,
        }
    }
}

/// What a tensor is, by which it is initialised and decayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TensorKind {
    Embedding,
    Matrix,
    /// A matrix whose output is added to the residual stream.
    Residual,
    Norm,
    Bias,
}

impl TensorKind {
    /// Matrices are pulled towards zero by weight decay, vectors are not.
    pub fn is_matrix(self) -> bool {
        matches!(self, TensorKind::Embedding | TensorKind::Matrix | TensorKind::Residual)
    }
}

/// A block's table: its name, its tensors and where its parts lie.
#[derive(Debug, Clone)]
pub struct Block {
    pub name: String,
    pub tensors: Vec<Tensor>,
    pub len: usize,
    /// Its buffer from beginning to end, by the ranks that have copies of the numbers.
    pub sections: Vec<Section>,
    /// Names of tensors that only other ranks have.
    pub(crate) elsewhere: Vec<String>,
    pub(crate) parts: BlockParts,
}

/// Neighbouring numbers of a block of which the same ranks have copies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    pub range: Range<usize>,
    /// Whether these are the routed experts of a layer whose experts are cut over ranks.
    pub is_expert: bool,
}

#[derive(Debug, Clone)]
pub(crate) enum BlockParts {
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
    pub(crate) widths: Widths,
    pub(crate) reach: Reach,
    /// Norms before and behind the two halves, where there are any.
    pub(crate) before_attention: Option<NormParts>,
    pub(crate) after_attention: Option<NormParts>,
    /// Of latent attention, what is projected down.
    pub(crate) qkv: LinearParts,
    pub(crate) head_norms: Option<HeadNorms>,
    /// A score of each head that takes its share of the weights.
    pub(crate) sinks: Option<Range<usize>>,
    pub(crate) latent: Option<LatentParts>,
    pub(crate) output: LinearParts,
    pub(crate) before_mlp: Option<NormParts>,
    pub(crate) after_mlp: Option<NormParts>,
    pub(crate) mlp: MlpParts,
}

/// The parts of latent attention behind what is projected down.
#[derive(Debug, Clone)]
pub(crate) struct LatentParts {
    pub(crate) shape: LatentShape,
    pub(crate) query_norm: Option<Range<usize>>,
    pub(crate) kv_norm: Range<usize>,
    /// Absent where queries are not projected down.
    pub(crate) query_up: Option<LinearParts>,
    pub(crate) kv_up: LinearParts,
}

/// Sizes of latent attention.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LatentShape {
    pub(crate) heads: usize,
    /// Of a query or a key: what does not turn, and what turns behind it.
    pub(crate) nope: usize,
    pub(crate) rope: usize,
    pub(crate) value: usize,
    pub(crate) query_rank: Option<usize>,
    pub(crate) kv_rank: usize,
}

impl LatentShape {
    fn of(latent: &Latent) -> Self {
        Self {
            heads: latent.heads as usize,
            nope: latent.nope_dim as usize,
            rope: latent.rope_dim as usize,
            value: latent.value_dim as usize,
            query_rank: latent.query_rank.map(|rank| rank as usize),
            kv_rank: latent.kv_rank as usize,
        }
    }

    /// Numbers of a query or key of a head.
    pub(crate) fn key(&self) -> usize {
        self.nope + self.rope
    }

    /// Columns of all queries.
    pub(crate) fn queries(&self) -> usize {
        self.heads * self.key()
    }

    /// Numbers that are kept of a token.
    pub(crate) fn kept(&self) -> usize {
        self.kv_rank + self.rope
    }

    /// Columns of what is projected down: for queries, for keys and values, and for the part of keys that heads share.
    pub(crate) fn down(&self) -> [Range<usize>; 3] {
        let first = self.query_rank.unwrap_or(self.queries());
        let second = first + self.kv_rank;
        [0..first, first..second, second..second + self.rope]
    }
}

#[derive(Debug, Clone)]
pub(crate) struct HeadNorms {
    pub(crate) queries: Range<usize>,
    pub(crate) keys: Range<usize>,
    /// What has the norm of queries, and that of keys: each head, or all together.
    pub(crate) heads: [Heads; 2],
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
    /// Experts that this rank has.
    pub(crate) here: usize,
    pub(crate) per_token: usize,
    pub(crate) width: usize,
    pub(crate) router: LinearParts,
    /// What is added to the scores by which experts are chosen.
    pub(crate) correction: Option<Range<usize>>,
    /// Of all experts that are here, one after the other.
    pub(crate) gate_up: LinearParts,
    pub(crate) down: LinearParts,
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

/// The least number that the alignment and `unit` divide.
fn common_multiple(unit: usize) -> usize {
    (unit * ALIGNMENT) >> unit.trailing_zeros().min(ALIGNMENT.trailing_zeros())
}

/// The tables of a whole model, without anything to compute it.
pub fn tables(architecture: &Architecture) -> Result<Vec<Block>, NetworkError> {
    blocks(&architecture.transformer, &ShardSpec::WHOLE)
}

/// The blocks of one rank's part of a model, from the embedding to the head.
pub(crate) fn blocks(model: &Transformer, spec: &ShardSpec) -> Result<Vec<Block>, NetworkError> {
    let names = TensorNames::of(model.family);
    let mut blocks = vec![embedding(model, Plan::new(&names, spec))];
    for (index, layer) in model.layers().enumerate() {
        let widths = Widths::of(model, &spec.layer(layer)?);
        blocks.push(self::layer(model, layer, widths, index, Plan::new(&names, spec)));
    }
    blocks.push(head(model, Plan::new(&names, spec)));
    Ok(blocks)
}

fn embedding(model: &Transformer, mut plan: Plan<'_>) -> Block {
    let (hidden, names) = (model.hidden as usize, plan.names);
    let table = plan.of_stream(names.embedding(), &[model.vocab as usize, hidden], TensorKind::Embedding);
    let positions = match model.positions {
        Positions::Learned { count } => {
            plan.align();
            Some(plan.of_stream(names.positions(), &[count as usize, hidden], TensorKind::Embedding))
        }
        _ => None,
    };
    plan.into_block("embedding".into(), BlockParts::Embedding(EmbeddingParts { table, positions }))
}

fn head(model: &Transformer, mut plan: Plan<'_>) -> Block {
    let (hidden, names) = (model.hidden as usize, plan.names);
    let norm = plan.norm(model.norm, names.final_norm(), hidden);
    plan.align();
    let weight = (!model.has_tied_embeddings)
        .then(|| plan.of_stream(names.head(), &[model.vocab as usize, hidden], TensorKind::Matrix));
    plan.into_block("head".into(), BlockParts::Head(HeadParts { norm, weight }))
}

fn layer(model: &Transformer, layer: &Layer, widths: Widths, index: usize, mut plan: Plan<'_>) -> Block {
    let (hidden, names) = (model.hidden as usize, plan.names);
    let has_before = model.norm_placement != NormPlacement::After;
    let has_after = model.norm_placement != NormPlacement::Before;
    let before_attention = has_before.then(|| plan.norm(model.norm, names.before_attention(index), hidden));
    let AttentionParts { qkv, head_norms, sinks, latent, output } = match &layer.attention {
        Attention::GroupedQuery(attention) => plan.grouped(attention, &widths, hidden, index),
        Attention::Latent(latent) => plan.latent(latent, hidden, index),
        Attention::Recurrent(_) | Attention::Absent => {
            unreachable!("layers without attention were refused with the architecture")
        }
    };
    let after_attention = has_after.then(|| plan.norm(model.norm, names.after_attention(index), hidden));
    let before_mlp = has_before.then(|| plan.norm(model.norm, names.before_mlp(index), hidden));
    let mlp = match &layer.mlp {
        Mlp::Dense(dense) => MlpParts::Dense(plan.dense(dense, hidden, names.dense(index))),
        Mlp::Mixture(mixture) => MlpParts::Mixture(plan.mixture(mixture, hidden, index)),
        Mlp::Absent => unreachable!("layers without an MLP were refused with the architecture"),
    };
    let after_mlp = has_after.then(|| plan.norm(model.norm, names.after_mlp(index), hidden));
    let parts = LayerParts {
        widths,
        reach: layer.reach,
        before_attention,
        qkv,
        head_norms,
        sinks,
        latent,
        output,
        after_attention,
        before_mlp,
        mlp,
        after_mlp,
    };
    plan.into_block(format!("layer {index}"), BlockParts::Layer(Box::new(parts)))
}

/// What the attention of a layer has.
struct AttentionParts {
    qkv: LinearParts,
    head_norms: Option<HeadNorms>,
    sinks: Option<Range<usize>>,
    latent: Option<LatentParts>,
    output: LinearParts,
}

/// A block under construction. Sizes that its functions take are those of the whole.
struct Plan<'a> {
    names: &'a TensorNames,
    spec: &'a ShardSpec,
    tensors: Vec<Tensor>,
    len: usize,
    sections: Vec<Section>,
    elsewhere: Vec<String>,
}

impl<'a> Plan<'a> {
    fn new(names: &'a TensorNames, spec: &'a ShardSpec) -> Self {
        let (tensors, sections, elsewhere) = (Vec::new(), Vec::new(), Vec::new());
        Self { names, spec, tensors, len: 0, sections, elsewhere }
    }

    fn align(&mut self) {
        self.len = self.len.next_multiple_of(ALIGNMENT);
    }

    /// Ends a section after what was planned so far.
    fn end_section(&mut self, is_expert: bool) {
        let start = self.sections.last().map_or(0, |section| section.range.end);
        self.len = self.len.next_multiple_of(common_multiple(self.spec.unit));
        if self.len > start {
            self.sections.push(Section { range: start..self.len, is_expert });
        }
    }

    fn into_block(mut self, name: String, parts: BlockParts) -> Block {
        self.end_section(false);
        let Self { tensors, len, sections, elsewhere, .. } = self;
        Block { name, tensors, len, sections, elsewhere, parts }
    }

    /// A tensor that is whole on every rank and works on rows of the residual stream.
    fn of_stream(&mut self, name: String, shape: &[usize], kind: TensorKind) -> Range<usize> {
        let range = self.whole(name, shape, kind);
        self.tensors.last_mut().expect("just pushed").is_partial = self.spec.has_cut_rows;
        range
    }

    /// A tensor that every rank has as a whole.
    fn whole(&mut self, name: String, shape: &[usize], kind: TensorKind) -> Range<usize> {
        let columns = 0..shape.get(1).map_or(1, |columns| *columns);
        let all = 0..shape[0];
        self.tensor(name, shape.to_vec(), kind, Vec::from([all]), columns)
    }

    fn tensor(
        &mut self,
        name: String,
        shape: Vec<usize>,
        kind: TensorKind,
        rows: Vec<Range<usize>>,
        columns: Range<usize>,
    ) -> Range<usize> {
        let len = rows.iter().map(Range::len).sum::<usize>() * columns.len();
        let range = self.len..self.len + len;
        self.len = range.end;
        let (storage, is_partial) = (Storage::AsIs, false);
        let at = range.clone();
        self.tensors.push(Tensor { name, shape, kind, storage, range: at, rows, columns, is_partial });
        range
    }

    fn norm(&mut self, norm: Norm, name: String, width: usize) -> NormParts {
        self.align();
        let weight = self.of_stream(format!("{name}.weight"), &[width], TensorKind::Norm);
        self.align();
        let bias = (norm == Norm::LayerNorm)
            .then(|| self.of_stream(format!("{name}.bias"), &[width], TensorKind::Bias));
        NormParts { weight, bias }
    }

    /// This rank's rows of a matrix: a share of each of its sections, or all where its inputs are cut.
    fn rows(&self, sections: &[usize], kind: TensorKind) -> Vec<Range<usize>> {
        let mut start = 0;
        let mut section = |len: &usize| {
            let share = if kind == TensorKind::Residual { 0..*len } else { self.spec.tensor.of(*len) };
            start += len;
            start - len + share.start..start - len + share.end
        };
        sections.iter().map(&mut section).collect()
    }

    fn matrix(&mut self, name: String, sections: &[usize], inputs: usize, kind: TensorKind) {
        let outputs = sections.iter().sum();
        let columns = if kind == TensorKind::Residual { self.spec.tensor.of(inputs) } else { 0..inputs };
        let rows = self.rows(sections, kind);
        self.tensor(name, vec![outputs, inputs], kind, rows, columns);
    }

    /// Linear layers with one input, side by side: all weights, then all biases. A matrix may consist of several sections.
    fn linears(
        &mut self,
        layers: &[(String, Vec<usize>)],
        inputs: usize,
        has_bias: bool,
        kind: TensorKind,
    ) -> LinearParts {
        self.align();
        let start = self.len;
        for (stem, sections) in layers {
            self.matrix(format!("{stem}.weight"), sections, inputs, kind);
            if self.names.are_transposed() {
                let tensor = self.tensors.last_mut().expect("just pushed");
                tensor.storage = Storage::Transposed;
                tensor.shape.reverse();
            }
        }
        let weight = start..self.len;
        self.align();
        let bias = has_bias.then(|| {
            let start = self.len;
            for (stem, sections) in layers {
                let rows = self.rows(sections, kind);
                self.tensor(
                    format!("{stem}.bias"),
                    vec![sections.iter().sum()],
                    TensorKind::Bias,
                    rows,
                    0..1,
                );
            }
            start..self.len
        });
        LinearParts { weight, bias }
    }

    fn grouped(
        &mut self,
        attention: &GroupedQuery,
        widths: &Widths,
        hidden: usize,
        index: usize,
    ) -> AttentionParts {
        let (names, heads) = (self.names, attention.heads as usize);
        let qkv = self.qkv(attention, hidden, index);
        let head_norms = self.head_norms(attention.qk_norm, widths, index);
        let sinks = attention.has_sinks.then(|| {
            self.align();
            let here = self.spec.tensor.of(heads);
            self.tensor(names.sinks(index), vec![heads], TensorKind::Bias, vec![here], 0..1)
        });
        let inner = heads * attention.head_dim as usize;
        let output = (names.output(index), vec![hidden]);
        let output = self.linears(&[output], inner, attention.has_output_bias, TensorKind::Residual);
        AttentionParts { qkv, head_norms, sinks, latent: None, output }
    }

    /// Queries may be projected down first, or not; keys and values are, together with the part of keys that all heads share.
    fn latent(&mut self, attention: &Latent, hidden: usize, index: usize) -> AttentionParts {
        let names = self.names;
        let shape = LatentShape::of(attention);
        let LatentShape { heads, nope, value, kv_rank, query_rank, .. } = shape;
        let down = match query_rank {
            Some(rank) => (names.latent(index, "q_a_proj"), vec![rank]),
            None => (names.latent(index, "q_proj"), vec![shape.queries()]),
        };
        let shared = (names.latent(index, "kv_a_proj_with_mqa"), vec![kv_rank + shape.rope]);
        let qkv = self.linears(&[down, shared], hidden, attention.has_bias, TensorKind::Matrix);
        let mut norm = |part: &str, width: usize| {
            self.align();
            self.whole(format!("{}.weight", names.latent(index, part)), &[width], TensorKind::Norm)
        };
        let query_norm = query_rank.map(|rank| norm("q_a_layernorm", rank));
        let kv_norm = norm("kv_a_layernorm", kv_rank);
        let mut up = |part: &str, outputs: usize, inputs: usize| {
            let stem = names.latent(index, part);
            self.linears(&[(stem, vec![outputs])], inputs, false, TensorKind::Matrix)
        };
        let query_up = query_rank.map(|rank| up("q_b_proj", shape.queries(), rank));
        let kv_up = up("kv_b_proj", heads * (nope + value), kv_rank);
        let output = (names.output(index), vec![hidden]);
        let output = self.linears(&[output], heads * value, attention.has_bias, TensorKind::Residual);
        let latent = Some(LatentParts { shape, query_norm, kv_norm, query_up, kv_up });
        AttentionParts { qkv, head_norms: None, sinks: None, latent, output }
    }

    fn qkv(&mut self, attention: &GroupedQuery, hidden: usize, index: usize) -> LinearParts {
        let (queries, keys) = (attention.heads * attention.head_dim, attention.kv_heads * attention.head_dim);
        let widths = [queries, keys, keys].map(|width| width as usize);
        let stems = self.names.qkv(index);
        let layers: Vec<(String, Vec<usize>)> = match <[String; 1]>::try_from(stems) {
            // GPT-2 has one matrix for all three.
            Ok([stem]) => vec![(stem, widths.to_vec())],
            Err(stems) => stems.into_iter().zip(widths.map(|width| vec![width])).collect(),
        };
        self.linears(&layers, hidden, attention.has_qkv_bias, TensorKind::Matrix)
    }

    /// Norms over all heads together are on ranks that have all heads.
    fn head_norms(&mut self, norm: QkNorm, widths: &Widths, index: usize) -> Option<HeadNorms> {
        let (count, of_keys, dim) = (widths.heads, widths.kv_heads, widths.head_dim);
        let heads = match norm {
            QkNorm::Absent => return None,
            QkNorm::Head => [Heads { first: 0, count, dim }, Heads { first: count, count: of_keys, dim }],
            QkNorm::AllHeads => [
                Heads { first: 0, count: 1, dim: count * dim },
                Heads { first: count / of_keys, count: 1, dim: of_keys * dim },
            ],
        };
        let [queries, keys] = self.names.head_norms(index);
        self.align();
        let queries = self.whole(queries, &[heads[0].dim], TensorKind::Norm);
        self.align();
        let keys = self.whole(keys, &[heads[1].dim], TensorKind::Norm);
        Some(HeadNorms { queries, keys, heads })
    }

    fn dense(&mut self, dense: &Dense, hidden: usize, stems: MlpNames) -> DenseParts {
        let width = dense.width as usize;
        let first: Vec<_> = match (stems.gate, dense.is_gated) {
            // One matrix for both.
            (None, true) => vec![(stems.up, vec![width; 2])],
            (gate, is_gated) => {
                let gate = gate.filter(|_| is_gated);
                gate.into_iter().chain([stems.up]).map(|stem| (stem, vec![width])).collect()
            }
        };
        let gate_up = self.linears(&first, hidden, dense.has_bias, TensorKind::Matrix);
        let down = self.linears(&[(stems.down, vec![hidden])], width, dense.has_bias, TensorKind::Residual);
        DenseParts { width: width / self.spec.tensor.degree, is_gated: dense.is_gated, gate_up, down }
    }

    /// The routed experts lie behind everything else.
    fn mixture(&mut self, mixture: &Mixture, hidden: usize, index: usize) -> MixtureParts {
        let (experts, width) = (mixture.experts as usize, mixture.expert.width as usize);
        self.align();
        let router = self.router(mixture, hidden, index);
        self.align();
        let correction = mixture
            .has_correction_bias
            .then(|| self.whole(self.names.correction(index), &[experts], TensorKind::Bias));
        let shared = mixture.shared.map(|shared| self.dense(&shared, hidden, self.names.shared(index)));
        self.align();
        let shared_gate = mixture
            .has_shared_gate
            .then(|| self.whole(self.names.shared_gate(index), &[1, hidden], TensorKind::Matrix));
        let (here, is_cut) = (self.spec.experts.of(experts), !self.spec.experts.is_whole());
        if is_cut {
            self.end_section(false);
        }
        let [gate_up, down] = match self.names.experts(index) {
            ExpertNames::Each { stem, page } => {
                let elsewhere = (0..experts).filter(|expert| !here.contains(expert));
                for MlpNames { gate, up, down } in
                    elsewhere.map(|expert| ExpertNames::of(&stem, page, expert))
                {
                    let stems = gate.into_iter().chain([up, down]);
                    self.elsewhere.extend(stems.map(|stem| format!("{stem}.weight")));
                }
                let of = |expert| ExpertNames::of(&stem, page, expert);
                self.experts(here.clone().map(of).collect(), width, hidden)
            }
            ExpertNames::Together { gate_up, down } => {
                let has_bias = mixture.expert.has_bias;
                let sizes = ExpertSizes { count: experts, here: here.clone(), has_bias };
                let gates = self.experts_together(gate_up, &sizes, [width, width], hidden);
                [gates, self.experts_together(down, &sizes, [hidden, 0], width)]
            }
        };
        if is_cut {
            self.end_section(true);
        }
        MixtureParts {
            experts,
            here: here.len(),
            per_token: mixture.per_token as usize,
            width: width / self.spec.tensor.degree,
            router,
            correction,
            gate_up,
            down,
            shared,
            shared_gate,
        }
    }

    /// A product that every rank has as a whole.
    fn router(&mut self, mixture: &Mixture, hidden: usize, index: usize) -> LinearParts {
        let (stem, experts) = (self.names.router(index), mixture.experts as usize);
        let weight = self.whole(format!("{stem}.weight"), &[experts, hidden], TensorKind::Matrix);
        self.align();
        let bias =
            mixture.has_router_bias.then(|| self.whole(format!("{stem}.bias"), &[experts], TensorKind::Bias));
        LinearParts { weight, bias }
    }

    /// The first and the second product of some routed experts, by the stems of each.
    fn experts(&mut self, stems: Vec<MlpNames>, width: usize, hidden: usize) -> [LinearParts; 2] {
        self.align();
        let start = self.len;
        for MlpNames { gate, up, .. } in &stems {
            let gate = gate.as_ref().expect("experts of known families are gated");
            self.matrix(format!("{gate}.weight"), &[width], hidden, TensorKind::Matrix);
            self.matrix(format!("{up}.weight"), &[width], hidden, TensorKind::Matrix);
        }
        let gate_up = LinearParts { weight: start..self.len, bias: None };
        self.align();
        let start = self.len;
        for MlpNames { down, .. } in &stems {
            self.matrix(format!("{down}.weight"), &[hidden], width, TensorKind::Residual);
        }
        [gate_up, LinearParts { weight: start..self.len, bias: None }]
    }

    /// One of the products of routed experts that files hold in one tensor. Its outputs are those of gate and up, of which ranks have a
    /// share each, or those of the residual stream, and then ranks have a share of the inputs.
    fn experts_together(
        &mut self,
        stem: String,
        sizes: &ExpertSizes,
        sections: [usize; 2],
        inputs: usize,
    ) -> LinearParts {
        let outputs: usize = sections.iter().sum();
        let takes_turns = sections[1] > 0;
        let kind = if takes_turns { TensorKind::Matrix } else { TensorKind::Residual };
        let shifted = |rows: &Range<usize>, by: usize| rows.start + by..rows.end + by;
        let of_one = self.rows(&sections[..1 + usize::from(takes_turns)], kind);
        let of_expert = |expert: usize| {
            let of_one = &of_one;
            of_one.iter().map(move |rows| shifted(rows, expert * outputs))
        };
        let rows: Vec<Range<usize>> = sizes.here.clone().flat_map(of_expert).collect();
        let columns = if takes_turns { 0..inputs } else { self.spec.tensor.of(inputs) };
        self.align();
        let shape = vec![sizes.count, inputs, outputs];
        let weight = self.tensor(stem.clone(), shape, kind, rows.clone(), columns);
        self.store_as(Storage::Experts { inputs, outputs, takes_turns });
        self.align();
        let bias = sizes.has_bias.then(|| {
            let shape = vec![sizes.count, outputs];
            self.tensor(format!("{stem}_bias"), shape, TensorKind::Bias, rows, 0..1)
        });
        if bias.is_some() {
            self.store_as(Storage::Experts { inputs: 1, outputs, takes_turns });
        }
        LinearParts { weight, bias }
    }

    /// Says how files hold the tensor that was planned last.
    fn store_as(&mut self, storage: Storage) {
        self.tensors.last_mut().expect("just pushed").storage = storage;
    }
}

/// How many routed experts there are, which of them are here, and what they have.
struct ExpertSizes {
    count: usize,
    here: Range<usize>,
    has_bias: bool,
}

/// Stems of the names of a dense MLP.
pub(crate) struct MlpNames {
    pub(crate) gate: Option<String>,
    pub(crate) up: String,
    pub(crate) down: String,
}
