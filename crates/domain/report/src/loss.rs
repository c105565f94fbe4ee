//! A loss in JSON, which has no word for what is no number.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Number(f64),
    Word(String),
}

pub(crate) fn serialize<S: Serializer>(loss: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
    match loss {
        Some(loss) if !loss.is_finite() => "nan".serialize(serializer),
        loss => loss.serialize(serializer),
    }
}

/// Python's words and ours; any other is no loss.
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    Ok(match Option::<Written>::deserialize(deserializer)? {
        Some(Written::Number(loss)) => Some(loss),
        Some(Written::Word(word)) => {
            word.parse().ok().map(|loss: f64| if loss.is_finite() { loss } else { f64::NAN })
        }
        None => None,
    })
}
