//! Nemotron-H: each layer is one of Mamba-2, attention, an MLP or experts, by a letter of a pattern.

use serde_json::{Value, json};

use super::keys::Keys;
use super::{Object, expect_per_layer};
use crate::{
    Attention, Dense, Family, GroupedQuery, Layer, LayerRun, Mixture, Mlp, ModelError, Norm, NormPlacement,
    Positions, QkNorm, Reach, Recurrent, Shape, StateRule, Transformer,
};

const MAMBA: char = 'M';
const ATTENTION: char = '*';
const MLP: char = '-';
const EXPERTS: char = 'E';

pub(super) fn read(keys: &Keys<'_>) -> Result<Shape, ModelError> {
    let hidden = keys.size("hidden_size")?;
    let pattern =
        keys.word("hybrid_override_pattern")?.ok_or_else(|| keys.missing("hybrid_override_pattern"))?;
    expect_per_layer(keys, pattern.chars().count(), keys.layer_count("num_hidden_layers")?)?;
    let layers: Result<Vec<Layer>, ModelError> =
        pattern.chars().map(|kind| layer(keys, kind, hidden)).collect();
    Ok(Shape {
        name: String::new(),
        family: Family::NemotronH,
        vocab: keys.size("vocab_size")?,
        hidden,
        runs: LayerRun::gather(layers?),
        norm: Norm::Rms,
        norm_placement: NormPlacement::Before,
        has_embedding_norm: false,
        positions: Positions::Absent,
        has_tied_embeddings: keys.is_tied(false)?,
        max_context: keys.size("max_position_embeddings")?,
        prediction_layers: 0,
        left_out: Vec::new(),
    })
}

fn layer(keys: &Keys<'_>, kind: char, hidden: u64) -> Result<Layer, ModelError> {
    let (attention, reach, mlp) = match kind {
        MAMBA => (Attention::Recurrent(mamba(keys)?), Reach::Chunk(keys.size("chunk_size")?), Mlp::Absent),
        ATTENTION => (Attention::GroupedQuery(attention(keys, hidden)?), Reach::Full, Mlp::Absent),
        MLP => (Attention::Absent, Reach::Full, Mlp::Dense(dense(keys, "intermediate_size")?)),
        EXPERTS => (Attention::Absent, Reach::Full, Mlp::Mixture(mixture(keys)?)),
        other => {
            let expected = "a letter of `M`, `*`, `-` or `E` for each layer".to_owned();
            return Err(keys.wrong_part("hybrid_override_pattern", expected, &json!(other)));
        }
    };
    Ok(Layer { attention, reach, mlp })
}

fn mamba(keys: &Keys<'_>) -> Result<Recurrent, ModelError> {
    Ok(Recurrent {
        heads: keys.size("mamba_num_heads")?,
        value_dim: keys.size("mamba_head_dim")?,
        key_heads: keys.size("n_groups")?,
        key_dim: keys.size("ssm_state_size")?,
        kernel: keys.size("conv_kernel")?,
        has_kernel_bias: keys.flag("use_conv_bias", true)?,
        has_bias: keys.flag("use_bias", false)?,
        rule: StateRule::Mamba2,
    })
}

fn attention(keys: &Keys<'_>, hidden: u64) -> Result<GroupedQuery, ModelError> {
    let heads = keys.size("num_attention_heads")?;
    let given = keys.optional_size("attention_head_dim")?.or(keys.optional_size("head_dim")?);
    let has_bias = keys.flag("attention_bias", false)?;
    Ok(GroupedQuery {
        heads,
        kv_heads: keys.size("num_key_value_heads")?,
        head_dim: match given {
            Some(head_dim) => head_dim,
            None => super::even_head_dim(keys, hidden, heads)?,
        },
        has_qkv_bias: has_bias,
        has_output_bias: has_bias,
        qk_norm: QkNorm::Absent,
        has_sinks: false,
        has_gate: false,
    })
}

/// MLPs and experts square the positive part of what comes in: nothing gates them.
fn dense(keys: &Keys<'_>, width: &'static str) -> Result<Dense, ModelError> {
    Ok(Dense { width: keys.size(width)?, is_gated: false, has_bias: keys.flag("mlp_bias", false)? })
}

fn mixture(keys: &Keys<'_>) -> Result<Mixture, ModelError> {
    let expert = dense(keys, "moe_intermediate_size")?;
    let width = keys.count("moe_shared_expert_intermediate_size")? * keys.count("n_shared_experts")?;
    Ok(Mixture {
        experts: keys.size("n_routed_experts")?,
        per_token: keys.size("num_experts_per_tok")?,
        expert,
        shared: (width > 0).then_some(Dense { width, ..expert }),
        has_shared_gate: false,
        has_router_bias: false,
        has_correction_bias: true,
    })
}

pub(super) fn write(model: &Transformer) -> Object {
    let mut object = Object::new();
    let mut put = |key: &str, value: Value| {
        object.insert(key.to_owned(), value);
    };
    put("vocab_size", json!(model.vocab));
    put("hidden_size", json!(model.hidden));
    put("num_hidden_layers", json!(model.layer_count()));
    put("max_position_embeddings", json!(model.max_context));
    put("tie_word_embeddings", json!(model.has_tied_embeddings));
    put("hybrid_override_pattern", json!(model.layers().map(letter).collect::<String>()));
    for run in &model.runs {
        match (&run.layer.attention, run.layer.reach) {
            (Attention::Recurrent(mamba), Reach::Chunk(chunk)) => {
                put("mamba_num_heads", json!(mamba.heads));
                put("mamba_head_dim", json!(mamba.value_dim));
                put("n_groups", json!(mamba.key_heads));
                put("ssm_state_size", json!(mamba.key_dim));
                put("conv_kernel", json!(mamba.kernel));
                put("use_conv_bias", json!(mamba.has_kernel_bias));
                put("use_bias", json!(mamba.has_bias));
                put("chunk_size", json!(chunk));
            }
            (Attention::GroupedQuery(grouped), _) => {
                put("num_attention_heads", json!(grouped.heads));
                put("num_key_value_heads", json!(grouped.kv_heads));
                put("head_dim", json!(grouped.head_dim));
                put("attention_bias", json!(grouped.has_qkv_bias));
            }
            _ => {}
        }
        match &run.layer.mlp {
            Mlp::Dense(dense) => {
                put("intermediate_size", json!(dense.width));
                put("mlp_bias", json!(dense.has_bias));
            }
            Mlp::Mixture(mixture) => {
                put("n_routed_experts", json!(mixture.experts));
                put("num_experts_per_tok", json!(mixture.per_token));
                put("moe_intermediate_size", json!(mixture.expert.width));
                put(
                    "moe_shared_expert_intermediate_size",
                    json!(mixture.shared.map_or(0, |shared| shared.width)),
                );
                put("n_shared_experts", json!(u64::from(mixture.shared.is_some())));
                put("mlp_bias", json!(mixture.expert.has_bias));
            }
            Mlp::Absent => {}
        }
    }
    object
}

fn letter(layer: &Layer) -> char {
    match (&layer.attention, &layer.mlp) {
        (Attention::Recurrent(_), _) => MAMBA,
        (Attention::Absent, Mlp::Mixture(_)) => EXPERTS,
        (Attention::Absent, _) => MLP,
        _ => ATTENTION,
    }
}
