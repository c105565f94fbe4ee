//! GPT-2, and GPT-3 written in its style: learned positions, biases everywhere.

use serde_json::json;

use super::keys::Keys;
use super::{Object, even_head_dim};
use crate::{
    Attention, Dense, Family, GroupedQuery, Layer, LayerRun, Mlp, ModelError, Norm, NormPlacement, Positions,
    QkNorm, Reach, Shape, Transformer,
};

pub(super) fn read(keys: &Keys<'_>) -> Result<Shape, ModelError> {
    let hidden = keys.size("n_embd")?;
    let heads = keys.size("n_head")?;
    let count = keys.layer_count("n_layer")?;
    let positions = keys.size("n_positions")?;
    let width = keys.optional_size("n_inner")?.unwrap_or(4 * hidden);
    let attention = biased_attention(heads, even_head_dim(keys, hidden, heads)?);
    let mlp = Mlp::Dense(Dense { width, is_gated: false, has_bias: true });
    Ok(Shape {
        name: String::new(),
        family: Family::Gpt2,
        vocab: keys.size("vocab_size")?,
        hidden,
        runs: vec![LayerRun { count, layer: Layer { attention, reach: Reach::Full, mlp } }],
        norm: Norm::LayerNorm,
        norm_placement: NormPlacement::Before,
        has_embedding_norm: false,
        positions: Positions::Learned { count: positions },
        has_tied_embeddings: keys.is_tied(true)?,
        max_context: positions,
        prediction_layers: 0,
        left_out: Vec::new(),
    })
}

pub(super) fn write(model: &Transformer) -> Object {
    let mut object = Object::new();
    object.insert("vocab_size".into(), model.vocab.into());
    object.insert("n_embd".into(), model.hidden.into());
    object.insert("n_layer".into(), model.layer_count().into());
    object.insert("n_positions".into(), model.max_context.into());
    object.insert("tie_word_embeddings".into(), model.has_tied_embeddings.into());
    for run in &model.runs {
        object.insert("n_head".into(), run.layer.attention.heads().into());
        if let Mlp::Dense(dense) = run.layer.mlp {
            object.insert("n_inner".into(), json!(dense.width));
        }
    }
    object
}

/// Multi-head attention with a bias on every projection.
pub(super) fn biased_attention(heads: u64, head_dim: u64) -> Attention {
    Attention::GroupedQuery(GroupedQuery {
        heads,
        kv_heads: heads,
        head_dim,
        has_qkv_bias: true,
        has_output_bias: true,
        qk_norm: QkNorm::Absent,
        has_sinks: false,
        has_gate: false,
    })
}
