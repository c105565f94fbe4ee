//! Vision encoders: the section `vision_config` of Qwen2-VL, Qwen2.5-VL, Gemma 3 and LLaVA.

use super::keys::{Defaults, Keys};
use crate::vision::{Sizing, Vision, Windows};
use crate::{ModelError, Transformer};

/// More than any encoder has; keeps products of sizes within 64 bits.
const MOST: u64 = 1 << 16;

/// Layers of an encoder.
const MOST_LAYERS: u64 = 1 << 10;

/// Pixels between which Qwen's processors keep images, by the `preprocessor_config.json` of the released models.
const QWEN_PIXELS: (u64, u64) = (3136, 12_845_056);

const QWEN2_DEFAULTS: Defaults = &[("depth", 32), ("embed_dim", 1280), ("num_heads", 16), ("patch_size", 14)];

const QWEN25_DEFAULTS: Defaults = &[
    ("depth", 32),
    ("hidden_size", 1280),
    ("intermediate_size", 3420),
    ("num_heads", 16),
    ("patch_size", 14),
    ("window_size", 112),
];

/// Of SigLIP and of CLIP.
const PLAIN_DEFAULTS: Defaults = &[("patch_size", 14)];

/// The encoder of a model, where the type of the whole is one that is known.
pub(super) fn read(whole: &Keys<'_>, model: &Transformer) -> Result<Option<Vision>, ModelError> {
    let Some(section) = whole.section("vision_config")? else { return Ok(None) };
    let vision = match whole.word("model_type")? {
        Some("qwen2_vl") => qwen2(&section.of_type("qwen2_vl", QWEN2_DEFAULTS, &[]), model)?,
        Some("qwen2_5_vl") => qwen2_5(&section.of_type("qwen2_5_vl", QWEN25_DEFAULTS, &[]), model)?,
        Some("gemma3") => {
            let tokens = whole.size_up_to("mm_tokens_per_image", MOST)?.unwrap_or(256);
            gemma3(&section.of_type("gemma3", PLAIN_DEFAULTS, &[]), tokens, model)?
        }
        Some("llava") => llava(&section.of_type("llava", PLAIN_DEFAULTS, &[]), model)?,
        _ => return Ok(None),
    };
    Ok(Some(vision))
}

fn size(keys: &Keys<'_>, key: &'static str) -> Result<u64, ModelError> {
    keys.size_up_to(key, MOST)?.ok_or_else(|| keys.missing(key))
}

fn patch(keys: &Keys<'_>) -> Result<u64, ModelError> {
    keys.size_up_to("patch_size", 1024)?.ok_or_else(|| keys.missing("patch_size"))
}

fn layers(keys: &Keys<'_>, key: &'static str) -> Result<u64, ModelError> {
    keys.size_up_to(key, MOST_LAYERS)?.ok_or_else(|| keys.missing(key))
}

/// Sizes of the layers; linear projections have biases.
struct Blocks {
    layers: u64,
    hidden: u64,
    width: u64,
    is_gated: bool,
    /// Parameters of one norm.
    norm: u64,
}

impl Blocks {
    fn parameters(&self) -> u64 {
        let Blocks { layers, hidden, width, is_gated, norm } = *self;
        let attention = 4 * (hidden * hidden + hidden);
        let widened = if is_gated { 2 } else { 1 } * (hidden * width + width);
        layers * (attention + widened + width * hidden + hidden + 2 * norm)
    }
}

/// The square of patches that becomes a token, through two projections.
fn merger(side: u64, hidden: u64, outputs: u64) -> u64 {
    let merged = hidden * side * side;
    merged * merged + merged + merged * outputs + outputs
}

fn native(merged: u64) -> Sizing {
    Sizing::Native { merged, least_pixels: QWEN_PIXELS.0, most_pixels: QWEN_PIXELS.1 }
}

fn channels(keys: &Keys<'_>) -> Result<u64, ModelError> {
    match keys.size_up_to("in_chans", 64)? {
        Some(given) => Ok(given),
        None => Ok(keys.size_up_to("in_channels", 64)?.unwrap_or(3)),
    }
}

fn qwen2(keys: &Keys<'_>, model: &Transformer) -> Result<Vision, ModelError> {
    let hidden = size(keys, "embed_dim")?;
    // `hidden_size` is the width of the language model here.
    let (patch, merged) = (patch(keys)?, keys.size_up_to("spatial_merge_size", 16)?.unwrap_or(2));
    let embedding =
        channels(keys)? * keys.size_up_to("temporal_patch_size", 64)?.unwrap_or(2) * patch * patch * hidden;
    let width = hidden * keys.size_up_to("mlp_ratio", 16)?.unwrap_or(4);
    let blocks = Blocks { layers: layers(keys, "depth")?, hidden, width, is_gated: false, norm: 2 * hidden };
    let projection = merger(merged, hidden, model.hidden);
    Ok(Vision {
        layers: blocks.layers,
        hidden,
        heads: heads(keys, "num_heads", hidden)?,
        width,
        is_gated: false,
        patch,
        sizing: native(merged),
        windows: None,
        parameters: embedding + blocks.parameters() + 2 * hidden + projection,
        projection,
    })
}

