//! Values as YAML for people: what `kubectl` reads, in the order in which it was made.

use std::fmt::Write;

use serde_json::{Map, Value};

use crate::quote;

/// Objects as one file, with `---` between them.
pub fn to_yaml(objects: &[Value]) -> String {
    let documents: Vec<String> = objects.iter().map(document).collect();
    documents.join("---\n")
}

fn document(value: &Value) -> String {
    let mut text = String::new();
    match value {
        Value::Object(object) if !object.is_empty() => add_object(&mut text, object, 0),
        Value::Array(items) if !items.is_empty() => add_items(&mut text, items, 0),
        other => push(&mut text, format_args!("{}\n", scalar(other))),
    }
    text
}

fn push(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    text.write_fmt(arguments).expect("writing to a string cannot fail");
}

fn add_object(text: &mut String, object: &Map<String, Value>, depth: usize) {
    for (at, (key, value)) in object.iter().enumerate() {
        // The first key of a list's item stands behind its hyphen.
        if at > 0 || !text.ends_with("- ") {
            push(text, format_args!("{:1$}", "", depth));
        }
        push(text, format_args!("{}:", plain_or_quoted(key)));
        match value {
            Value::Object(inner) if !inner.is_empty() => {
                text.push('\n');
                add_object(text, inner, depth + 2);
            }
            Value::Array(items) if !items.is_empty() => {
                text.push('\n');
                add_items(text, items, depth);
            }
            Value::String(block) if is_block(block) => add_block(text, block, depth + 2),
            other => push(text, format_args!(" {}\n", scalar(other))),
        }
    }
}

fn add_items(text: &mut String, items: &[Value], depth: usize) {
    for item in items {
        push(text, format_args!("{:1$}- ", "", depth));
        match item {
            Value::Object(inner) if !inner.is_empty() => add_object(text, inner, depth + 2),
            Value::Array(inner) if !inner.is_empty() => {
                text.push('\n');
                add_items(text, inner, depth + 2);
            }
            Value::String(block) if is_block(block) => {
                text.pop();
                add_block(text, block, depth + 2);
            }
            other => push(text, format_args!("{}\n", scalar(other))),
        }
    }
}

/// Several lines that can be written as they are.
fn is_block(text: &str) -> bool {
    let is_printable = |letter: char| letter == '\n' || (' '..='~').contains(&letter);
    text.contains('\n')
        && text.chars().all(is_printable)
        && !text.starts_with([' ', '\n'])
        && !text.ends_with("\n\n")
        && text.lines().all(|line| line.is_empty() || !line.trim().is_empty())
}

fn add_block(text: &mut String, block: &str, depth: usize) {
    text.push_str(if block.ends_with('\n') { " |\n" } else { " |-\n" });
    for line in block.lines() {
        match line.is_empty() {
            true => text.push('\n'),
            false => push(text, format_args!("{:2$}{}\n", "", line, depth)),
        }
    }
}

fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) => plain_or_quoted(text),
        Value::Object(_) => "{}".to_owned(),
        Value::Array(_) => "[]".to_owned(),
        other => other.to_string(),
    }
}

/// Without quotation marks only what no reader takes for anything but a text. A JSON string is one of YAML.
fn plain_or_quoted(text: &str) -> String {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
    let words = ["true", "false", "yes", "no", "on", "off", "null", "y", "n"];
    let is_plain = text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '/')
        && text.bytes().all(is_word)
        && !words.contains(&text.to_ascii_lowercase().as_str());
    if is_plain { text.to_owned() } else { quote::yaml(text) }
}
