//! MPT, as MosaicML's llm-foundry means its keys: transformers ignores `no_bias` and `learned_pos_emb`,
//! because every released MPT has neither biases nor learned positions.

use serde_json::{Value, json};

use super::keys::Keys;
use super::{Object, even_head_dim};
use crate::{
    Attention, Dense, Family, GroupedQuery, Layer, LayerRun, Mlp, ModelError, Norm, NormPlacement, Positions,
    QkNorm, Reach, Shape, Transformer,
};

pub(super) fn read(keys: &Keys<'_>) -> Result<Shape, ModelError> {
    let hidden = keys.size("d_model")?;
    let max_context = keys.size("max_seq_len")?;
    let has_bias = !keys.flag("no_bias", true)?;
    let count = keys.layer_count("n_layers")?;
    let width = hidden * keys.optional_size("expansion_ratio")?.unwrap_or(4);
    let layer = Layer {
        attention: Attention::GroupedQuery(read_attention(keys, hidden, has_bias)?),
        reach: Reach::Full,
        mlp: Mlp::Dense(Dense { width, is_gated: false, has_bias }),
    };
    Ok(Shape {
        name: String::new(),
        family: Family::Mpt,
        vocab: keys.size("vocab_size")?,
        hidden,
        runs: vec![LayerRun { count, layer }],
        norm: if has_bias { Norm::LayerNorm } else { Norm::LayerNormWithoutBias },
        norm_placement: NormPlacement::Before,
        has_embedding_norm: false,
        positions: read_positions(keys, max_context)?,
        has_tied_embeddings: keys.is_tied(true)?,
        max_context,
        prediction_layers: 0,
        left_out: Vec::new(),
    })
}

pub(super) fn write(model: &Transformer) -> Object {
    let mut object = Object::new();
    object.insert("vocab_size".into(), model.vocab.into());
    object.insert("d_model".into(), model.hidden.into());
    object.insert("n_layers".into(), model.layer_count().into());
    object.insert("max_seq_len".into(), model.max_context.into());
    object.insert("tie_word_embeddings".into(), model.has_tied_embeddings.into());
    object.insert("no_bias".into(), (model.norm != Norm::LayerNorm).into());
    let is_learned = matches!(model.positions, Positions::Learned { .. });
    object.insert("learned_pos_emb".into(), is_learned.into());
    for run in &model.runs {
        object.insert("n_heads".into(), run.layer.attention.heads().into());
        object.insert("attn_config".into(), attention_section(model.positions, &run.layer.attention));
        if let Mlp::Dense(dense) = run.layer.mlp {
            object.insert("expansion_ratio".into(), (dense.width / model.hidden).into());
        }
    }
    object
}

fn read_attention(keys: &Keys<'_>, hidden: u64, has_bias: bool) -> Result<GroupedQuery, ModelError> {
    let heads = keys.size("n_heads")?;
    let section = keys.section("attn_config")?;
    let kind = section.as_ref().map_or(Ok(None), |section| section.word("attn_type"))?;
    let kv_heads = match (&section, kind) {
        (_, None | Some("multihead_attention")) => heads,
        (_, Some("multiquery_attention")) => 1,
        (Some(section), Some("grouped_query_attention")) => section.size("kv_n_heads")?,
        (section, Some(_)) => {
            let expected = "multihead_attention, multiquery_attention or grouped_query_attention";
            return Err(section.as_ref().unwrap_or(keys).wrong("attn_type", expected));
        }
    };
    Ok(GroupedQuery {
        heads,
        kv_heads,
        head_dim: even_head_dim(keys, hidden, heads)?,
        has_qkv_bias: has_bias,
        has_output_bias: has_bias,
        qk_norm: QkNorm::Absent,
        has_sinks: false,
        has_gate: false,
    })
}

fn read_positions(keys: &Keys<'_>, max_context: u64) -> Result<Positions, ModelError> {
    let section = keys.section("attn_config")?;
    let is_set = |key, default| section.as_ref().map_or(Ok(default), |section| section.flag(key, default));
    if is_set("alibi", true)? {
        Ok(Positions::Alibi)
    } else if is_set("rope", false)? {
        Ok(Positions::Rotary)
    } else if keys.flag("learned_pos_emb", true)? {
        Ok(Positions::Learned { count: max_context })
    } else {
        Ok(Positions::Absent)
    }
}

fn attention_section(positions: Positions, attention: &Attention) -> Value {
    json!({
        "alibi": positions == Positions::Alibi,
        "rope": positions == Positions::Rotary,
        "attn_type": "grouped_query_attention",
        "kv_n_heads": attention.kv_heads(),
    })
}
