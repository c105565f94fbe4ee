//! The weight matrices of a layer: the one list from which parameters and FLOPs are counted.

use crate::{Attention, Dense, GroupedQuery, Indexer, Latent, Layer, Mixture, Mlp, ParameterPart, Recurrent};

/// One weight matrix, or `copies` identical ones of which each token uses `per_token`.
///
/// A batch of `t` tokens multiplies `t x inputs` by `inputs x outputs` for each copy that a token uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Matrix {
    pub part: ParameterPart,
    pub role: MatrixRole,
    pub inputs: u64,
    pub outputs: u64,
    pub has_bias: bool,
    /// Experts; 1 elsewhere.
    pub copies: u64,
    /// Experts per token; 1 elsewhere.
    pub per_token: u64,
}

/// What a matrix does; matrices of one role are cut the same way by tensor parallelism.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MatrixRole {
    Query,
    Key,
    Value,
    /// Compresses the query (latent attention).
    QueryDown,
    /// Restores the heads of the compressed query.
    QueryUp,
    /// Compresses keys and values into the latent, next to the shared rotary key.
    KvDown,
    /// Restores the heads of keys and values from the latent.
    KvUp,
    /// Makes the heads, the one key and the weights of heads by which an indexer scores tokens.
    IndexerQuery,
    IndexerKey,
    IndexerWeights,
    /// Makes queries, keys, values, their gate and what steers a state.
    StateInputs,
    Output,
    Gate,
    Up,
    Down,
    Router,
    /// The one column that weighs the shared expert.
    SharedGate,
}

impl Matrix {
    fn new(part: ParameterPart, role: MatrixRole, inputs: u64, outputs: u64, has_bias: bool) -> Self {
        Self { part, role, inputs, outputs, has_bias, copies: 1, per_token: 1 }
    }

    /// Parameters of one copy, its bias included.
    pub(crate) fn parameters_of_one(&self) -> u128 {
        let bias = if self.has_bias { self.outputs } else { 0 };
        u128::from(self.inputs) * u128::from(self.outputs) + u128::from(bias)
    }

    /// Forward FLOPs that one token causes; biases are not counted.
    pub fn flops_per_token(&self) -> f64 {
        2.0 * self.inputs as f64 * self.outputs as f64 * self.per_token as f64
    }
}

impl Layer {
    /// The matrices of this layer in a model of width `hidden`, in the order a token passes them.
    pub fn matrices(&self, hidden: u64) -> Vec<Matrix> {
        let mut matrices = match &self.attention {
            Attention::GroupedQuery(grouped) => grouped_matrices(grouped, hidden),
            Attention::Latent(latent) => latent_matrices(latent, hidden),
            Attention::Recurrent(recurrent) => recurrent_matrices(recurrent, hidden),
            Attention::Absent => Vec::new(),
        };
        match &self.mlp {
            Mlp::Dense(dense) => matrices.extend(dense_matrices(ParameterPart::DenseMlp, dense, hidden)),
            Mlp::Mixture(mixture) => matrices.extend(mixture_matrices(mixture, hidden)),
            Mlp::Absent => {}
        }
        matrices
    }
}

fn grouped_matrices(attention: &GroupedQuery, hidden: u64) -> Vec<Matrix> {
    let GroupedQuery { heads, kv_heads, head_dim, has_qkv_bias, has_output_bias, has_gate, .. } = *attention;
    let matrix = |role, inputs, outputs, has_bias| {
        Matrix::new(ParameterPart::Attention, role, inputs, outputs, has_bias)
    };
    let gate = if has_gate { 2 } else { 1 };
    vec![
        matrix(MatrixRole::Query, hidden, gate * heads * head_dim, has_qkv_bias),
        matrix(MatrixRole::Key, hidden, kv_heads * head_dim, has_qkv_bias),
        matrix(MatrixRole::Value, hidden, kv_heads * head_dim, has_qkv_bias),
        matrix(MatrixRole::Output, heads * head_dim, hidden, has_output_bias),
    ]
}

fn recurrent_matrices(state: &Recurrent, hidden: u64) -> Vec<Matrix> {
    let (keys, values) = (state.keys_wide(), state.values_wide());
    let made = 2 * keys + 2 * values + state.steering() * state.heads;
    vec![
        Matrix::new(ParameterPart::Attention, MatrixRole::StateInputs, hidden, made, state.has_bias),
        Matrix::new(ParameterPart::Attention, MatrixRole::Output, values, hidden, state.has_bias),
    ]
}

fn latent_matrices(attention: &Latent, hidden: u64) -> Vec<Matrix> {
    let Latent { heads, query_rank, kv_rank, nope_dim, rope_dim, value_dim, has_bias, indexer } = *attention;
    let matrix = |role, inputs, outputs, has_bias| {
        Matrix::new(ParameterPart::Attention, role, inputs, outputs, has_bias)
    };
    let query_width = heads * (nope_dim + rope_dim);
    let mut matrices = match query_rank {
        Some(rank) => vec![
            matrix(MatrixRole::QueryDown, hidden, rank, has_bias),
            matrix(MatrixRole::QueryUp, rank, query_width, false),
        ],
        None => vec![matrix(MatrixRole::Query, hidden, query_width, false)],
    };
    matrices.extend([
        matrix(MatrixRole::KvDown, hidden, kv_rank + rope_dim, has_bias),
        matrix(MatrixRole::KvUp, kv_rank, heads * (nope_dim + value_dim), false),
        matrix(MatrixRole::Output, heads * value_dim, hidden, has_bias),
    ]);
    if let Some(Indexer { heads, head_dim, .. }) = indexer {
        matrices.extend([
            matrix(MatrixRole::IndexerQuery, query_rank.unwrap_or(hidden), heads * head_dim, false),
            matrix(MatrixRole::IndexerKey, hidden, head_dim, false),
            matrix(MatrixRole::IndexerWeights, hidden, heads, false),
        ]);
    }
    matrices
}

fn dense_matrices(part: ParameterPart, dense: &Dense, hidden: u64) -> impl Iterator<Item = Matrix> {
    let Dense { width, is_gated, has_bias } = *dense;
    let gate = is_gated.then(|| Matrix::new(part, MatrixRole::Gate, hidden, width, has_bias));
    let up = Matrix::new(part, MatrixRole::Up, hidden, width, has_bias);
    let down = Matrix::new(part, MatrixRole::Down, width, hidden, has_bias);
    gate.into_iter().chain([up, down])
}

fn mixture_matrices(mixture: &Mixture, hidden: u64) -> Vec<Matrix> {
    let router = Matrix::new(
        ParameterPart::Router,
        MatrixRole::Router,
        hidden,
        mixture.experts,
        mixture.has_router_bias,
    );
    let mut matrices = vec![router];
    matrices.extend(dense_matrices(ParameterPart::Experts, &mixture.expert, hidden).map(|matrix| Matrix {
        copies: mixture.experts,
        per_token: mixture.per_token,
        ..matrix
    }));
    if let Some(shared) = &mixture.shared {
        matrices.extend(dense_matrices(ParameterPart::SharedExperts, shared, hidden));
    }
    if mixture.has_shared_gate {
        matrices.push(Matrix::new(ParameterPart::SharedExperts, MatrixRole::SharedGate, hidden, 1, false));
    }
    matrices
}
