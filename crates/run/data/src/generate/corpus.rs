//! Generated documents as a corpus, with a tokenizer trained on them, in one go.

use std::path::Path;

use super::{CorpusKind, generate, generate_conversation};
use crate::chat::ChatTemplate;
use crate::corpus::{Content, CorpusOptions, CorpusWriter, Index};
use crate::error::DataError;
use crate::tokenize::VALIDATION_FOLDER;
use crate::tokenizer::{Encoder, Tokenizer, TrainingOptions, train_tokenizer};

/// Documents used to train a tokenizer; more hardly change it.
const TRAINING_DOCUMENTS: u64 = 2000;

#[derive(Debug, Clone, Copy)]
pub struct GenerateOptions {
    pub kind: CorpusKind,
    /// Whole documents, or conversations made of them.
    pub content: Content,
    pub seed: u64,
    pub documents: u64,
    /// Further documents, for validation; none of them is in the corpus.
    pub validation: u64,
    /// Vocabulary size of the trained tokenizer.
    pub vocabulary: u32,
}

impl Default for GenerateOptions {
    fn default() -> Self {
        Self {
            kind: CorpusKind::Mixture,
            content: Content::Text,
            seed: 1,
            documents: 10_000,
            validation: 200,
            vocabulary: 1024,
        }
    }
}

#[derive(Debug)]
pub struct Generated {
    pub index: Index,
    pub validation: Option<Index>,
    pub tokenizer: Tokenizer,
}

/// Writes a corpus into a folder, with documents `0..documents` of the kind, and below it one for validation
/// with the documents that follow. Without a tokenizer one is trained. `progress` gets the number of documents done.
pub fn generate_corpus(
    folder: &Path,
    options: &GenerateOptions,
    tokenizer: Option<Tokenizer>,
    progress: &mut dyn FnMut(u64),
) -> Result<Generated, DataError> {
    let tokenizer = match tokenizer {
        Some(tokenizer) => tokenizer,
        None => trained(options)?,
    };
    let mut done = 0;
    let mut write = |folder: &Path, numbers: std::ops::Range<u64>| -> Result<Index, DataError> {
        let mut author = Author::new(folder, &tokenizer, options)?;
        for number in numbers {
            author.push(number)?;
            done += 1;
            progress(done);
        }
        author.writer.finish()
    };
    let index = write(folder, 0..options.documents)?;
    let held_out = options.documents..options.documents + options.validation;
    let validation = match held_out.is_empty() {
        true => None,
        false => Some(write(&folder.join(VALIDATION_FOLDER), held_out)?),
    };
    Ok(Generated { index, validation, tokenizer })
}

/// Writes documents into one corpus.
struct Author<'a> {
    options: &'a GenerateOptions,
    writer: CorpusWriter,
    encoder: Encoder<'a>,
    template: Option<ChatTemplate>,
}

impl<'a> Author<'a> {
    fn new(folder: &Path, tokenizer: &'a Tokenizer, options: &'a GenerateOptions) -> Result<Self, DataError> {
        let (written, template) = match options.content {
            Content::Text => (CorpusOptions::text(tokenizer), None),
            Content::Chat => (CorpusOptions::chat(), Some(ChatTemplate::of(tokenizer)?)),
        };
        let writer = CorpusWriter::create(folder, tokenizer, written)?;
        Ok(Self { options, writer, encoder: tokenizer.encoder(), template })
    }

    fn push(&mut self, number: u64) -> Result<(), DataError> {
        let (kind, seed) = (self.options.kind, self.options.seed);
        let mut ids = Vec::new();
        let Some(template) = &self.template else {
            let text = generate(kind, seed, number);
            self.encoder.encode(&text, &mut ids)?;
            return self.writer.push_text(&ids, text.len() as u64);
        };
        let messages = generate_conversation(kind, seed, number);
        let mut counts = Vec::new();
        template.encode(&messages, None, &mut self.encoder, &mut ids, &mut counts)?;
        let bytes: usize = messages.iter().map(|message| message.text().len()).sum();
        self.writer.push(&ids, &counts, bytes as u64)
    }
}

fn trained(options: &GenerateOptions) -> Result<Tokenizer, DataError> {
    let numbers = 0..options.documents.min(TRAINING_DOCUMENTS);
    let texts: Vec<String> = numbers.map(|number| generate(options.kind, options.seed, number)).collect();
    let training = TrainingOptions { vocabulary: options.vocabulary, ..TrainingOptions::default() };
    train_tokenizer(texts.iter().map(String::as_str), &training)
}
