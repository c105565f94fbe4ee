//! Families with rotary positions, read and written by their row of the dialect table.

use serde_json::{Value, json};

use super::dialect::{Dialect, Switch};
use super::keys::Keys;
use super::{Object, even_head_dim, latent, mixture, reach, recurrent};
use crate::{
    Attention, Dense, Family, GroupedQuery, Layer, LayerRun, Mlp, ModelError, Positions, QkNorm, Shape,
    Transformer,
};

pub(super) fn read(keys: &Keys<'_>, family: Family, dialect: &Dialect) -> Result<Shape, ModelError> {
    let hidden = keys.size("hidden_size")?;
    let layers = keys.layer_count("num_hidden_layers")?;
    let attention = read_attention(keys, dialect, hidden)?;
    let mixers = match dialect.is_hybrid {
        true => recurrent::read(keys, attention, layers)?,
        false => {
            reach::read(keys, dialect.windows, layers)?.into_iter().map(|reach| (attention, reach)).collect()
        }
    };
    let mlps = read_mlps(keys, dialect, layers)?;
    let layer = |((attention, reach), mlp)| Layer { attention, reach, mlp };
    Ok(Shape {
        name: String::new(),
        family,
        vocab: keys.size("vocab_size")?,
        hidden,
        runs: LayerRun::gather(mixers.into_iter().zip(mlps).map(layer)),
        norm: dialect.norm,
        norm_placement: dialect.norm_placement,
        has_embedding_norm: false,
        positions: Positions::Rotary,
        has_tied_embeddings: keys.is_tied(dialect.is_tied)?,
        max_context: keys.size("max_position_embeddings")?,
        prediction_layers: keys.count("num_nextn_predict_layers")?,
        left_out: Vec::new(),
    })
}

pub(super) fn write(model: &Transformer, dialect: &Dialect) -> Object {
    let mut object = Object::new();
    let mut put = |key: &str, value: Value| object.insert(key.to_owned(), value);
    put("vocab_size", json!(model.vocab));
    put("hidden_size", json!(model.hidden));
    put("num_hidden_layers", json!(model.layer_count()));
    put("max_position_embeddings", json!(model.max_context));
    put("tie_word_embeddings", json!(model.has_tied_embeddings));
    if model.prediction_layers > 0 {
        put("num_nextn_predict_layers", json!(model.prediction_layers));
    }
    for run in &model.runs {
        write_attention(&mut object, dialect, &run.layer.attention);
        write_mlp(&mut object, dialect, &run.layer.mlp);
    }
    match dialect.is_hybrid {
        true => recurrent::write_types(&mut object, model),
        false => reach::write(&mut object, dialect.windows, model),
    }
    if let Some(keys) = &dialect.mixture {
        mixture::write_sparse(&mut object, keys, model);
    }
    object
}

fn read_attention(keys: &Keys<'_>, dialect: &Dialect, hidden: u64) -> Result<Attention, ModelError> {
    let heads = keys.size("num_attention_heads")?;
    if dialect.is_latent {
        let has_bias = dialect.qkv_bias.read(keys)?;
        return latent::read(keys, heads, has_bias, dialect.has_indexer).map(Attention::Latent);
    }
    let head_dim = match keys.optional_size("head_dim")? {
        Some(head_dim) => head_dim,
        None => even_head_dim(keys, hidden, heads)?,
    };
    Ok(Attention::GroupedQuery(GroupedQuery {
        heads,
        kv_heads: keys.optional_size("num_key_value_heads")?.unwrap_or(heads),
        head_dim,
        has_qkv_bias: dialect.qkv_bias.read(keys)?,
        has_output_bias: dialect.output_bias.read(keys)?,
        qk_norm: match dialect.qk_norm_switch {
            Some(key) if !keys.flag(key, false)? => QkNorm::Absent,
            _ => dialect.qk_norm,
        },
        has_sinks: dialect.has_sinks,
        has_gate: dialect.is_hybrid,
    }))
}

fn write_attention(object: &mut Object, dialect: &Dialect, attention: &Attention) {
    match attention {
        Attention::GroupedQuery(grouped) => {
            object.insert("num_attention_heads".into(), grouped.heads.into());
            object.insert("num_key_value_heads".into(), grouped.kv_heads.into());
            object.insert("head_dim".into(), grouped.head_dim.into());
            dialect.qkv_bias.write(object, grouped.has_qkv_bias);
            dialect.output_bias.write(object, grouped.has_output_bias);
            if let Some(key) = dialect.qk_norm_switch {
                object.insert(key.into(), (grouped.qk_norm != QkNorm::Absent).into());
            }
        }
        Attention::Latent(attention) => {
            latent::write(object, attention);
            dialect.qkv_bias.write(object, attention.has_bias);
        }
        Attention::Recurrent(state) => recurrent::write(object, state),
        // No rotary family has such layers; reading back will show it.
        Attention::Absent => {}
    }
}

/// The MLP of each layer.
fn read_mlps(keys: &Keys<'_>, dialect: &Dialect, layers: u64) -> Result<Vec<Mlp>, ModelError> {
    let has_bias = dialect.mlp_bias.read(keys)?;
    let dense = |width| Mlp::Dense(Dense { width, is_gated: dialect.is_gated, has_bias });
    match &dialect.mixture {
        None => Ok(vec![dense(keys.size("intermediate_size")?); layers as usize]),
        Some(mixture_keys) => {
            let sparse = mixture::read_sparse(keys, mixture_keys, layers)?;
            let mixture = if sparse.contains(&true) { mixture::read(keys, mixture_keys)? } else { None };
            let mlp = |is_sparse| match (mixture, is_sparse) {
                (Some(mixture), true) => Ok(Mlp::Mixture(mixture)),
                _ => Ok(dense(keys.size(mixture_keys.dense_width)?)),
            };
            sparse.into_iter().map(mlp).collect()
        }
    }
}

fn write_mlp(object: &mut Object, dialect: &Dialect, mlp: &Mlp) {
    match (mlp, &dialect.mixture) {
        (Mlp::Dense(dense), keys) => {
            let width_key = keys.as_ref().map_or("intermediate_size", |keys| keys.dense_width);
            object.insert(width_key.into(), dense.width.into());
            dialect.mlp_bias.write(object, dense.has_bias);
        }
        (Mlp::Mixture(mixture), Some(keys)) => mixture::write(object, keys, mixture),
        // A mixture in a family without one cannot be written; reading back will show it.
        (Mlp::Mixture(_), None) | (Mlp::Absent, _) => {}
    }
}

impl Switch {
    fn read(self, keys: &Keys<'_>) -> Result<bool, ModelError> {
        match self {
            Switch::Never => Ok(false),
            Switch::Always => Ok(true),
            Switch::Key { key, default } => keys.flag(key, default),
        }
    }

    fn write(self, object: &mut Object, is_on: bool) {
        if let Switch::Key { key, .. } = self {
            object.insert(key.into(), is_on.into());
        }
    }
}
