//! BLOOM: ALiBi, biases everywhere, and a norm after the embedding.

use super::gpt2::biased_attention;
use super::keys::Keys;
use super::{Object, even_head_dim};
use crate::{
    Dense, Family, Layer, LayerRun, Mlp, ModelError, Norm, NormPlacement, Positions, Reach, Shape,
    Transformer,
};

/// The sequence length BLOOM was trained on. ALiBi sets no bound, and most files give none.
const TRAINED_CONTEXT: u64 = 2048;

pub(super) fn read(keys: &Keys<'_>) -> Result<Shape, ModelError> {
    let hidden = keys.size("hidden_size")?;
    let heads = keys.size("n_head")?;
    let count = keys.layer_count("n_layer")?;
    let attention = biased_attention(heads, even_head_dim(keys, hidden, heads)?);
    let mlp = Mlp::Dense(Dense { width: 4 * hidden, is_gated: false, has_bias: true });
    Ok(Shape {
        name: String::new(),
        family: Family::Bloom,
        vocab: keys.size("vocab_size")?,
        hidden,
        runs: vec![LayerRun { count, layer: Layer { attention, reach: Reach::Full, mlp } }],
        norm: Norm::LayerNorm,
        norm_placement: NormPlacement::Before,
        has_embedding_norm: true,
        positions: Positions::Alibi,
        has_tied_embeddings: keys.is_tied(true)?,
        max_context: keys.optional_size("seq_length")?.unwrap_or(TRAINED_CONTEXT),
        prediction_layers: 0,
        left_out: Vec::new(),
    })
}

pub(super) fn write(model: &Transformer) -> Object {
    let mut object = Object::new();
    object.insert("vocab_size".into(), model.vocab.into());
    object.insert("hidden_size".into(), model.hidden.into());
    object.insert("n_layer".into(), model.layer_count().into());
    object.insert("seq_length".into(), model.max_context.into());
    object.insert("tie_word_embeddings".into(), model.has_tied_embeddings.into());
    for run in &model.runs {
        object.insert("n_head".into(), run.layer.attention.heads().into());
    }
    object
}
