//! Layers that carry a state in place of attention: gated delta networks among attention (Qwen3-Next).

use serde_json::json;

use super::keys::Keys;
use super::{Object, expect_per_layer};
use crate::{Attention, ModelError, Reach, Recurrent, StateRule, Transformer};

const FULL: &str = "full_attention";
const LINEAR: &str = "linear_attention";
/// Tokens of a chunk; the kernels fix it, and configurations do not have it.
const DELTA_CHUNK: u64 = 64;

/// How each layer mixes tokens: the layers of `layer_types`, or attention in every `full_attention_interval`-th.
pub(super) fn read(
    keys: &Keys<'_>,
    attention: Attention,
    layers: u64,
) -> Result<Vec<(Attention, Reach)>, ModelError> {
    let full = (attention, Reach::Full);
    let linear = (Attention::Recurrent(delta(keys)?), Reach::Chunk(DELTA_CHUNK));
    if let Some(types) = keys.words("layer_types")? {
        expect_per_layer(keys, types.len(), layers)?;
        return types
            .into_iter()
            .map(|name| match name {
                FULL => Ok(full),
                LINEAR => Ok(linear),
                _ => {
                    let expected = format!("a list of `{FULL}` and `{LINEAR}`");
                    Err(keys.wrong_part("layer_types", expected, &json!(name)))
                }
            })
            .collect();
    }
    let every = keys.optional_size("full_attention_interval")?.unwrap_or(4);
    Ok((1..=layers).map(|layer| if layer.is_multiple_of(every) { full } else { linear }).collect())
}

fn delta(keys: &Keys<'_>) -> Result<Recurrent, ModelError> {
    Ok(Recurrent {
        heads: keys.size("linear_num_value_heads")?,
        value_dim: keys.size("linear_value_head_dim")?,
        key_heads: keys.size("linear_num_key_heads")?,
        key_dim: keys.size("linear_key_head_dim")?,
        kernel: keys.size("linear_conv_kernel_dim")?,
        has_kernel_bias: false,
        has_bias: false,
        rule: StateRule::GatedDelta,
    })
}

pub(super) fn write(object: &mut Object, recurrent: &Recurrent) {
    object.insert("linear_num_value_heads".into(), recurrent.heads.into());
    object.insert("linear_value_head_dim".into(), recurrent.value_dim.into());
    object.insert("linear_num_key_heads".into(), recurrent.key_heads.into());
    object.insert("linear_key_head_dim".into(), recurrent.key_dim.into());
    object.insert("linear_conv_kernel_dim".into(), recurrent.kernel.into());
}

pub(super) fn write_types(object: &mut Object, model: &Transformer) {
    let name =
        |attention: &Attention| if matches!(attention, Attention::Recurrent(_)) { LINEAR } else { FULL };
    let types: Vec<&str> = model.layers().map(|layer| name(&layer.attention)).collect();
    // The heads of attention are required, whether or not a layer has it.
    if !types.contains(&FULL) {
        object.insert("num_attention_heads".into(), 1.into());
        object.insert("num_key_value_heads".into(), 1.into());
    }
    object.insert("layer_types".into(), json!(types));
}
