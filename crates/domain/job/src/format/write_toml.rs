//! TOML from the values that JSON has. `null` does not occur in jobs.

use std::fmt::Write;

use bedplate_document::quote;
use serde_json::{Map, Value};

type Object = Map<String, Value>;

/// Tables that read better on the line of their key.
const INLINE: [&str; 2] = ["elastic", "checkpoint_signal"];

pub(super) fn document(object: &Object) -> String {
    let mut text = String::new();
    add_table(&mut text, "", object);
    text
}

/// Plain values first: what follows a table's header belongs to that table.
fn add_table(text: &mut String, path: &str, object: &Object) {
    for (key, value) in object.iter().filter(|(key, value)| !is_section(key, value)) {
        push(text, format_args!("{} = {}\n", written_key(key), written(value)));
    }
    for (key, value) in object.iter().filter(|(key, value)| is_section(key, value)) {
        let path = if path.is_empty() { written_key(key) } else { format!("{path}.{}", written_key(key)) };
        match value {
            Value::Array(tables) => {
                for table in tables.iter().filter_map(Value::as_object) {
                    push(text, format_args!("\n[[{path}]]\n"));
                    add_table(text, &path, table);
                }
            }
            Value::Object(table) => {
                push(text, format_args!("\n[{path}]\n"));
                add_table(text, &path, table);
            }
            _ => {}
        }
    }
}

fn push(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    text.write_fmt(arguments).expect("writing to a string cannot fail");
}

fn is_section(key: &str, value: &Value) -> bool {
    match value {
        Value::Object(_) => !INLINE.contains(&key),
        Value::Array(items) => !items.is_empty() && items.iter().all(Value::is_object),
        _ => false,
    }
}

fn written_key(key: &str) -> String {
    let is_bare =
        !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'));
    if is_bare { key.to_owned() } else { quote::toml(key) }
}

fn written(value: &Value) -> String {
    match value {
        Value::String(text) if is_block(text) => format!("'''\n{text}'''"),
        Value::String(text) => quote::toml(text),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(item).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(object) => {
            let pair = |(key, value): (&String, &Value)| format!("{} = {}", written_key(key), item(value));
            format!("{{ {} }}", object.iter().map(pair).collect::<Vec<_>>().join(", "))
        }
        plain => plain.to_string(),
    }
}

/// A value inside a list or table of one line.
fn item(value: &Value) -> String {
    match value {
        Value::String(text) => quote::toml(text),
        other => written(other),
    }
}

/// Whether a text of several lines can be written as it is.
fn is_block(text: &str) -> bool {
    let is_printable = |c: char| c == '\n' || c == '\t' || !c.is_control();
    text.contains('\n') && text.chars().all(is_printable) && !text.contains("'''") && !text.ends_with('\'')
}
