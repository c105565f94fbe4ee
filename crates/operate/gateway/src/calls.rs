//! Calls of tools in the text of an answer, in the styles that models were trained on.
//!
//! Text is passed on as it comes until a call may begin; a call is parsed when it is complete. What turns out not to be a call is text.

use serde_json::{Map, Value, json};

/// How a model writes calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallStyle {
    /// `<tool_call>{"name": …, "arguments": …}</tool_call>`: Hermes, Qwen.
    Hermes,
    /// The whole answer is `{"name": …, "parameters": …}`: Llama 3.
    Llama,
    /// `[TOOL_CALLS]` and a list, or a name and `[ARGS]`: Mistral.
    Mistral,
    /// The whole answer is a list of calls: what we make a model write that must call.
    Forced,
}

impl CallStyle {
    /// By what a chat template writes.
    pub(crate) fn of_template(source: &str) -> Self {
        if source.contains("[TOOL_CALLS]") {
            CallStyle::Mistral
        } else if source.contains("python_tag")
            || (source.contains("\"parameters\"") && source.contains("ipython"))
        {
            CallStyle::Llama
        } else {
            CallStyle::Hermes
        }
    }
}

/// A call of a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FunctionCall {
    pub(crate) name: String,
    /// JSON.
    pub(crate) arguments: String,
}

/// What a piece of text turned out to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CallPart {
    Text(String),
    Call(FunctionCall),
}

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const MISTRAL: &str = "[TOOL_CALLS]";
const PYTHON: &str = "<|python_tag|>";

/// Separates text and calls.
#[derive(Debug)]
pub(crate) struct CallSearch {
    style: CallStyle,
    held: String,
    state: Place,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Nothing but white space so far.
    Beginning,
    InText,
    InCall,
    /// White space between calls is no text.
    AfterCall,
}

impl CallSearch {
    pub(crate) fn new(style: CallStyle) -> Self {
        Self { style, held: String::new(), state: Place::Beginning }
    }

    pub(crate) fn push(&mut self, piece: &str) -> Vec<CallPart> {
        self.held.push_str(piece);
        match self.style {
            CallStyle::Hermes => self.push_hermes(),
            CallStyle::Mistral => self.push_marked(MISTRAL),
            CallStyle::Llama | CallStyle::Forced => self.push_whole(),
        }
    }

    /// What was held back, when no more text comes.
    pub(crate) fn finish(&mut self) -> Vec<CallPart> {
        let held = std::mem::take(&mut self.held);
        let calls = match (self.state, self.style) {
            (Place::InCall, CallStyle::Hermes) => call_of(held.trim()).map(|call| vec![call]),
            (Place::InCall, CallStyle::Mistral) => mistral(&held),
            (Place::InCall, CallStyle::Llama) => llama(&held),
            (Place::InCall, CallStyle::Forced) => list(&held),
            _ => None,
        };
        match calls {
            Some(calls) => calls.into_iter().map(CallPart::Call).collect(),
            None => self.as_text(held),
        }
    }

    /// Text after all, with the mark that made it look like a call.
    fn as_text(&self, held: String) -> Vec<CallPart> {
        let mark = match (self.state, self.style) {
            (Place::InCall, CallStyle::Hermes) => OPEN,
            (Place::InCall, CallStyle::Mistral) => MISTRAL,
            _ => "",
        };
        let text = format!("{mark}{held}");
        if text.is_empty() { Vec::new() } else { vec![CallPart::Text(text)] }
    }

    fn push_hermes(&mut self) -> Vec<CallPart> {
        let mut parts = Vec::new();
        loop {
            if self.state == Place::AfterCall {
                self.held = self.held.trim_start().to_owned();
                if self.held.is_empty() {
                    return parts;
                }
            }
            if self.state != Place::InCall {
                let (text, is_call) = self.take_text_before(OPEN);
                if !text.is_empty() {
                    self.state = Place::InText;
                    parts.push(CallPart::Text(text));
                }
                if !is_call {
                    return parts;
                }
                self.state = Place::InCall;
            }
            let Some(at) = self.held.find(CLOSE) else { return parts };
            let rest = self.held.split_off(at + CLOSE.len());
            let inside = std::mem::replace(&mut self.held, rest);
            (self.state, _) = match call_of(inside[..at].trim()) {
                Some(call) => (Place::AfterCall, parts.push(CallPart::Call(call))),
                None => (Place::InText, parts.push(CallPart::Text(format!("{OPEN}{inside}")))),
            };
        }
    }

