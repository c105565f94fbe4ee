//! Arguments that are written one by one between tags, as Qwen3-Coder and GLM write them, made an object of JSON.

use serde::de::IgnoredAny;
use serde_json::Value;

/// How a model writes the arguments of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tags {
    pub(super) open: &'static str,
    /// Behind a name.
    pub(super) named: &'static str,
    /// In front of a value, where there is more than that.
    pub(super) value: &'static str,
    pub(super) close: &'static str,
    /// Behind the last one.
    pub(super) end: &'static str,
    /// Whether a value that the schema says nothing of is JSON if it can be.
    pub(super) guesses: bool,
}

pub(super) const CODER: Tags = Tags {
    open: "<parameter=",
    named: ">",
    value: "",
    close: "</parameter>",
    end: "</function>",
    guesses: false,
};

pub(super) const GLM: Tags = Tags {
    open: "<arg_key>",
    named: "</arg_key>",
    value: "<arg_value>",
    close: "</arg_value>",
    end: "</tool_call>",
    guesses: true,
};

/// What a value is written as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    /// JSON where it is some, of these kinds; else text.
    Json {
        or_text: bool,
    },
}

/// What the schema of a function's parameters says of one of them.
pub(super) fn kind_of(parameters: Option<&Value>, name: &str, tags: &Tags) -> Kind {
    let Some(schema) = parameters.and_then(|all| all["properties"].get(name)) else {
        return if tags.guesses { Kind::Json { or_text: false } } else { Kind::Text };
    };
    let mut kinds = Vec::new();
    collect_kinds(schema, &mut kinds, 0);
    match (kinds.is_empty(), kinds.contains(&"string")) {
        (true, _) => Kind::Json { or_text: false },
        (false, true) if kinds.len() == 1 => Kind::Text,
        (false, or_text) => Kind::Json { or_text },
    }
}

fn collect_kinds<'a>(schema: &'a Value, kinds: &mut Vec<&'a str>, depth: usize) {
    let mut add = |kind: &'a str| {
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    };
    match &schema["type"] {
        Value::String(kind) => add(kind),
        Value::Array(listed) => listed.iter().filter_map(Value::as_str).for_each(add),
        _ => {}
    }
    for value in schema["enum"].as_array().into_iter().flatten().chain(schema.get("const")) {
        if schema["type"].is_null() {
            let kind = match value {
                Value::String(_) => "string",
                Value::Null => "null",
                Value::Bool(_) => "boolean",
                Value::Number(_) => "number",
                Value::Array(_) => "array",
                Value::Object(_) => "object",
            };
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
    }
    for of in ["anyOf", "oneOf", "allOf"] {
        for one in schema[of].as_array().into_iter().flatten().filter(|_| depth < 8) {
            collect_kinds(one, kinds, depth + 1);
        }
    }
}

/// A value as JSON, as it is written.
pub(super) fn to_json(text: &str, kind: Kind) -> String {
    let bare = text.trim();
    let Kind::Json { or_text } = kind else { return quoted(text) };
    match bare {
        "True" => return "true".to_owned(),
        "False" => return "false".to_owned(),
        "None" => return "null".to_owned(),
        _ => {}
    }
    let is_text = or_text && bare.starts_with('"');
    if !is_text && serde_json::from_str::<IgnoredAny>(bare).is_ok() { bare.to_owned() } else { quoted(text) }
}

/// A string of JSON.
pub(super) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// The inside of a string of JSON.
pub(super) fn escaped(text: &str) -> String {
    let quoted = quoted(text);
    quoted[1..quoted.len() - 1].to_owned()
}
