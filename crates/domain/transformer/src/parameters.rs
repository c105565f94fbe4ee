//! Exact parameter counts, in total, per token and by part.

use std::fmt;

use crate::{Attention, Layer, Matrix, Mlp, Positions, QkNorm, Shape, Transformer};

/// Where a parameter belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ParameterPart {
    /// Token embedding and learned positions.
    Embedding,
    /// Projections, their biases and sinks.
    Attention,
    DenseMlp,
    /// Routed experts.
    Experts,
    SharedExperts,
    /// Routers with their biases.
    Router,
    Norms,
    /// The output projection, unless it is the embedding.
    Head,
}

impl ParameterPart {
    pub const ALL: [ParameterPart; 8] = [
        ParameterPart::Embedding,
        ParameterPart::Attention,
        ParameterPart::DenseMlp,
        ParameterPart::Experts,
        ParameterPart::SharedExperts,
        ParameterPart::Router,
        ParameterPart::Norms,
        ParameterPart::Head,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            ParameterPart::Embedding => "embedding",
            ParameterPart::Attention => "attention",
            ParameterPart::DenseMlp => "dense mlp",
            ParameterPart::Experts => "experts",
            ParameterPart::SharedExperts => "shared experts",
            ParameterPart::Router => "router",
            ParameterPart::Norms => "norms",
            ParameterPart::Head => "head",
        }
    }
}

impl fmt::Display for ParameterPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// How many parameters a model has. Tied embeddings count once, under [`ParameterPart::Embedding`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameters {
    pub total: u64,
    /// All but the routed experts that a token does not visit. The embedding is included.
    pub active: u64,
    /// `active` without the tables that are only looked up; a tied embedding stays, as the head.
    pub active_without_embedding: u64,
    by_part: [u64; ParameterPart::ALL.len()],
}

impl Parameters {
    pub fn of(&self, part: ParameterPart) -> u64 {
        self.by_part[part as usize]
    }

    /// Every part with its count, including empty parts.
    pub fn parts(&self) -> impl Iterator<Item = (ParameterPart, u64)> {
        ParameterPart::ALL.into_iter().map(|part| (part, self.of(part)))
    }
}

impl Transformer {
    /// Counts the language model. Multi-token prediction modules are not in it.
    ///
    /// The router's correction bias (DeepSeek-V3) counts, because DeepSeek publishes it as a parameter;
    /// transformers keeps it as a buffer and so reports one number per expert and layer less.
    pub fn parameters(&self) -> Parameters {
        let tally = Tally::of_shape(self);
        let total = fits(tally.total());
        let active = total - fits(tally.idle);
        let looked_up = positions(self) + if self.has_tied_embeddings { 0 } else { self.vocab * self.hidden };
        let by_part = tally.by_part.map(fits);
        Parameters { total, active, active_without_embedding: active - looked_up, by_part }
    }

    /// Parameters of one layer, its norms included.
    pub fn layer_parameters(&self, layer: &Layer) -> u64 {
        let mut tally = Tally::default();
        tally.add_layer(self, layer, 1);
        fits(tally.total())
    }

    /// Parameters of the multi-token prediction modules, which share embedding and head with the model.
    pub fn prediction_parameters(&self) -> u64 {
        fits(prediction_total(self))
    }
}

/// Sums wide enough for any shape with sizes within bounds, so that they can be checked.
#[derive(Default)]
pub(crate) struct Tally {
    by_part: [u128; ParameterPart::ALL.len()],
    /// Parameters of routed experts that a token does not visit.
    idle: u128,
}

impl Tally {
    pub(crate) fn of_shape(shape: &Shape) -> Self {
        let table = u128::from(shape.vocab) * u128::from(shape.hidden);
        let model_norms = 1 + u128::from(shape.has_embedding_norm);
        let mut tally = Self::default();
        tally.add(ParameterPart::Embedding, table + u128::from(positions(shape)));
        tally.add(ParameterPart::Norms, model_norms * u128::from(shape.norm.parameters(shape.hidden)));
        if !shape.has_tied_embeddings {
            tally.add(ParameterPart::Head, table);
        }
        for run in &shape.runs {
            tally.add_layer(shape, &run.layer, run.count);
        }
        tally
    }