    /// One mark, and calls up to the end.
    fn push_marked(&mut self, mark: &str) -> Vec<CallPart> {
        if self.state == Place::InCall {
            return Vec::new();
        }
        let (text, is_call) = self.take_text_before(mark);
        if is_call {
            self.state = Place::InCall;
        }
        if text.is_empty() { Vec::new() } else { vec![CallPart::Text(text)] }
    }

    /// The whole answer is calls, or text; its beginning decides.
    fn push_whole(&mut self) -> Vec<CallPart> {
        if self.state == Place::Beginning {
            let begun = self.held.trim_start();
            let opening = if self.style == CallStyle::Forced { "[" } else { "{" };
            if begun.is_empty() || (PYTHON.starts_with(begun) && self.style == CallStyle::Llama) {
                return Vec::new();
            }
            let is_call =
                begun.starts_with(opening) || (self.style == CallStyle::Llama && begun.starts_with(PYTHON));
            self.state = if is_call { Place::InCall } else { Place::InText };
        }
        match self.state {
            Place::InText => vec![CallPart::Text(std::mem::take(&mut self.held))],
            _ => Vec::new(),
        }
    }

    /// Text up to a mark, and whether the mark is there; what may be its beginning stays.
    fn take_text_before(&mut self, mark: &str) -> (String, bool) {
        if let Some(at) = self.held.find(mark) {
            let rest = self.held.split_off(at + mark.len());
            let mut text = std::mem::replace(&mut self.held, rest);
            text.truncate(at);
            return (text, true);
        }
        let kept = (1..mark.len()).rev().find(|length| self.held.ends_with(&mark[..*length])).unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - kept);
        (std::mem::replace(&mut self.held, rest), false)
    }
}

fn call_of(text: &str) -> Option<FunctionCall> {
    call_from(&serde_json::from_str(text).ok()?)
}

/// `{"name": …, "arguments": …}`, with `parameters` as another word.
fn call_from(value: &Value) -> Option<FunctionCall> {
    let object: &Map<String, Value> = value.as_object()?;
    let name = object.get("name")?.as_str()?.to_owned();
    let arguments = object.get("arguments").or_else(|| object.get("parameters"));
    let arguments = match arguments {
        // Some models write the arguments as a text of JSON.
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
        None => "{}".to_owned(),
    };
    Some(FunctionCall { name, arguments })
}

fn list(text: &str) -> Option<Vec<FunctionCall>> {
    let values: Vec<Value> = serde_json::from_str(text.trim()).ok()?;
    values.iter().map(call_from).collect::<Option<Vec<FunctionCall>>>().filter(|calls| !calls.is_empty())
}

/// A list, or `name[ARGS]{…}` once or several times.
fn mistral(text: &str) -> Option<Vec<FunctionCall>> {
    if let Some(calls) = list(text) {
        return Some(calls);
    }
    let one = |part: &str| {
        let (name, arguments) =
            part.split_once("[ARGS]").or_else(|| part.find('{').map(|at| part.split_at(at)))?;
        let arguments: Value = serde_json::from_str(arguments.trim()).ok()?;
        let name = name.trim();
        (!name.is_empty()).then(|| FunctionCall { name: name.to_owned(), arguments: arguments.to_string() })
    };
    text.split(MISTRAL).map(one).collect()
}

/// One object or several, divided by semicolons.
fn llama(text: &str) -> Option<Vec<FunctionCall>> {
    let text = text.trim().strip_prefix(PYTHON).unwrap_or(text.trim());
    let mut calls = Vec::new();
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let mut rest = text;
    while !rest.trim().is_empty() {
        calls.push(call_from(&values.next()?.ok()?)?);
        rest = rest[values.byte_offset()..].trim_start().trim_start_matches(';');
        values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
    }
    (!calls.is_empty()).then_some(calls)
}

