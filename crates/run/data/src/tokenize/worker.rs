//! One worker: takes a portion apart into documents and encodes them.

use bedplate_diag::Place;
use serde_json::Value;

use super::TokenizeOptions;
use crate::chat::{ChatTemplate, Message};
use crate::digest::Digest;
use crate::error::DataError;
use crate::input::{Portion, paragraphs, record};
use crate::tokenizer::{Encoder, Tokenizer};
use bedplate_random::mix;

/// Documents of a portion behind one another.
#[derive(Debug, Default)]
pub(super) struct Encoded {
    pub(super) ids: Vec<u32>,
    /// Which tokens count in the loss; empty for texts, where all do.
    pub(super) counts: Vec<bool>,
    pub(super) documents: Vec<EncodedDocument>,
}

#[derive(Debug)]
pub(super) struct EncodedDocument {
    pub(super) end: usize,
    pub(super) bytes: u64,
    pub(super) is_held_out: bool,
}

pub(super) struct Worker<'a> {
    encoder: Encoder<'a>,
    template: Option<&'a ChatTemplate>,
    options: &'a TokenizeOptions,
}

impl<'a> Worker<'a> {
    pub(super) fn new(
        tokenizer: &'a Tokenizer,
        template: Option<&'a ChatTemplate>,
        options: &'a TokenizeOptions,
    ) -> Self {
        Self { encoder: tokenizer.encoder(), template, options }
    }

    pub(super) fn encode(&mut self, portion: &Portion) -> Result<Encoded, DataError> {
        let mut encoded = Encoded::default();
        match portion {
            Portion::Texts(texts) => texts.iter().try_for_each(|text| self.add_text(text, &mut encoded))?,
            Portion::Paragraphs(text) => {
                paragraphs(text).try_for_each(|text| self.add_text(text, &mut encoded))?;
            }
            Portion::Lines { file, first_line, text } => {
                for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
                    let place = || record::place(file, first_line + at, line);
                    self.add_line(line, &place, &mut encoded)?;
                }
            }
        }
        Ok(encoded)
    }

    fn add_text(&mut self, text: &str, encoded: &mut Encoded) -> Result<(), DataError> {
        if self.template.is_some() {
            let remedy = "give conversations as JSON lines, with `messages` or `prompt` and `response`";
            return Err(DataError::BadChoice {
                what: "plain text holds no conversations".to_owned(),
                remedy,
            });
        }
        self.encoder.encode(text, &mut encoded.ids)?;
        self.end_document(text, encoded);
        Ok(())
    }

    fn add_line(
        &mut self,
        line: &str,
        place: &dyn Fn() -> Place,
        encoded: &mut Encoded,
    ) -> Result<(), DataError> {
        let bad = |reason: String| DataError::BadRecord { reason, place: place() };
        let record: Value = serde_json::from_str(line).map_err(|error| {
            bad(format!(
                "it is not JSON: {}",
                error.to_string().split(" at line ").next().unwrap_or_default()
            ))
        })?;
        match self.template {
            None => self.add_text(record::text_of(&record, &self.options.field).map_err(bad)?, encoded),
            Some(template) => {
                let messages = conversation_of(&record).map_err(bad)?;
                let (ids, counts) = (&mut encoded.ids, &mut encoded.counts);
                template.encode(&messages, &mut self.encoder, ids, counts).map_err(|error| match error {
                    DataError::BadTemplate { reason } => bad(reason),
                    other => other,
                })?;
                self.end_document(line, encoded);
                Ok(())
            }
        }
    }

    fn end_document(&self, text: &str, encoded: &mut Encoded) {
        let draw = mix(Digest::of(text.as_bytes()).0) as f64 / 2f64.powi(64);
        let is_held_out = draw < self.options.held_out;
        encoded.documents.push(EncodedDocument {
            end: encoded.ids.len(),
            bytes: text.len() as u64,
            is_held_out,
        });
    }
}

/// `messages`, or `prompt` with `response` or `completion`.
fn conversation_of(record: &Value) -> Result<Vec<Message>, String> {
    if let Some(messages) = record.get("messages") {
        return serde_json::from_value(messages.clone())
            .map_err(|error| format!("its `messages` are wrong: {error}"));
    }
    let text = |key: &str| record.get(key).and_then(Value::as_str);
    match (text("prompt"), text("response").or_else(|| text("completion"))) {
        (Some(prompt), Some(response)) => {
            Ok(vec![Message::new("user", prompt), Message::new("assistant", response)])
        }
        _ => Err("it has neither `messages` nor `prompt` and `response`".to_owned()),
    }
}
