//! The Hugging Face `config.json` format: read into a shape, written from one.
//!
//! Families with learned positions or ALiBi have a module each; all rotary families are rows of one
//! table in `dialect`. Unknown keys are ignored, as transformers ignores them. Nothing outside this
//! folder knows how a configuration is spelled.

mod bloom;
mod dialect;
mod gpt2;
mod keys;
mod latent;
mod mixture;
mod mpt;
mod reach;
mod rotary;

use bedplate_diag::{Source, nearest};
use serde_json::{Map, Value};

use self::keys::Keys;
use crate::{Family, Flaw, LeftOut, ModelError, Shape, Transformer};

type Object = Map<String, Value>;

/// Reads a `config.json`. The language model inside a multimodal one is found under `text_config`.
pub fn from_config(source: Source<'_>) -> Result<Transformer, ModelError> {
    let value: Value = serde_json::from_str(source.text).map_err(|error| ModelError::Malformed {
        place: source.place_at(error.line(), error.column()),
        source: error,
    })?;
    let Value::Object(outer) = &value else {
        return Err(ModelError::NotAnObject { found: keys::kind(&value), place: source.place_at(1, 1) });
    };
    let whole = Keys::new(source, outer);
    let text = whole.section("text_config")?;
    let (family, keys) = family(text.as_ref().unwrap_or(&whole), &whole)?;
    let mut shape = read(&keys, family)?;
    shape.name = name(&whole, family);
    shape.left_out = left_out(outer);
    Transformer::new(shape).map_err(|error| locate(error, &keys))
}

/// Writes the configuration that [`from_config`] reads back as the same model.
pub fn to_config_json(model: &Transformer) -> Result<String, ModelError> {
    let text = format!("{:#}\n", Value::Object(write(model)));
    match from_config(Source::new("exported config.json", &text)) {
        Ok(reread) if reread == *model => Ok(text),
        _ => Err(ModelError::CannotExport { name: model.name.clone(), family: model.family }),
    }
}

fn read(keys: &Keys<'_>, family: Family) -> Result<Shape, ModelError> {
    match family {
        Family::Gpt2 => gpt2::read(keys),
        Family::Bloom => bloom::read(keys),
        Family::Mpt => mpt::read(keys),
        rotary => rotary::read(keys, rotary, &dialect::of(rotary)),
    }
}

fn write(model: &Transformer) -> Object {
    let mut object = match model.family {
        Family::Gpt2 => gpt2::write(model),
        Family::Bloom => bloom::write(model),
        Family::Mpt => mpt::write(model),
        rotary => rotary::write(model, &dialect::of(rotary)),
    };
    object.insert("model_type".into(), model.family.model_type().into());
    object.insert("_name_or_path".into(), model.name.as_str().into());
    for left_out in &model.left_out {
        object.insert(section_of(*left_out).into(), Object::new().into());
    }
    object
}

/// The family by `model_type`, which a nested section may inherit from the whole file.
fn family<'a>(text: &Keys<'a>, whole: &Keys<'a>) -> Result<(Family, Keys<'a>), ModelError> {
    let (keys, model_type) = match (text.word("model_type")?, whole.word("model_type")?) {
        (Some(own), _) => (text, own),
        (None, Some(shared)) => (whole, shared),
        (None, None) => return Err(ModelError::NoType { place: whole.place("model_type") }),
    };
    let family = Family::of_model_type(model_type).ok_or_else(|| ModelError::UnknownType {
        model_type: model_type.to_owned(),
        nearest: nearest(model_type, Family::model_types()),
        place: keys.place("model_type"),
    })?;
    Ok((family, text.clone().inside(whole).of_type(model_type, dialect::defaults(family))))
}

fn name(whole: &Keys<'_>, family: Family) -> String {
    let given = whole.word("_name_or_path").ok().flatten();
    given.filter(|name| !name.is_empty()).unwrap_or(family.model_type()).to_owned()
}

fn left_out(outer: &Object) -> Vec<LeftOut> {
    let is_described = |part: &LeftOut| outer.get(section_of(*part)).is_some_and(Value::is_object);
    [LeftOut::Vision, LeftOut::Audio].into_iter().filter(is_described).collect()
}

fn section_of(part: LeftOut) -> &'static str {
    match part {
        LeftOut::Vision => "vision_config",
        LeftOut::Audio => "audio_config",
    }
}

/// Adds the line of the most likely key to a flaw of the shape.
fn locate(error: ModelError, keys: &Keys<'_>) -> ModelError {
    match error {
        ModelError::Inconsistent { flaw, place: None } => inconsistent(flaw, keys),
        other => other,
    }
}

fn inconsistent(flaw: Flaw, keys: &Keys<'_>) -> ModelError {
    let place = keys.place_of_any(suspects(&flaw));
    ModelError::Inconsistent { flaw, place: Some(place) }
}

fn suspects(flaw: &Flaw) -> &'static [&'static str] {
    match flaw {
        Flaw::UnevenHeads { .. } => &["num_attention_heads", "n_head", "n_heads"],
        Flaw::UnevenKvHeads { .. } => &["num_key_value_heads", "kv_n_heads"],
        Flaw::TooFewExperts { .. } => &["num_experts_per_tok", "experts_per_token"],
        Flaw::LayerListLength { .. } => &["layer_types", "no_rope_layers"],
        Flaw::OutOfRange { .. } | Flaw::TooLarge { .. } => &[],
    }
}

/// An error when a list's length is not the number of layers.
fn expect_per_layer(keys: &Keys<'_>, listed: usize, layers: u64) -> Result<(), ModelError> {
    let listed = listed as u64;
    if listed == layers { Ok(()) } else { Err(inconsistent(Flaw::LayerListLength { listed, layers }, keys)) }
}

/// The head size that follows from the width when none is given.
fn even_head_dim(keys: &Keys<'_>, hidden: u64, heads: u64) -> Result<u64, ModelError> {
    if hidden.is_multiple_of(heads) {
        Ok(hidden / heads)
    } else {
        Err(inconsistent(Flaw::UnevenHeads { hidden, heads }, keys))
    }
}
