//! Which layers attend within a window, a chunk, or without bound.

use serde_json::{Value, json};

use super::keys::Keys;
use super::{Object, expect_per_layer};
use crate::{ModelError, Reach, Transformer};

/// The rule of a family.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Windows {
    Never,
    /// Every layer when `sliding_window` is given.
    Everywhere,
    /// Every layer when `use_sliding_window` is set.
    Switched,
    /// When `use_sliding_window` is set, the layers of `layer_types`, or those from `max_window_layers` on.
    UpperLayers,
    /// When `use_sliding_window` is set, the layers of `layer_types`, or every second of the first `max_window_layers`.
    ///
    /// This is how transformers 5 reads Qwen2-MoE. Version 4 had no `layer_types` there, and which layers it bounded
    /// depended on how it computed attention.
    Alternating,
    /// The layers of `layer_types`, or every layer.
    Listed,
    /// The layers of `layer_types`, or all except every n-th.
    AllBut {
        full_every: u64,
    },
    /// The layers of `layer_types`, or chunks in layers with rotary positions and no bound in those without.
    Chunks,
}

impl Windows {
    fn has_switch(self) -> bool {
        matches!(self, Windows::Switched | Windows::UpperLayers | Windows::Alternating)
    }

    fn has_layer_types(self) -> bool {
        !matches!(self, Windows::Never | Windows::Everywhere | Windows::Switched)
    }

    /// What `layer_types` calls a bounded layer.
    fn bounded_type(self) -> &'static str {
        if self == Windows::Chunks { CHUNKED } else { SLIDING }
    }
}

const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";
const CHUNKED: &str = "chunked_attention";

/// The reach of each layer.
pub(super) fn read(keys: &Keys<'_>, windows: Windows, layers: u64) -> Result<Vec<Reach>, ModelError> {
    let window = bounded(keys, windows)?;
    let listed = if windows.has_layer_types() { keys.words("layer_types")? } else { None };
    if let Some(types) = listed {
        expect_per_layer(keys, types.len(), layers)?;
        return types.into_iter().map(|name| by_type(keys, name, windows, window)).collect();
    }
    let is_bounded: Box<dyn Fn(u64) -> bool> = match windows {
        Windows::Never => Box::new(|_| false),
        Windows::Everywhere | Windows::Switched | Windows::Listed => Box::new(|_| true),
        Windows::UpperLayers => {
            let first = keys.count("max_window_layers")?;
            Box::new(move |layer| layer >= first)
        }
        Windows::Alternating => {
            let first_full = keys.count("max_window_layers")?;
            Box::new(move |layer| layer.is_multiple_of(2) && layer < first_full)
        }
        Windows::AllBut { full_every } => {
            let every = keys.optional_size("sliding_window_pattern")?.unwrap_or(full_every);
            Box::new(move |layer| !(layer + 1).is_multiple_of(every))
        }
        Windows::Chunks => rotary_layers(keys, layers)?,
    };
    Ok((0..layers).map(|layer| if is_bounded(layer) { window } else { Reach::Full }).collect())
}

pub(super) fn write(object: &mut Object, windows: Windows, model: &Transformer) {
    let bound = model.runs.iter().map(|run| run.layer.reach).find(|reach| *reach != Reach::Full);
    match bound {
        Some(Reach::Window(size)) => {
            object.insert("sliding_window".into(), size.into());
        }
        Some(Reach::Chunk(size)) => {
            object.insert("attention_chunk_size".into(), size.into());
        }
        Some(Reach::Full) | None => {}
    }
    if windows == Windows::Everywhere && bound.is_none() {
        object.insert("sliding_window".into(), Value::Null);
    }
    if windows.has_switch() {
        object.insert("use_sliding_window".into(), bound.is_some().into());
    }
    if windows.has_layer_types() {
        let types: Vec<&str> = model.layers().map(|layer| type_of(layer.reach)).collect();
        object.insert("layer_types".into(), json!(types));
    }
}

/// The reach of the layers that are bounded.
fn bounded(keys: &Keys<'_>, windows: Windows) -> Result<Reach, ModelError> {
    Ok(match windows {
        Windows::Never => Reach::Full,
        Windows::Chunks => keys.optional_size("attention_chunk_size")?.map_or(Reach::Full, Reach::Chunk),
        // Without the switch, transformers writes a window of 0 or null.
        _ if windows.has_switch() && !keys.flag("use_sliding_window", false)? => {
            keys.count("sliding_window")?;
            Reach::Full
        }
        _ => keys.optional_size("sliding_window")?.map_or(Reach::Full, Reach::Window),
    })
}

fn by_type(keys: &Keys<'_>, name: &str, windows: Windows, window: Reach) -> Result<Reach, ModelError> {
    let bounded = windows.bounded_type();
    match name {
        FULL => Ok(Reach::Full),
        // The family has windows, but this configuration gives no size or does not switch them on.
        _ if name == bounded && window == Reach::Full => {
            let expected = format!("a list of `{FULL}`, as long as no window is in use");
            Err(keys.wrong_part("layer_types", expected, &json!(name)))
        }
        _ if name == bounded => Ok(window),
        _ => {
            let expected = format!("a list of `{FULL}` and `{bounded}`");
            Err(keys.wrong_part("layer_types", expected, &json!(name)))
        }
    }
}

fn type_of(reach: Reach) -> &'static str {
    match reach {
        Reach::Full => FULL,
        Reach::Window(_) => SLIDING,
        Reach::Chunk(_) => CHUNKED,
    }
}

/// `no_rope_layers` has, despite its name, a 1 for each layer with rotary positions.
fn rotary_layers(keys: &Keys<'_>, layers: u64) -> Result<Box<dyn Fn(u64) -> bool>, ModelError> {
    let listed = keys.numbers("no_rope_layers")?.unwrap_or_default();
    if listed.is_empty() {
        let interval = keys.optional_size("no_rope_layer_interval")?.unwrap_or(4);
        return Ok(Box::new(move |layer| !(layer + 1).is_multiple_of(interval)));
    }
    expect_per_layer(keys, listed.len(), layers)?;
    Ok(Box::new(move |layer| listed[layer as usize] != 0))
}
