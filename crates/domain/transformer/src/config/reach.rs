//! Which layers attend within a window, a chunk, or without bound.

use serde_json::{Value, json};

use super::keys::Keys;
use super::{Object, expect_per_layer};
use crate::{ModelError, Reach, Transformer};

/// The rule of a family. An explicit `layer_types` list takes precedence, except with [`Windows::Never`].
#[derive(Clone, Copy)]
pub(super) enum Windows {
    Never,
    /// Every layer when `sliding_window` is given.
    Everywhere,
    /// Layers from `max_window_layers` on, when `use_sliding_window` is set.
    UpperLayers,
    /// All layers except every n-th.
    AllBut {
        full_every: u64,
    },
    /// Chunks in layers with rotary positions, no bound in those without.
    Chunks,
}

const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";
const CHUNKED: &str = "chunked_attention";

/// The reach of each layer.
pub(super) fn read(keys: &Keys<'_>, windows: Windows, layers: u64) -> Result<Vec<Reach>, ModelError> {
    let window = bounded(keys, windows)?;
    if let Some(types) = layer_types(keys, windows)? {
        expect_per_layer(keys, types.len(), layers)?;
        return types.into_iter().map(|name| by_type(keys, name, window)).collect();
    }
    let is_bounded: Box<dyn Fn(u64) -> bool> = match windows {
        Windows::Never => Box::new(|_| false),
        Windows::Everywhere => Box::new(|_| true),
        Windows::UpperLayers => {
            let first = keys.count("max_window_layers")?;
            Box::new(move |layer| layer >= first)
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
    match windows {
        Windows::Never => return,
        Windows::Everywhere if bound.is_none() => {
            object.insert("sliding_window".into(), Value::Null);
            return;
        }
        Windows::Everywhere if model.layers().all(|layer| Some(layer.reach) == bound) => return,
        Windows::UpperLayers => {
            object.insert("use_sliding_window".into(), bound.is_some().into());
        }
        Windows::Everywhere | Windows::AllBut { .. } | Windows::Chunks => {}
    }
    let types: Vec<&str> = model.layers().map(|layer| type_of(layer.reach)).collect();
    object.insert("layer_types".into(), json!(types));
}

/// The reach of the layers that are bounded.
fn bounded(keys: &Keys<'_>, windows: Windows) -> Result<Reach, ModelError> {
    let size = match windows {
        Windows::Never => None,
        Windows::Chunks => keys.optional_size("attention_chunk_size")?,
        Windows::UpperLayers if !keys.flag("use_sliding_window", false)? => None,
        Windows::UpperLayers | Windows::Everywhere | Windows::AllBut { .. } => {
            keys.optional_size("sliding_window")?
        }
    };
    Ok(match (size, windows) {
        (None, _) => Reach::Full,
        (Some(size), Windows::Chunks) => Reach::Chunk(size),
        (Some(size), _) => Reach::Window(size),
    })
}

fn layer_types<'a>(keys: &Keys<'a>, windows: Windows) -> Result<Option<Vec<&'a str>>, ModelError> {
    match windows {
        Windows::Never => Ok(None),
        _ => keys.words("layer_types"),
    }
}

fn by_type(keys: &Keys<'_>, name: &str, window: Reach) -> Result<Reach, ModelError> {
    match name {
        FULL => Ok(Reach::Full),
        SLIDING | CHUNKED => Ok(window),
        _ => {
            let expected = format!("a list of `{FULL}`, `{SLIDING}` and `{CHUNKED}`");
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