    pub(crate) fn total(&self) -> u128 {
        self.by_part.iter().sum()
    }

    fn add(&mut self, part: ParameterPart, count: u128) {
        self.by_part[part as usize] += count;
    }

    fn add_layer(&mut self, shape: &Shape, layer: &Layer, times: u64) {
        let times = u128::from(times);
        for matrix in layer.matrices(shape.hidden) {
            self.add(matrix.part, times * u128::from(matrix.copies) * matrix.parameters_of_one());
            self.idle += times * idle_parameters(&matrix);
        }
        let norms =
            shape.norm_placement.norms_per_half() * layer.halves() * shape.norm.parameters(shape.hidden);
        self.add(ParameterPart::Norms, times * u128::from(norms + head_norms(&layer.attention)));
        self.add(ParameterPart::Attention, times * u128::from(outside_matrices(&layer.attention)));
        self.add(ParameterPart::Router, times * u128::from(correction_biases(&layer.mlp)));
    }
}

/// Each module joins the last hidden state with the next embedding and adds a layer: two norms before a
/// projection of `2h` by `h`, a layer like the last one, and a norm before the shared head.
pub(crate) fn prediction_total(shape: &Shape) -> u128 {
    let mut tally = Tally::default();
    if let Some(run) = shape.runs.last() {
        tally.add_layer(shape, &run.layer, shape.prediction_layers);
    }
    let projection = 2 * u128::from(shape.hidden).pow(2);
    let norms = 3 * u128::from(shape.norm.parameters(shape.hidden));
    tally.total() + u128::from(shape.prediction_layers) * (projection + norms)
}

fn idle_parameters(matrix: &Matrix) -> u128 {
    u128::from(matrix.copies - matrix.per_token) * matrix.parameters_of_one()
}

fn positions(shape: &Shape) -> u64 {
    match shape.positions {
        Positions::Learned { count } => count * shape.hidden,
        Positions::Rotary | Positions::Alibi | Positions::Absent => 0,
    }
}

/// Norms inside the attention: root-mean-square norms, but for an indexer's key, whose norm has a bias.
fn head_norms(attention: &Attention) -> u64 {
    match attention {
        Attention::GroupedQuery(grouped) => match grouped.qk_norm {
            QkNorm::Absent => 0,
            QkNorm::Head => 2 * grouped.head_dim,
            QkNorm::AllHeads => (grouped.heads + grouped.kv_heads) * grouped.head_dim,
        },
        Attention::Latent(latent) => {
            let key = latent.indexer.map_or(0, |indexer| 2 * indexer.head_dim);
            latent.query_rank.unwrap_or(0) + latent.kv_rank + key
        }
        Attention::Recurrent(recurrent) => recurrent.norm_parameters(),
        Attention::Absent => 0,
    }
}

/// Sinks, convolutions and what else is neither a matrix nor a norm.
fn outside_matrices(attention: &Attention) -> u64 {
    match attention {
        Attention::GroupedQuery(grouped) if grouped.has_sinks => grouped.heads,
        Attention::Recurrent(recurrent) => recurrent.small_parameters(),
        Attention::GroupedQuery(_) | Attention::Latent(_) | Attention::Absent => 0,
    }
}

fn correction_biases(mlp: &Mlp) -> u64 {
    match mlp {
        Mlp::Mixture(mixture) if mixture.has_correction_bias => mixture.experts,
        Mlp::Mixture(_) | Mlp::Dense(_) | Mlp::Absent => 0,
    }
}

fn fits(count: u128) -> u64 {
    u64::try_from(count).expect("parameters fit 64 bits: checked by Transformer::new")
}
