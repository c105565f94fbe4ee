//! What can be wrong with a model's name or description.

use bedplate_diag::{Diagnostic, Page, Place, pages};

use crate::{Family, Flaw};

#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error("no built-in model is called `{name}`")]
    UnknownName { name: String, nearest: Vec<&'static str> },
    #[error("cannot parse the model configuration")]
    Malformed { place: Place, source: serde_json::Error },
    #[error("a model configuration is a JSON object, but this is {found}")]
    NotAnObject { found: &'static str, place: Place },
    #[error("model type `{model_type}` is not known")]
    UnknownType { model_type: String, nearest: Option<&'static str>, place: Place },
    #[error("the configuration has no `model_type`, which says how to read its keys")]
    NoType { place: Place },
    #[error("the configuration has no `{key}`, which model type `{model_type}` needs")]
    MissingKey { key: &'static str, model_type: String, place: Place },
    #[error("`{key}` must be {expected}, but is {found}")]
    WrongValue { key: &'static str, expected: String, found: String, place: Place },
    #[error("the model cannot be built: {flaw}")]
    Inconsistent { flaw: Flaw, place: Option<Place> },
    #[error("model `{name}` cannot be written as a `{family}` configuration")]
    CannotExport { name: String, family: Family },
}

pages! { pub PAGES "model":
    UNKNOWN_NAME "unknown-name" User
        "Bedplate carries the shapes of common models under short names such as `llama-3.1-8b` and under their Hugging Face names. The requested name is not among them. Nothing is fetched from the Hugging Face hub."
        "list the names with `bedplate model list`, or give the path of the model's config.json"
    MALFORMED "malformed-json" User
        "The model configuration is not valid JSON, or nests deeper than 128 levels."
        "correct the JSON at the line shown, or download the model's config.json again"
    NOT_AN_OBJECT "not-an-object" User
        "A Hugging Face config.json is one JSON object whose keys describe the model. The file holds another kind of JSON value."
        "give the config.json of the model, not its index, tokenizer or list of files"
    UNKNOWN_TYPE "unknown-type" User
        "The key `model_type` tells which keys describe the shape and what they mean. Bedplate does not know this type. Encoders, and state-space models other than `nemotron_h` and `qwen3_next`, are not described."
        "if the model is built like a known one, copy its config.json and set `model_type` to that one"
    MISSING_KEY "missing-key" User
        "The configuration lacks a key that the shape of the model depends on. Where released configurations rely on a default of the transformers library, that default is used; other keys are never guessed."
        "add the key to the configuration"
    WRONG_VALUE "wrong-value" User
        "A key of the configuration has a value of the wrong type, or a size that is zero, negative, fractional or absurdly large."
        "correct the value at the line shown"
    INCONSISTENT "inconsistent-shape" User
        "Each size is possible, but together they describe no model: heads that do not divide, more experts per token than experts, lists of the wrong length, or more than 10^18 parameters."
        "compare the sizes with the model's published config.json"
    CANNOT_EXPORT "cannot-export" User
        "The shape has a feature for which the configuration format of its family has no key, so a file would describe another model."
        "choose a family whose configurations have that feature"
}

impl Diagnostic for ModelError {
    fn page(&self) -> &'static Page {
        match self {
            ModelError::UnknownName { .. } => &UNKNOWN_NAME,
            ModelError::Malformed { .. } => &MALFORMED,
            ModelError::NotAnObject { .. } => &NOT_AN_OBJECT,
            ModelError::UnknownType { .. } => &UNKNOWN_TYPE,
            ModelError::NoType { .. } | ModelError::MissingKey { .. } => &MISSING_KEY,
            ModelError::WrongValue { .. } => &WRONG_VALUE,
            ModelError::Inconsistent { .. } => &INCONSISTENT,
            ModelError::CannotExport { .. } => &CANNOT_EXPORT,
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            ModelError::UnknownName { nearest, .. } => did_you_mean(nearest),
            ModelError::UnknownType { nearest, .. } => Some(known_types(*nearest)),
            ModelError::NoType { .. } => Some(known_types(None)),
            ModelError::MissingKey { key, .. } => Some(format!("add `\"{key}\": ...` to the configuration")),
            _ => None,
        }
    }

    fn place(&self) -> Option<&Place> {
        match self {
            ModelError::Malformed { place, .. }
            | ModelError::NotAnObject { place, .. }
            | ModelError::UnknownType { place, .. }
            | ModelError::NoType { place }
            | ModelError::MissingKey { place, .. }
            | ModelError::WrongValue { place, .. } => Some(place),
            ModelError::Inconsistent { place, .. } => place.as_ref(),
            ModelError::UnknownName { .. } | ModelError::CannotExport { .. } => None,
        }
    }
}

fn did_you_mean(nearest: &[&str]) -> Option<String> {
    let names: Vec<String> = nearest.iter().map(|name| format!("`{name}`")).collect();
    (!names.is_empty()).then(|| format!("did you mean {}?", names.join(" or ")))
}

fn known_types(nearest: Option<&str>) -> String {
    let known: Vec<&str> = Family::model_types().collect();
    let known = format!("known types: {}", known.join(", "));
    match nearest {
        Some(nearest) => format!("did you mean `{nearest}`? {known}"),
        None => known,
    }
}
