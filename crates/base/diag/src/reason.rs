//! Answers of "no", "not now" and "it ended because", as data with a sentence beside.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Why something waits, ended or is refused. Programs decide by the code and the fields, people read the text.
///
/// In JSON the fields stand beside the two: `{"code": "node_lost", "text": "node n3 was lost", "node": "n3"}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    /// Stable across releases, lower case: `node_lost`.
    pub code: String,
    /// A sentence without its full stop.
    pub text: String,
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}

impl Reason {
    pub fn new(code: &str, text: impl Into<String>) -> Self {
        Self { code: code.to_owned(), text: text.into(), fields: Map::new() }
    }

    /// The same with one more field.
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.fields.insert(name.to_owned(), value.into());
        self
    }

    /// From an enum of reasons: its name and fields as serde writes them with the tag `code`, its text as it displays.
    pub fn of<T: Serialize + fmt::Display>(reason: &T) -> Self {
        Self::with_text(reason, reason.to_string())
    }

    /// The same where the sentence needs more than the enum knows.
    pub fn with_text<T: Serialize>(reason: &T, text: String) -> Self {
        let mut fields = match serde_json::to_value(reason) {
            Ok(Value::Object(fields)) => fields,
            _ => Map::new(),
        };
        let code = fields.shift_remove("code").and_then(|code| code.as_str().map(str::to_owned));
        Self { code: code.unwrap_or_else(|| "other".to_owned()), text, fields }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    #[serde(tag = "code", rename_all = "snake_case")]
    enum Why {
        NodeLost { node: &'static str },
        Held,
    }

    impl fmt::Display for Why {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            match self {
                Why::NodeLost { node } => write!(f, "node {node} was lost"),
                Why::Held => write!(f, "it is held"),
            }
        }
    }

    #[test]
    fn an_enum_becomes_code_fields_and_text() {
        let reason = Reason::of(&Why::NodeLost { node: "n3" });
        assert_eq!(reason, Reason::new("node_lost", "node n3 was lost").with("node", "n3"));
        let json = r#"{"code":"node_lost","text":"node n3 was lost","node":"n3"}"#;
        assert_eq!(serde_json::to_string(&reason).unwrap(), json);
        assert_eq!(serde_json::from_str::<Reason>(json).unwrap(), reason);
        assert_eq!(Reason::of(&Why::Held), Reason::new("held", "it is held"));
    }
}
