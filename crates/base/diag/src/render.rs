//! Diagnostics for people and for programs. No colour: meaning is in the words.

use std::error::Error;

use serde_json::{Value, json};

use crate::{Diagnostic, Place};

/// The text for a person, ending in a newline:
///
/// ```text
/// error[catalog/bad-figure]: memory of accelerator `mi300x` is not a size
///   in   overlay.toml:3:10: memory = "192"
///   why  `192` has no unit; a size reads like `80 GB`
/// help:  write the unit, as in `memory = "192 GB"`
/// ```
pub fn render_text(diagnostic: &dyn Diagnostic) -> String {
    let page = diagnostic.page();
    let mut text = format!("error[{}]: {diagnostic}\n", page.code);
    if let Some(place) = diagnostic.place() {
        text += &format!("  in   {place}\n");
    }
    for cause in causes(diagnostic) {
        text += &format!("  why  {cause}\n");
    }
    text + &format!("help:  {}\n", help(diagnostic))
}

/// The same as JSON: `{"error": {"code", "class", "message", "place", "causes", "help"}}`, and `reason` in a refusal.
pub fn render_json(diagnostic: &dyn Diagnostic) -> Value {
    let page = diagnostic.page();
    let mut json = json!({
        "error": {
            "code": page.code,
            "class": page.class.name(),
            "message": diagnostic.to_string(),
            "place": diagnostic.place().map(place_json),
            "causes": causes(diagnostic),
            "help": help(diagnostic),
        }
    });
    if let Some(reason) = diagnostic.reason() {
        json["error"]["reason"] = json!(reason);
    }
    json
}

fn place_json(place: &Place) -> Value {
    json!({ "file": place.file, "line": place.line, "column": place.column, "text": place.text })
}

fn help(diagnostic: &dyn Diagnostic) -> String {
    diagnostic.help().unwrap_or_else(|| diagnostic.page().remedy.to_owned())
}

fn causes(diagnostic: &dyn Diagnostic) -> Vec<String> {
    let mut causes = Vec::new();
    let mut source: Option<&(dyn Error + 'static)> = diagnostic.source();
    while let Some(cause) = source {
        causes.push(cause.to_string());
        source = cause.source();
    }
    causes
}
