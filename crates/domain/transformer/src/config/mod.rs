//! The Hugging Face `config.json` format: read into a shape, written from one.
//!
//! Families with learned positions or ALiBi have a module each; all rotary families are rows of one
//! table in `dialect`. `known` lists every key and what becomes of it; a key that is not honoured is remarked upon.

mod bloom;
mod dialect;
mod gpt2;
mod keys;
mod known;
mod latent;
mod mixture;
mod mpt;
mod nemotron_h;
mod reach;
mod recurrent;
mod remark;
mod rotary;
mod vision;

use bedplate_diag::{Source, nearest};
use serde_json::{Map, Value};

pub use self::keys::Keys;
pub use self::known::Fate;
pub use self::remark::{Remark, RemarkReason};
use crate::{Family, Flaw, LeftOut, ModelError, Shape, Transformer, Vision};

type Object = Map<String, Value>;

/// Reads the shape in a `config.json`. The language model inside a multimodal one is found under `text_config`.
pub fn from_config(source: Source<'_>) -> Result<Transformer, ModelError> {
    Configuration::parse(source)?.transformer()
}

/// A `config.json` that has been parsed.
#[derive(Debug, Clone)]
pub struct Configuration<'a> {
    source: Source<'a>,
    whole: Object,
}

impl<'a> Configuration<'a> {
    pub fn parse(source: Source<'a>) -> Result<Self, ModelError> {
        let value: Value = serde_json::from_str(source.text).map_err(|error| ModelError::Malformed {
            place: source.place_at(error.line(), error.column()),
            source: error,
        })?;
        match value {
            Value::Object(whole) => Ok(Self { source, whole }),
            other => Err(ModelError::NotAnObject { found: keys::kind(&other), place: source.place_at(1, 1) }),
        }
    }

    /// The shape that it describes.
    pub fn transformer(&self) -> Result<Transformer, ModelError> {
        let (family, keys) = self.language_model()?;
        let mut shape = read(&keys, family)?;
        shape.name = name(&self.keys_of_whole(), family);
        shape.left_out = left_out(&self.whole);
        Transformer::new(shape).map_err(|error| locate(error, &keys))
    }

    /// The vision encoder in front of the language model, of the types whose encoders are known.
    pub fn vision(&self) -> Result<Option<Vision>, ModelError> {
        vision::read(&self.keys_of_whole(), &self.transformer()?)
    }

    /// The family and the keys of the language model: those of the file, or of its `text_config`.
    pub fn language_model(&self) -> Result<(Family, Keys<'_>), ModelError> {
        let whole = self.keys_of_whole();
        let text = whole.section("text_config")?;
        family(text.as_ref().unwrap_or(&whole), &whole)
    }

    /// The keys of the language model that are not honoured.
    pub fn remarks(&self) -> Result<Vec<Remark>, ModelError> {
        let (family, keys) = self.language_model()?;
        Ok(remark::remarks(&keys, family))
    }

    /// The configuration of the language model alone, as a file of its own.
    pub fn standalone_json(&self) -> Result<String, ModelError> {
        let (family, keys) = self.language_model()?;
        if !self.whole.get("text_config").is_some_and(Value::is_object) {
            return Ok(self.source.text.to_owned());
        }
        let mut object = keys.object().clone();
        object.insert("model_type".into(), family.model_type().into());
        object.insert("tie_word_embeddings".into(), self.transformer()?.has_tied_embeddings.into());
        Ok(format!("{:#}\n", Value::Object(object)))
    }

    fn keys_of_whole(&self) -> Keys<'_> {
        Keys::new(self.source, &self.whole)
    }
}

/// What becomes of a key in the configurations of a family; `None` where they have no such key.
pub fn fate_of_key(family: Family, key: &str) -> Option<Fate> {
    known::fate(family, key)
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
        Family::NemotronH => nemotron_h::read(keys),
        rotary => rotary::read(keys, rotary, &dialect::of(rotary)),
    }
}

fn write(model: &Transformer) -> Object {
    let mut object = match model.family {
        Family::Gpt2 => gpt2::write(model),
        Family::Bloom => bloom::write(model),
        Family::Mpt => mpt::write(model),
        Family::NemotronH => nemotron_h::write(model),
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
    let keys = text.clone().inside(whole);
    let keys = keys.of_type(model_type, dialect::defaults(family), known::aliases(family));
    keys.expect_one_value_each()?;
    Ok((family, keys))
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
        Flaw::UnevenKvHeads { .. } => {
            &["num_key_value_heads", "kv_n_heads", "n_groups", "linear_num_key_heads"]
        }
        Flaw::TooFewExperts { .. } => &["num_experts_per_tok", "experts_per_token"],
        Flaw::LayerListLength { .. } => &["layer_types", "no_rope_layers", "hybrid_override_pattern"],
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