/// The schema of a list of calls of these functions.
pub(crate) fn schema_of_calls(functions: &[(String, Value)], most: Option<u32>) -> Value {
    let one = |(name, parameters): &(String, Value)| {
        json!({ "type": "object", "properties": { "name": { "const": name }, "arguments": parameters },
                "required": ["name", "arguments"], "additionalProperties": false })
    };
    let items: Vec<Value> = functions.iter().map(one).collect();
    let mut schema = json!({ "type": "array", "minItems": 1, "items": { "anyOf": items } });
    if let Some(most) = most {
        schema["maxItems"] = most.into();
    }
    schema
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(name: &str, arguments: &str) -> CallPart {
        CallPart::Call(FunctionCall { name: name.into(), arguments: arguments.into() })
    }

    fn text(text: &str) -> CallPart {
        CallPart::Text(text.into())
    }

    /// All parts, neighbouring texts joined, of an answer that comes in pieces of so many bytes.
    fn parts(style: CallStyle, answer: &str, size: usize) -> Vec<CallPart> {
        let mut search = CallSearch::new(style);
        let characters: Vec<char> = answer.chars().collect();
        let mut all: Vec<CallPart> = characters
            .chunks(size)
            .flat_map(|piece| search.push(&piece.iter().collect::<String>()))
            .collect();
        all.extend(search.finish());
        let mut joined: Vec<CallPart> = Vec::new();
        for part in all {
            match (joined.last_mut(), part) {
                (Some(CallPart::Text(before)), CallPart::Text(more)) => before.push_str(&more),
                (_, part) => joined.push(part),
            }
        }
        joined
    }

    #[test]
    fn calls_are_found_in_every_style_however_the_text_is_cut() {
        let cases: [(CallStyle, &str, Vec<CallPart>); 14] = [
            (
                CallStyle::Hermes,
                "Let me see.<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>\n<tool_call>{\"name\": \"g\"}</tool_call>",
                vec![text("Let me see."), call("f", "{\"a\":1}"), call("g", "{}")],
            ),
            (CallStyle::Hermes, "a < b <tool_calls", vec![text("a < b <tool_calls")]),
            (CallStyle::Hermes, "<tool_call>no</tool_call> x", vec![text("<tool_call>no</tool_call> x")]),
            (CallStyle::Hermes, "<tool_call>{\"name\": \"f\"}", vec![call("f", "{}")]),
            (CallStyle::Hermes, "<tool_call>{\"na", vec![text("<tool_call>{\"na")]),
            (
                CallStyle::Llama,
                "{\"name\": \"f\", \"parameters\": {\"a\": 1}}; {\"name\": \"g\", \"parameters\": {}}",
                vec![call("f", "{\"a\":1}"), call("g", "{}")],
            ),
            (CallStyle::Llama, "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}", vec![call("f", "{}")]),
            (CallStyle::Llama, "{\"no\": 1}", vec![text("{\"no\": 1}")]),
            (CallStyle::Llama, " <b> {\"name\": \"f\"}", vec![text(" <b> {\"name\": \"f\"}")]),
            (
                CallStyle::Mistral,
                "Hm.[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": 1}}]",
                vec![text("Hm."), call("f", "{\"a\":1}")],
            ),
            (
                CallStyle::Mistral,
                "[TOOL_CALLS]f[ARGS]{\"a\": 1}[TOOL_CALLS]g{}",
                vec![call("f", "{\"a\":1}"), call("g", "{}")],
            ),
            (CallStyle::Mistral, "[TOOL_CALLS]nothing", vec![text("[TOOL_CALLS]nothing")]),
            (
                CallStyle::Forced,
                "[{\"name\": \"f\", \"arguments\": {\"a\": \"é\"}}]",
                vec![call("f", "{\"a\":\"é\"}")],
            ),
            (CallStyle::Forced, "[{\"name\": \"f\", \"argu", vec![text("[{\"name\": \"f\", \"argu")]),
        ];
        for (style, answer, expected) in cases {
            for size in [1, 3, 1000] {
                assert_eq!(parts(style, answer, size), expected, "{answer} by {size}");
            }
        }
    }

    #[test]
    fn templates_tell_the_style() {
        for (source, style) in [
            ("… <tool_call> …", CallStyle::Hermes),
            ("… [TOOL_CALLS] …", CallStyle::Mistral),
            ("… <|python_tag|> …", CallStyle::Llama),
            ("", CallStyle::Hermes),
        ] {
            assert_eq!(CallStyle::of_template(source), style, "{source}");
        }
    }
}
