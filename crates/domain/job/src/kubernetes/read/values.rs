//! Texts, numbers and quantities as manifests write them.

use std::collections::BTreeMap;

use bedplate_document::kubernetes;
use serde_json::Value;

pub(super) fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

pub(super) fn texts(value: &Value) -> BTreeMap<String, String> {
    let pairs = value.as_object().into_iter().flatten();
    pairs.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

pub(super) fn count(value: &Value, usual: u32) -> Result<u32, String> {
    match value {
        Value::Null => Ok(usual),
        given => given
            .as_u64()
            .and_then(|number| u32::try_from(number).ok())
            .ok_or_else(|| format!("{given} is not a number of pods")),
    }
}

/// `8`, `"8"`, `"500m"`, `"64Gi"`, `"2G"`.
pub(super) fn quantity(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => kubernetes::quantity(&number.to_string()),
        given => kubernetes::quantity(given.as_str()?),
    }
}

/// The text that Kubernetes makes of one, apart from variables, which stay.
pub(super) fn unescaped(text: &str) -> String {
    text.replace("$$", "$")
}
