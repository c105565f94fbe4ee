//! One worker: splits a portion into documents and encodes them.

use super::{Skip, Skipped, TokenizeOptions};
use crate::chat::{Answers, ChatTemplate, tools_of, turns_of};
use crate::digest::Digest;
use crate::error::DataError;
use crate::input::{Portion, paragraphs, record};
use crate::tokenizer::{Encoder, Tokenizer};
use bedplate_random::mix;

/// The concatenated documents of a portion.
#[derive(Debug, Default)]
pub(super) struct Encoded {
    pub(super) ids: Vec<u32>,
    /// Which tokens count in the loss; empty for texts, where all do.
    pub(super) counts: Vec<bool>,
    pub(super) documents: Vec<EncodedDocument>,
    pub(super) answers: Answers,
    pub(super) skipped: Skipped,
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
            Portion::Lines { .. } | Portion::Records { .. } => {
                portion.records().try_for_each(|record| self.add_record(record, &mut encoded))?;
            }
        }
        Ok(encoded)
    }

    fn add_text(&mut self, text: &str, encoded: &mut Encoded) -> Result<(), DataError> {
        if self.template.is_some() {
            let remedy = "give conversations as JSON, with `messages`, `conversations`, `prompt` and `response`, or `instruction` and `output`";
            return Err(DataError::BadChoice {
                what: "plain text holds no conversations".to_owned(),
                remedy,
            });
        }
        self.encoder.encode(text, &mut encoded.ids)?;
        self.end_document(text, encoded);
        Ok(())
    }

    fn add_record(
        &mut self,
        (file, number, line): (&str, usize, &str),
        encoded: &mut Encoded,
    ) -> Result<(), DataError> {
        let bad = |reason: String| DataError::BadRecord { reason, place: record::place(file, number, line) };
        let Some(template) = self.template else {
            let record = record::parse(line).map_err(bad)?;
            return self.add_text(record::text_of(&record, &self.options.field).map_err(bad)?, encoded);
        };
        let read = |record: serde_json::Value| Ok((turns_of(&record)?, tools_of(&record)?));
        let (begin, mut ids) = (encoded.ids.len(), std::mem::take(&mut encoded.ids));
        let encoded_turns = record::parse(line).and_then(read).map_err(bad).and_then(|(turns, tools)| {
            let added =
                template.encode(&turns, tools.as_deref(), &mut self.encoder, &mut ids, &mut encoded.counts);
            added.map_err(|error| match error {
                DataError::BadTemplate { reason } => bad(reason),
                other => other,
            })
        });
        encoded.ids = ids;
        match encoded_turns {
            Ok(answers) => {
                encoded.answers += answers;
                self.end_document(line, encoded);
                Ok(())
            }
            // One odd conversation among many is no reason to give up all of them.
            Err(DataError::BadRecord { reason, place }) => {
                encoded.ids.truncate(begin);
                encoded.counts.truncate(begin);
                encoded.skipped.add(Skip { reason, place });
                Ok(())
            }
            Err(other) => Err(other),
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