fn qwen2_5(keys: &Keys<'_>, model: &Transformer) -> Result<Vision, ModelError> {
    let (hidden, width) = (size(keys, "hidden_size")?, size(keys, "intermediate_size")?);
    let (patch, merged) = (patch(keys)?, keys.size_up_to("spatial_merge_size", 16)?.unwrap_or(2));
    let embedding =
        channels(keys)? * keys.size_up_to("temporal_patch_size", 64)?.unwrap_or(2) * patch * patch * hidden;
    let blocks = Blocks { layers: layers(keys, "depth")?, hidden, width, is_gated: true, norm: hidden };
    let projection = merger(merged, hidden, model.hidden);
    let full = keys.numbers("fullatt_block_indexes")?.unwrap_or_else(|| vec![7, 15, 23, 31]);
    let full_layers = full.iter().filter(|layer| **layer < blocks.layers).count() as u64;
    let window = (size(keys, "window_size")? / patch).max(1);
    Ok(Vision {
        layers: blocks.layers,
        hidden,
        heads: heads(keys, "num_heads", hidden)?,
        width,
        is_gated: true,
        patch,
        sizing: native(merged),
        windows: Some(Windows { patches: window * window, full_layers }),
        parameters: embedding + blocks.parameters() + hidden + projection,
        projection,
    })
}

fn gemma3(keys: &Keys<'_>, tokens: u64, model: &Transformer) -> Result<Vision, ModelError> {
    let (blocks, patch, side) = plain(keys)?;
    let hidden = blocks.hidden;
    let embedding = keys.size_up_to("num_channels", 64)?.unwrap_or(3) * patch * patch * hidden + hidden;
    let positions = (side / patch).pow(2) * hidden;
    let projection = hidden * model.hidden;
    let others = embedding + positions + 3 * hidden;
    square(keys, &blocks, Sides { patch, side }, tokens, others, projection)
}

fn llava(keys: &Keys<'_>, model: &Transformer) -> Result<Vision, ModelError> {
    let (blocks, patch, side) = plain(keys)?;
    let hidden = blocks.hidden;
    let tokens = (side / patch).pow(2);
    let embedding = keys.size_up_to("num_channels", 64)?.unwrap_or(3) * patch * patch * hidden;
    // One more position, and a vector of its own, for the class token.
    let positions = (tokens + 1) * hidden + hidden;
    let projection = hidden * model.hidden + model.hidden + model.hidden * model.hidden + model.hidden;
    let others = embedding + positions + 4 * hidden;
    square(keys, &blocks, Sides { patch, side }, tokens, others, projection)
}

/// Pixels along the side of a patch and of an image.
struct Sides {
    patch: u64,
    side: u64,
}

/// A model that takes square images of one size; `others` are its parameters besides those of blocks and projection.
fn square(
    keys: &Keys<'_>,
    blocks: &Blocks,
    sides: Sides,
    tokens: u64,
    others: u64,
    projection: u64,
) -> Result<Vision, ModelError> {
    Ok(Vision {
        layers: blocks.layers,
        hidden: blocks.hidden,
        heads: heads(keys, "num_attention_heads", blocks.hidden)?,
        width: blocks.width,
        is_gated: false,
        patch: sides.patch,
        sizing: Sizing::Square { side: sides.side, tokens },
        windows: None,
        parameters: others + blocks.parameters() + projection,
        projection,
    })
}

/// The layers of SigLIP and CLIP, with the sides of a patch and of an image.
fn plain(keys: &Keys<'_>) -> Result<(Blocks, u64, u64), ModelError> {
    let hidden = size(keys, "hidden_size")?;
    let blocks = Blocks {
        layers: layers(keys, "num_hidden_layers")?,
        hidden,
        width: size(keys, "intermediate_size")?,
        is_gated: false,
        norm: 2 * hidden,
    };
    let (patch, side) = (patch(keys)?, size(keys, "image_size")?);
    if side < patch {
        return Err(keys.wrong("image_size", format!("at least the {patch} pixels of a patch")));
    }
    Ok((blocks, patch, side))
}

fn heads(keys: &Keys<'_>, key: &'static str, hidden: u64) -> Result<u64, ModelError> {
    let heads = size(keys, key)?;
    match hidden.is_multiple_of(heads) {
        true => Ok(heads),
        false => Err(keys.wrong(key, format!("a divisor of the width {hidden}"))),
    }
}
