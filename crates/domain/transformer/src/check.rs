//! What a shape must satisfy so that everything counted from it is exact and finite.

use std::ops::RangeInclusive;

use crate::parameters::{Tally, prediction_total};
use crate::{Attention, Dense, Mixture, Mlp, Positions, Reach, Recurrent, Shape};

/// The largest single size. Real ones stay below 2^24; products of three such sizes fit in 128 bits.
pub(crate) const MOST_ELEMENTS: u64 = 1 << 31;
pub(crate) const MOST_LAYERS: u64 = 100_000;
const MOST_PREDICTION_LAYERS: u64 = 100;
const MOST_PARAMETERS: u128 = 1_000_000_000_000_000_000;

/// Why a shape is not a model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    #[error("the {quantity} is {value}, which is not between {least} and {most}")]
    OutOfRange { quantity: &'static str, value: u64, least: u64, most: u64 },
    #[error("the hidden size {hidden} is not a multiple of the {heads} heads, and no head size is given")]
    UnevenHeads { hidden: u64, heads: u64 },
    #[error("{heads} query heads do not divide evenly over {kv_heads} key-value heads")]
    UnevenKvHeads { heads: u64, kv_heads: u64 },
    #[error("each token goes to {per_token} experts, but there are only {experts}")]
    TooFewExperts { per_token: u64, experts: u64 },
    #[error("the list of layers has {listed} entries, but the model has {layers} layers")]
    LayerListLength { listed: u64, layers: u64 },
    #[error("the model would have {parameters} parameters, more than 10^18")]
    TooLarge { parameters: u128 },
}

pub(crate) fn check(shape: &Shape) -> Result<(), Flaw> {
    check_model(shape)?;
    for run in &shape.runs {
        match run.layer.reach {
            Reach::Full => {}
            Reach::Window(size) | Reach::Chunk(size) => element("attention window", size)?,
        }
        check_attention(&run.layer.attention)?;
        match &run.layer.mlp {
            Mlp::Dense(dense) => check_dense(dense)?,
            Mlp::Mixture(mixture) => check_mixture(mixture)?,
            Mlp::Absent => {}
        }
    }
    let parameters = Tally::of_shape(shape).total() + prediction_total(shape);
    if parameters > MOST_PARAMETERS { Err(Flaw::TooLarge { parameters }) } else { Ok(()) }
}

fn check_model(shape: &Shape) -> Result<(), Flaw> {
    element("vocabulary size", shape.vocab)?;
    element("hidden size", shape.hidden)?;
    element("longest context", shape.max_context)?;
    if let Positions::Learned { count } = shape.positions {
        element("number of positions", count)?;
    }
    within("number of prediction layers", shape.prediction_layers, 0..=MOST_PREDICTION_LAYERS)?;
    let layers = shape.runs.iter().fold(0u64, |sum, run| sum.saturating_add(run.count));
    within("number of layers", layers, 1..=MOST_LAYERS)?;
    shape.runs.iter().try_for_each(|run| within("length of a run of layers", run.count, 1..=MOST_LAYERS))
}

fn check_attention(attention: &Attention) -> Result<(), Flaw> {
    match attention {
        Attention::GroupedQuery(grouped) => {
            element("number of heads", grouped.heads)?;
            element("number of key-value heads", grouped.kv_heads)?;
            element("head size", grouped.head_dim)?;
            let (heads, kv_heads) = (grouped.heads, grouped.kv_heads);
            if heads % kv_heads == 0 { Ok(()) } else { Err(Flaw::UnevenKvHeads { heads, kv_heads }) }
        }
        Attention::Latent(latent) => {
            element("number of heads", latent.heads)?;
            element("query rank", latent.query_rank.unwrap_or(1))?;
            element("key-value rank", latent.kv_rank)?;
            element("head size without position", latent.nope_dim)?;
            element("rotary head size", latent.rope_dim)?;
            element("value head size", latent.value_dim)?;
            let Some(indexer) = latent.indexer else { return Ok(()) };
            element("number of heads of the indexer", indexer.heads)?;
            element("head size of the indexer", indexer.head_dim)?;
            element("width of the indexer", indexer.heads.saturating_mul(indexer.head_dim))?;
            element("number of tokens that the indexer chooses", indexer.keys)
        }
        Attention::Recurrent(recurrent) => {
            let Recurrent { heads, value_dim, key_heads, key_dim, kernel, .. } = *recurrent;
            element("number of heads with a state", heads)?;
            element("number of heads of keys", key_heads)?;
            element("size of a state", key_dim)?;
            element("value head size", value_dim)?;
            element("width of the convolution", kernel)?;
            element("width of all values", heads.saturating_mul(value_dim))?;
            element("width of all keys", key_heads.saturating_mul(key_dim))?;
            if heads % key_heads == 0 {
                Ok(())
            } else {
                Err(Flaw::UnevenKvHeads { heads, kv_heads: key_heads })
            }
        }
        Attention::Absent => Ok(()),
    }
}

fn check_dense(dense: &Dense) -> Result<(), Flaw> {
    element("width of the MLP", dense.width)
}

fn check_mixture(mixture: &Mixture) -> Result<(), Flaw> {
    let Mixture { experts, per_token, .. } = *mixture;
    element("number of experts", experts)?;
    element("number of experts per token", per_token)?;
    check_dense(&mixture.expert)?;
    mixture.shared.iter().try_for_each(check_dense)?;
    if per_token <= experts { Ok(()) } else { Err(Flaw::TooFewExperts { per_token, experts }) }
}

fn element(quantity: &'static str, value: u64) -> Result<(), Flaw> {
    within(quantity, value, 1..=MOST_ELEMENTS)
}

fn within(quantity: &'static str, value: u64, range: RangeInclusive<u64>) -> Result<(), Flaw> {
    let (least, most) = (*range.start(), *range.end());
    if range.contains(&value) { Ok(()) } else { Err(Flaw::OutOfRange { quantity, value, least, most }) }
}
