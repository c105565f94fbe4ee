//! Texts, numbers and quantities as manifests write them.

use std::collections::BTreeMap;

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

/// No pod has more bytes of anything.
const MOST: f64 = 1e18;

/// `8`, `"8"`, `"500m"`, `"64Gi"`, `"2G"`.
pub(super) fn quantity(value: &Value) -> Option<f64> {
    const UNITS: [(&str, f64); 13] = [
        ("Ki", 1024.0),
        ("Mi", 1_048_576.0),
        ("Gi", 1_073_741_824.0),
        ("Ti", 1_099_511_627_776.0),
        ("Pi", 1_125_899_906_842_624.0),
        ("n", 1e-9),
        ("u", 1e-6),
        ("m", 1e-3),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("T", 1e12),
        ("P", 1e15),
    ];
    if let Some(number) = value.as_f64() {
        return Some(number).filter(|number| (0.0..=MOST).contains(number));
    }
    let text = value.as_str()?;
    let unit = UNITS.iter().find_map(|(letters, unit)| Some((text.strip_suffix(letters)?, *unit)));
    let (digits, unit) = unit.unwrap_or((text, 1.0));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let number = digits.parse::<f64>().ok().filter(|_| is_number(digits))?;
    Some(number * unit).filter(|number| *number <= MOST)
}

/// The text that Kubernetes makes of one, apart from variables, which stay.
pub(super) fn unescaped(text: &str) -> String {
    text.replace("$$", "$")
}
